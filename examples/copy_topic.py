"""Copy a topic: each record once, with its key, its value and its headers.

python examples/copy_topic.py --bootstrap-server localhost:9092 --input orders --output orders-copy
"""

import argparse

from pyspark.sql import SparkSession

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT")
parser.add_argument("--input", default="orders")
parser.add_argument("--output", default="orders-copy")
parser.add_argument("--checkpoint", default="checkpoints/copy")
parser.add_argument("--group", default="copy", help="group that the offsets are committed to")
args = parser.parse_args()

spark = SparkSession.builder.getOrCreate()
kafka = {"kafka.bootstrap.servers": args.bootstrap_server, "group.id": args.group}

records = (
    spark.readStream.format("txnlog")
    .options(**kafka)
    .option("subscribe", args.input)
    .option("startingOffsets", "committedOrEarliest")
    .option("includeHeaders", "true")
    .load()
)
query = (
    records.select("key", "value", "headers")
    .writeStream.format("txnlog")
    .options(**kafka)
    .option("topic", args.output)
    .option("checkpointLocation", args.checkpoint)
    .trigger(availableNow=True)  # to the topic's present end; without this line it goes on
    .start()
)
query.awaitTermination()
