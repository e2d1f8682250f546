"""Count the orders of each item in each minute: a windowed aggregation in append mode.

A window is written once, when the watermark has passed its end: later orders of the window are
dropped.

python examples/windowed_counts.py --bootstrap-server localhost:9092
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT")
parser.add_argument("--input", default="orders")
parser.add_argument("--output", default="orders-per-minute")
parser.add_argument("--checkpoint", default="checkpoints/per-minute")
parser.add_argument("--group", default="per-minute")
args = parser.parse_args()

spark = SparkSession.builder.getOrCreate()
kafka = {"kafka.bootstrap.servers": args.bootstrap_server, "group.id": args.group}
reader = spark.readStream.format("txnlog").options(**kafka).option("subscribe", args.input)
records = reader.option("startingOffsets", "committedOrEarliest").load()

order = sf.from_json(sf.col("value").cast("string"), "at TIMESTAMP, item STRING, count INT")
orders = records.select(order.alias("order")).select("order.*").where("item IS NOT NULL")
late = orders.withWatermark("at", "30 seconds")
minutes = late.groupBy(sf.window("at", "1 minute"), "item").agg(sf.sum("count").alias("count"))
value = sf.to_json(sf.struct(sf.col("window.start").alias("minute"), "item", "count"))

writer = minutes.select(sf.col("item").alias("key"), value.alias("value")).writeStream
writer = writer.format("txnlog").options(**kafka).option("topic", args.output).outputMode("append")
writer = writer.option("checkpointLocation", args.checkpoint).trigger(availableNow=True)
writer.start().awaitTermination()
