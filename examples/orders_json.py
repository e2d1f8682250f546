"""Orders as JSON in, invoices as JSON out: from_json and to_json; other values are left out.

python examples/orders_json.py --bootstrap-server localhost:9092 --input orders --output invoices
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT")
parser.add_argument("--input", default="orders")
parser.add_argument("--output", default="invoices")
parser.add_argument("--checkpoint", default="checkpoints/invoices")
parser.add_argument("--group", default="invoices")
args = parser.parse_args()

spark = SparkSession.builder.getOrCreate()
kafka = {"kafka.bootstrap.servers": args.bootstrap_server, "group.id": args.group}
reader = spark.readStream.format("txnlog").options(**kafka).option("subscribe", args.input)
records = reader.option("startingOffsets", "committedOrEarliest").load()

order = sf.from_json(sf.col("value").cast("string"), "id LONG, item STRING, count INT, cents INT")
orders = records.select("key", order.alias("order")).where("order.id IS NOT NULL")
total = (sf.col("order.count") * sf.col("order.cents")).alias("total")
invoice = sf.to_json(sf.struct("order.id", "order.item", total)).alias("value")

query = (
    orders.select("key", invoice)
    .writeStream.format("txnlog")
    .options(**kafka)
    .option("topic", args.output)
    .option("checkpointLocation", args.checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
