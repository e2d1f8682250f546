"""Two sinks of one query: all orders go to one topic, large ones to another as well."""

from pyspark.sql import functions as sf

from txnlog_spark import foreach_batch
from txnlog_testing import exactly_once

ORDERS = [{"id": n, "cents": 100 * n} for n in range(60)]


def job(spark, kafka, checkpoint):
    """Start the query."""
    reader = spark.readStream.format("txnlog").options(**kafka.options, subscribe="orders")
    orders = reader.option("startingOffsets", "earliest").load().select("value")
    sink = {**kafka.options, "checkpointLocation": checkpoint}
    to_large = foreach_batch(name="large", topic="large", **sink)
    to_all = foreach_batch(name="all", topic="all", **sink)
    cents = sf.get_json_object(sf.col("value").cast("string"), "$.cents").cast("int")

    def write(batch, batch_id):
        to_large(batch.where(cents >= 3_000), batch_id)
        to_all(batch, batch_id)

    writer = orders.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


def test_both_topics_are_exactly_once():
    exactly_once(job, input={"orders": ORDERS}, output=["all", "large"])
