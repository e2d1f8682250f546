"""Windowed aggregation: orders of each minute and item, written when the watermark has passed."""

from pyspark.sql import functions as sf

from txnlog_testing import exactly_once

ORDERS = [{"item": f"item-{n % 3}", "cents": 100 + n} for n in range(240)]
"""Input records; the timestamps come a second apart."""


def job(spark, kafka, checkpoint):
    """Start the query."""
    reader = spark.readStream.format("txnlog").options(**kafka.options, subscribe="orders")
    orders = (
        reader.option("startingOffsets", "earliest").load().withWatermark("timestamp", "5 seconds")
    )
    item = sf.get_json_object(sf.col("value").cast("string"), "$.item").alias("item")
    counts = orders.groupBy(sf.window("timestamp", "1 minute"), item).count()
    rows = counts.select(
        sf.col("item").alias("key"), sf.to_json(sf.struct("window", "count")).alias("value")
    )
    writer = rows.writeStream.format("txnlog").options(**kafka.options, topic="counts")
    return writer.option("checkpointLocation", checkpoint).start()


def test_window_counts_are_exactly_once():
    exactly_once(job, input={"orders": ORDERS}, output="counts")
