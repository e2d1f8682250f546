"""Read orders as JSON, write them as Avro with a schema registry, and show the result.

python examples/orders_avro.py --bootstrap-server localhost:9092 --registry http://localhost:8081
"""

import argparse

from pyspark.sql import SparkSession

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT")
parser.add_argument("--registry", required=True, metavar="URL", help="address of the registry")
parser.add_argument("--input", default="orders")
parser.add_argument("--output", default="orders-avro")
parser.add_argument("--checkpoint", default="checkpoints/avro")
parser.add_argument("--group", default="avro")
args = parser.parse_args()

spark = SparkSession.builder.getOrCreate()
kafka = {"kafka.bootstrap.servers": args.bootstrap_server}
avro = {"value.format": "avro", "schema.registry.url": args.registry}
reader = spark.readStream.format("txnlog").options(**kafka).option("group.id", args.group)
reader = reader.option("startingOffsets", "committedOrEarliest").option("subscribe", args.input)
reader = reader.option("value.format", "json").option("value.mode", "PERMISSIVE")
reader = reader.option("value.schema", "id LONG, item STRING, count INT, cents INT")

orders = reader.load().where("value.id IS NOT NULL").select("key", "value")
writer = orders.writeStream.format("txnlog").options(**kafka, **avro)
writer = writer.option("topic", args.output).option("auto.register.schemas", "true")
writer = writer.option("group.id", args.group).option("checkpointLocation", args.checkpoint)
writer.trigger(availableNow=True).start().awaitTermination()

written = spark.read.format("txnlog").options(**kafka, **avro).option("subscribe", args.output)
written.load().select("value.*").show()
