"""Stream-static join: orders with the prices of a table."""

from pyspark.sql import functions as sf

from txnlog_testing import exactly_once

ORDERS = [{"id": n, "item": f"item-{n % 3}", "count": 1 + n % 4} for n in range(90)]
PRICES = [("item-0", 250), ("item-1", 999)]
"""Items that are not here cannot be invoiced, and are left out."""


def job(spark, kafka, checkpoint):
    """Start the query."""
    reader = spark.readStream.format("txnlog").options(**kafka.options, subscribe="orders")
    reader = reader.option("startingOffsets", "earliest").option("group.id", "enrich")
    order = sf.from_json(sf.col("value").cast("string"), "id INT, item STRING, count INT")
    orders = reader.load().select(order.alias("o")).select("o.*")
    priced = orders.join(spark.createDataFrame(PRICES, "item STRING, cents INT"), "item")
    invoice = sf.to_json(sf.struct("id", "item", sf.expr("count * cents AS total")))
    rows = priced.select(sf.col("id").cast("string").alias("key"), invoice.alias("value"))
    writer = rows.writeStream.format("txnlog").options(**kafka.options, topic="invoices")
    writer = writer.option("group.id", "enrich").option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


def test_invoices_are_exactly_once():
    exactly_once(job, input={"orders": ORDERS}, output="invoices")
