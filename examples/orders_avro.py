"""Orders as JSON in, as Avro out, with a schema registry: to_avro, and from_avro to look at them.

python examples/orders_avro.py --bootstrap-server localhost:9092 --registry http://localhost:8081
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from txnlog_spark.avro import from_avro, to_avro

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT")
parser.add_argument("--registry", required=True, metavar="URL", help="of Confluent's interface")
parser.add_argument("--input", default="orders")
parser.add_argument("--output", default="orders-avro")
parser.add_argument("--checkpoint", default="checkpoints/avro")
parser.add_argument("--group", default="avro")
args = parser.parse_args()

spark = SparkSession.builder.getOrCreate()
kafka = {"kafka.bootstrap.servers": args.bootstrap_server}
registry = {"schema.registry.url": args.registry, "topic": args.output}
reader = spark.readStream.format("txnlog").options(**kafka).option("group.id", args.group)
records = reader.option("startingOffsets", "committedOrEarliest").option("subscribe", args.input)

order = sf.from_json(sf.col("value").cast("string"), "id LONG, item STRING, count INT, cents INT")
orders = records.load().select("key", order.alias("order")).where("order.id IS NOT NULL")
value = to_avro("order", options=registry | {"auto.register.schemas": "true"})
writer = orders.select("key", value.alias("value")).writeStream.format("txnlog").options(**kafka)
writer = writer.option("topic", args.output).option("group.id", args.group)
writer = writer.option("checkpointLocation", args.checkpoint).trigger(availableNow=True)
writer.start().awaitTermination()

written = spark.read.format("txnlog").options(**kafka).option("subscribe", args.output).load()
written.select(from_avro("value", "", registry).alias("order")).select("order.*").show()
