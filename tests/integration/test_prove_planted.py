"""A fault that is planted in a user's job is found by `exactly_once`, and named."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import functions as sf

from txnlog_testing.prove.outputs import Files
from txnlog_testing.prove.proof import exactly_once
from txnlog_testing.prove.report import NotExactlyOnce, Report

ROWS = [(f"s{n % 3}", {"id": n, "shop": f"s{n % 3}"}) for n in range(30)]


def orders(spark, kafka):
    """Return the stream of the input, a row for each order."""
    reader = spark.readStream.format("txnlog").options(**kafka.options, subscribe="orders")
    records = reader.option("startingOffsets", "earliest").load()
    order = sf.from_json(sf.col("value").cast("string"), "id INT, shop STRING")
    return records.select(order.alias("o")).select("o.*")


def as_records(rows):
    return rows.select(sf.col("shop").alias("key"), sf.to_json(sf.struct("id")).alias("value"))


def started(writer, checkpoint):
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def plain_write(batch, kafka):
    writer = as_records(batch).write.format("txnlog").mode("append")
    writer.options(**kafka.options, topic="out").save()


def doubles(spark, kafka, checkpoint):
    """Write each batch as it is: a batch that runs again is written again."""

    def write(batch, batch_id):
        plain_write(batch, kafka)

    return started(orders(spark, kafka).writeStream.foreachBatch(write), checkpoint)


def loses(spark, kafka, checkpoint):
    """Note a batch as done before it is written: a kill in between loses it."""

    def write(batch, batch_id):
        done = Path(kafka.path("done"), str(batch_id))
        if done.exists():
            return
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()
        plain_write(batch, kafka)

    return started(orders(spark, kafka).writeStream.foreachBatch(write), checkpoint)


def reorders(spark, kafka, checkpoint):
    """Write a batch that is tried again from its end to its beginning."""

    def write(batch, batch_id):
        tried = Path(kafka.path("tried"), str(batch_id))
        order = sf.col("id").desc() if tried.exists() else sf.col("id")
        tried.parent.mkdir(parents=True, exist_ok=True)
        tried.touch()
        plain_write(batch.coalesce(1).sortWithinPartitions(order), kafka)

    return started(orders(spark, kafka).writeStream.foreachBatch(write), checkpoint)


def sticks(spark, kafka, checkpoint):
    """Wait for a lock that a killed driver has left."""

    def write(batch, batch_id):
        lock = Path(kafka.path("lock"))
        while lock.exists():
            threading.Event().wait(0.1)
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
        plain_write(batch, kafka)
        lock.unlink()

    return started(orders(spark, kafka).writeStream.foreachBatch(write), checkpoint)


def is_random(spark, kafka, checkpoint):
    """Write a column that is another one each time."""
    rows = orders(spark, kafka).withColumn("lucky", sf.rand())
    value = sf.to_json(sf.struct("id", "lucky")).alias("value")
    writer = rows.select(sf.col("shop").alias("key"), value).writeStream.format("txnlog")
    return started(writer.options(**kafka.options, topic="out"), checkpoint)


def to_files(spark, kafka, checkpoint):
    """Append to files with a plain write."""

    def write(batch, batch_id):
        batch.write.mode("append").parquet(kafka.path("files"))

    return started(orders(spark, kafka).writeStream.foreachBatch(write), checkpoint)


def finding(job, disturbance: str, output="out", **more) -> str:
    """Return the finding on a job that is wrong under this disturbance."""
    with pytest.raises(NotExactlyOnce) as raised:
        exactly_once(
            job,
            input={"orders": ROWS},
            output=output,
            disturbances=[disturbance],
            waves=2,
            **more,
        )
    report: Report = raised.value.report
    return report.finding(disturbance)


def test_a_plain_write_in_foreach_batch_is_found_to_double():
    assert finding(doubles, "replay") == "15 doubled"


def test_a_batch_that_is_noted_before_it_is_written_is_found_to_be_lost():
    assert finding(loses, "kill write:before", steps=["write:before"]) == "15 lost"


def test_another_order_is_found_and_named():
    assert "reordered" in finding(reorders, "kill write:before", steps=["write:before"])


def test_a_job_that_waits_for_a_lock_is_found_to_be_stuck():
    where = "kill write:before"
    assert finding(sticks, where, steps=["write:before"], timeout_s=15) == "stuck"


def test_a_random_column_is_named():
    assert finding(is_random, "twice") == "not deterministic: value.lucky"
    report = exactly_once(
        is_random, input={"orders": ROWS}, output="out", ignore=["value.lucky"],
        disturbances=["twice", "replay"],
    )  # fmt: skip
    assert [each.finding for each in report.results] == ["exact", "exact"]


def test_doubled_rows_of_files_are_found_with_the_file_they_are_in():
    with pytest.raises(NotExactlyOnce) as raised:
        exactly_once(
            to_files, input={"orders": ROWS}, output=Files("files", key=["id"]),
            disturbances=["replay"],
            waves=2,
        )  # fmt: skip
    (result,) = raised.value.report.results
    assert result.finding == "15 doubled"
    assert ".parquet" in result.detail


def test_a_job_that_writes_nothing_is_refused():
    with pytest.raises(ValueError, match="has left nothing in 'nowhere'"):
        exactly_once(doubles, input={"orders": ROWS}, output="nowhere", disturbances=["replay"])
