"""Deduplication: a shop sends some orders twice; each id is passed on once."""

from pyspark.sql import functions as sf

from txnlog_testing import exactly_once

ORDERS = [{"id": n - (n % 5 == 4), "cents": 100} for n in range(100)]
"""Each fifth order has the id of the one before it."""


def job(spark, kafka, checkpoint):
    """Start the query."""
    reader = spark.readStream.format("txnlog").options(**kafka.options, subscribe="orders")
    records = reader.option("startingOffsets", "earliest").load()
    order_id = sf.get_json_object(sf.col("value").cast("string"), "$.id")
    orders = records.select(order_id.alias("key"), "value", "timestamp")
    once = orders.withWatermark("timestamp", "10 minutes").dropDuplicatesWithinWatermark(["key"])
    writer = once.select("key", "value").writeStream.format("txnlog").options(**kafka.options)
    writer = writer.option("topic", "unique").option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


def test_each_order_is_passed_on_exactly_once():
    exactly_once(job, input={"orders": ORDERS}, output="unique")
