"""Write running totals by item in update mode, and large totals to a second topic: foreachBatch.

python examples/totals_two_sinks.py --bootstrap-server localhost:9092 --large 10000
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from txnlog_spark import foreach_batch

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT")
parser.add_argument("--input", default="orders")
parser.add_argument("--output", default="totals", help="topic; large totals go to OUTPUT-large")
parser.add_argument("--large", type=int, default=10_000, help="cents from which a total is large")
parser.add_argument("--checkpoint", default="checkpoints/totals")
parser.add_argument("--group", default="totals")
args = parser.parse_args()

spark = SparkSession.builder.getOrCreate()
kafka, group = {"kafka.bootstrap.servers": args.bootstrap_server}, {"group.id": args.group}
reader = spark.readStream.format("txnlog").options(**kafka, **group, subscribe=args.input)
records = reader.option("startingOffsets", "committedOrEarliest").load()
order = sf.from_json(sf.col("value").cast("string"), "item STRING, count INT, cents INT")
orders = records.select(order.alias("order")).where("order.item IS NOT NULL")
total = sf.sum(sf.expr("order.count * order.cents")).cast("string").alias("value")
totals = orders.groupBy(sf.col("order.item").alias("key")).agg(total)

sink = kafka | {"checkpointLocation": args.checkpoint}
to_large = foreach_batch(name="large", topic=f"{args.output}-large", **sink)
to_all = foreach_batch(name="all", topic=args.output, **sink, **group)


def write(batch: DataFrame, batch_id: int) -> None:
    rows = batch.persist()
    to_large(rows.where(rows.value.cast("long") >= args.large), batch_id)
    to_all(rows, batch_id)  # only the last sink may have the group
    rows.unpersist()


writer = totals.writeStream.outputMode("update").foreachBatch(write)
writer = writer.option("checkpointLocation", args.checkpoint).trigger(availableNow=True)
writer.start().awaitTermination()
