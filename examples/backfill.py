"""Copy a range of a topic as a batch, once: a second run of the same version writes nothing.

python examples/backfill.py --bootstrap-server localhost:9092 \
    --starting-offsets '{"orders": {"0": 0}}' --ending-offsets '{"orders": {"0": 100}}' --version 1
"""

import argparse

from pyspark.sql import SparkSession

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT")
parser.add_argument("--input", default="orders")
parser.add_argument("--output", default="orders-again")
parser.add_argument("--starting-offsets", default="earliest", help="earliest, or JSON")
parser.add_argument("--ending-offsets", default="latest", help="latest, or JSON")
parser.add_argument("--app", default="backfill", help="name that the brokers remember")
parser.add_argument("--version", type=int, default=1, help="number that rises with each range")
args = parser.parse_args()

spark = SparkSession.builder.getOrCreate()
kafka = {"kafka.bootstrap.servers": args.bootstrap_server}

records = (
    spark.read.format("txnlog")
    .options(**kafka)
    .option("subscribe", args.input)
    .option("startingOffsets", args.starting_offsets)
    .option("endingOffsets", args.ending_offsets)
    .load()
)
(
    records.select("key", "value", "timestamp")
    .write.format("txnlog")
    .options(**kafka, topic=args.output, timestampColumn="timestamp")
    .options(txnAppId=args.app, txnVersion=args.version)
    .mode("append")
    .save()
)
