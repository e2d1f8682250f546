"""Parts of jobs under proof that copy orders, and two jobs that are wrong."""

from __future__ import annotations

from pyspark.sql import functions as sf


def orders_of(count):
    """Return so many input rows, of three shops."""
    return [(f"s{n % 3}", {"id": n, "shop": f"s{n % 3}"}) for n in range(count)]


def orders(spark, kafka, source="txnlog"):
    """Return the stream of the input, a row for each order."""
    reader = spark.readStream.format(source).options(**kafka.options, subscribe="orders")
    records = reader.option("startingOffsets", "earliest").load()
    order = sf.from_json(sf.col("value").cast("string"), "id INT, shop STRING")
    return records.select(order.alias("o")).select("o.*")


def as_records(rows):
    return rows.select(sf.col("shop").alias("key"), sf.to_json(sf.struct("id")).alias("value"))


def started(writer, checkpoint):
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def each_batch(spark, kafka, checkpoint, write):
    return started(orders(spark, kafka).writeStream.foreachBatch(write), checkpoint)


def plain_write(batch, kafka, **options):
    writer = as_records(batch).write.format("txnlog").mode("append")
    writer.options(**kafka.options, topic="out", **options).save()


def to_topic(spark, kafka, checkpoint):
    """Append each batch to a topic as it is: a batch that runs again is written again."""

    def write(batch, batch_id):
        plain_write(batch, kafka)

    return each_batch(spark, kafka, checkpoint, write)


def to_files(spark, kafka, checkpoint):
    """Append each batch to files in the same way."""

    def write(batch, batch_id):
        batch.write.mode("append").parquet(kafka.path("out"))

    return each_batch(spark, kafka, checkpoint, write)
