"""Commit messages of many tasks against a small spark.driver.maxResultSize, in Spark itself.

Sixteen tasks of 600 kB each are twice what the driver takes here: inline they would fail the
job, and every replay of the batch. The same numbers, scaled, are 1,100 tasks at Spark's default.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import functions as sf
from support.clients.librdkafka import create_topic, read_topic

TASKS = 16
ROWS = 40
VALUE = 15_000


@pytest.mark.weekly
def test_many_tasks_with_much_output_do_not_exceed_the_drivers_result_size(
    spark_sessions, shared_brokers, tmp_path: Path, unique
) -> None:
    """At a session's end Spark removes the folder where it spilled; the staging server lives as
    long as the JVM."""
    bootstrap = shared_brokers("broker_sim").bootstrap_servers
    for name in ("first", "second"):
        spark = spark_sessions("local[2,3]", **{"spark.driver.maxResultSize": "4m",
                                                "spark.app.name": name})  # fmt: skip
        for is_stream in (False, True):
            topic = unique(f"{name}-{is_stream}")
            check_large_write(spark, bootstrap, tmp_path / name, topic, is_stream=is_stream)


def check_large_write(spark, bootstrap: str, folder: Path, topic: str, *, is_stream: bool) -> None:
    """Write more than fits into commit messages, and find each row once."""
    create_topic(bootstrap, topic, 2)
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    value = sf.rpad(sf.col("number").cast("string"), VALUE, "x").alias("value")
    if is_stream:
        rows = (
            spark.readStream.format("rate-micro-batch")
            .options(rowsPerBatch=TASKS * ROWS, numPartitions=TASKS)
            .load()
            .withColumnRenamed("value", "number")
        )
        checkpoint = str(folder / "checkpoint")
        writer = rows.select(value).writeStream.format("txnlog").options(**options)
        query = writer.option("checkpointLocation", checkpoint).trigger(once=True).start()
        query.awaitTermination()
    else:
        rows = spark.range(0, TASKS * ROWS, 1, TASKS).withColumnRenamed("id", "number")
        options["stagingLocation"] = str(folder / "staging")
        rows.select(value).write.format("txnlog").options(**options).mode("append").save()
    numbers = sorted(int(record.value.rstrip(b"x")) for record in read_topic(bootstrap, topic))
    assert numbers == list(range(TASKS * ROWS))
