"""Read orders as JSON, write invoices as JSON, and send values that are not orders to dead letters.

python examples/orders_json.py --bootstrap-server localhost:9092 --input orders --output invoices
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql.functions import coalesce, expr, lit

from txnlog_spark import dead_letters

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT")
parser.add_argument("--input", default="orders")
parser.add_argument("--output", default="invoices")
parser.add_argument("--dead-letters", default="orders.dlq")
parser.add_argument("--checkpoint", default="checkpoints/invoices")
parser.add_argument("--group", default="invoices")
args = parser.parse_args()

spark = SparkSession.builder.getOrCreate()
kafka = {"kafka.bootstrap.servers": args.bootstrap_server, "group.id": args.group}
reader = spark.readStream.format("txnlog").options(**kafka).option("subscribe", args.input)
reader = reader.option("value.format", "json").option("value.mode", "PERMISSIVE")
reader = reader.option("value.schema", "id LONG, item STRING, count INT, cents INT")
reader = reader.option("includeHeaders", "true").option("startingOffsets", "committedOrEarliest")
orders = reader.load()

rows = dead_letters(orders, topic=args.dead_letters)
rows = rows.where("topic IS NOT NULL OR value.id IS NOT NULL")
rows = rows.withColumn("topic", coalesce("topic", lit(args.output)))
total = expr("struct(value.id, value.item, value.count * value.cents AS total)")
query = (
    rows.withColumn("value", total)
    .writeStream.format("txnlog")
    .options(**kafka)
    .option("value.format", "json")
    .option("checkpointLocation", args.checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
