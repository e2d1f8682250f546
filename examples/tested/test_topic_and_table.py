"""A topic and a table of a database in one batch, each exact: the table by key, the topic last."""

import sqlite3

from pyspark.sql import functions as sf

from txnlog_spark import foreach_batch
from txnlog_testing import exactly_once

ORDERS = [{"id": n, "cents": 100 * n} for n in range(60)]
UPSERT = "INSERT INTO orders VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET cents = excluded.cents"


def job(spark, kafka, checkpoint):
    """Start the query."""
    reader = spark.readStream.format("txnlog").options(**kafka.options, subscribe="orders")
    records = reader.option("startingOffsets", "earliest").option("group.id", "orders").load()
    order = sf.from_json(sf.col("value").cast("string"), "id INT, cents INT")
    orders = records.select(order.alias("o"), "value").select("o.*", "value")
    sink = {**kafka.options, "checkpointLocation": checkpoint, "group.id": "orders"}
    to_topic = foreach_batch(topic="out", **sink)

    def write(batch, batch_id):
        rows = batch.persist()
        with sqlite3.connect(kafka.path("orders.db")) as database:
            database.execute("CREATE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY, cents INT)")
            database.executemany(UPSERT, map(tuple, rows.select("id", "cents").collect()))
        to_topic(rows.select("value"), batch_id)
        rows.unpersist()

    writer = orders.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


def table(spark, kafka):
    """Return the rows of the table."""
    with sqlite3.connect(kafka.path("orders.db")) as database:
        rows = database.execute("SELECT id, cents FROM orders")
        return [{"id": one, "cents": cents} for one, cents in rows]


def test_topic_and_table_are_each_exactly_once():
    exactly_once(job, input={"orders": ORDERS}, output=["out", table])
