"""A fault that is planted in a user's job is found by `exactly_once`, and named."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from pyspark.sql import functions as sf
from support.brokers.probe import wait_until
from support.spark.order_jobs import (
    each_batch,
    orders,
    orders_of,
    plain_write,
    started,
    to_files,
    to_topic,
)

from txnlog_testing.prove.outputs import Files
from txnlog_testing.prove.proof import exactly_once
from txnlog_testing.prove.report import NotExactlyOnce, Report
from txnlog_testing.prove.stage import kept_drivers

pytestmark = pytest.mark.usefixtures("quick_java")

ROWS = orders_of(30)


def loses(spark, kafka, checkpoint):
    """Note a batch as done before it is written: a kill in between loses it."""

    def write(batch, batch_id):
        done = Path(kafka.path("done"), str(batch_id))
        if done.exists():
            return
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()
        plain_write(batch, kafka)

    return each_batch(spark, kafka, checkpoint, write)


def reorders(spark, kafka, checkpoint):
    """Write a batch that is tried again from its end to its beginning."""

    def write(batch, batch_id):
        tried = Path(kafka.path("tried"), str(batch_id))
        order = sf.col("id").desc() if tried.exists() else sf.col("id")
        tried.parent.mkdir(parents=True, exist_ok=True)
        tried.touch()
        plain_write(batch.coalesce(1).sortWithinPartitions(order), kafka)

    return each_batch(spark, kafka, checkpoint, write)


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

    return each_batch(spark, kafka, checkpoint, write)


def is_random(spark, kafka, checkpoint):
    """Write a column that is another one each time."""
    rows = orders(spark, kafka).withColumn("lucky", sf.rand())
    value = sf.to_json(sf.struct("id", "lucky")).alias("value")
    writer = rows.select(sf.col("shop").alias("key"), value).writeStream.format("txnlog")
    return started(writer.options(**kafka.options, topic="out"), checkpoint)


def moves_a_group(spark, kafka, checkpoint):
    """Note in a group how often a batch was tried, in the place of how far it came."""
    from confluent_kafka import Consumer, TopicPartition  # cloudpickle cannot send its classes

    def write(batch, batch_id):
        plain_write(batch, kafka, txnAppId="copy", txnVersion=str(batch_id))
        tries = Path(kafka.path("tries"))
        tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
        servers = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "copy"}
        consumer = Consumer(servers)
        place = TopicPartition("orders", 0, len(tries.read_text()))
        consumer.commit(offsets=[place], asynchronous=False)
        consumer.close()

    return each_batch(spark, kafka, checkpoint, write)


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


def doubled(*disturbances: str) -> list[tuple[str, str]]:
    """Return the findings on a job that writes a batch again whenever Spark runs it again.

    The output is two functions without a name: the second one has the rows that are doubled.
    """
    outputs = [
        lambda spark, kafka: [1],
        lambda spark, kafka: [r.value for r in kafka.records("out")],
    ]
    with pytest.raises(NotExactlyOnce) as raised:
        exactly_once(
            to_topic, input={"orders": ROWS}, output=outputs, disturbances=disturbances, waves=2
        )  # fmt: skip
    return [(each.disturbance, each.finding) for each in raised.value.report.results]


def test_a_plain_write_in_foreach_batch_is_found_to_double():
    """Whatever loss in the checkpoint makes Spark run the batch again."""
    losses = ["replay", "lost tail", "old backup"]
    assert doubled(*losses) == [(name, "15 doubled") for name in losses]


@pytest.mark.weekly
def test_a_plain_write_in_foreach_batch_is_found_to_double_by_a_second_driver_and_not_by_a_kill():
    """The kill comes when the batch is noted as done."""
    assert doubled("kill at commits/*", "two drivers") == [
        ("kill at commits/*", "exact"),
        ("two drivers", "15 doubled"),
    ]


def test_a_group_that_stands_elsewhere_is_found():
    """Each run also tells its end on the driver's console, where a driver that stays shows it."""
    assert finding(moves_a_group, "replay") == "group offsets differ"
    console = kept_drivers({}).warm().folder / "log"
    told = r" INFO txnlog_spark: orders is done: 15 offsets in .*, lag 0 when the run began\n"
    wait_until(lambda: re.search(told, console.read_text()) is not None, "the end of a run")


def test_a_proof_after_one_that_broke_off_has_drivers_that_are_ready(monkeypatch):
    """The first one ends while its driver still reads the output: the next one must not take the
    driver's answer for its own."""

    def slow(spark, kafka):
        threading.Event().wait(2)
        return [1]

    again = {"input": {"orders": ROWS}, "disturbances": ["kill end_txn:before"], "waves": 2}
    monkeypatch.setattr("txnlog_testing.prove.outputs.READ_SECONDS_MAX", 0.1)
    with pytest.raises(ValueError, match=r"cannot be read: it still ran after 0\.1 s"):
        exactly_once(to_topic, output=slow, **again)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="nothing was disturbed") as raised:
        exactly_once(to_files, output=Files("out"), **again)
    assert "the job does not come to end_txn:before" in str(raised.value)


def test_a_batch_that_is_noted_before_it_is_written_is_found_to_be_lost():
    assert finding(loses, "kill write:before") == "15 lost"


@pytest.mark.weekly
def test_another_order_is_found_and_named():
    assert "reordered" in finding(reorders, "kill write:before")


@pytest.mark.weekly
def test_a_job_that_waits_for_a_lock_is_found_to_be_stuck():
    where = "kill write:before"
    assert finding(sticks, where, timeout_s=20) == "stuck"


def test_a_random_column_is_named():
    assert finding(is_random, "twice") == "not deterministic: value.lucky"
    report = exactly_once(
        is_random, input={"orders": ROWS}, output="out", ignore=["value.lucky"],
        disturbances=["replay"], waves=2,
    )  # fmt: skip
    assert report.finding("replay") == "exact"


def test_doubled_rows_of_files_are_found_with_the_file_they_are_in():
    with pytest.raises(NotExactlyOnce) as raised:
        exactly_once(
            to_files, input={"orders": ROWS}, output=Files("out", key=["id"]),
            disturbances=["replay"],
            waves=2,
        )  # fmt: skip
    (result,) = raised.value.report.results
    assert result.finding == "15 doubled"
    assert ".parquet" in result.detail


def test_a_job_that_writes_nothing_is_refused():
    with pytest.raises(ValueError, match="has left nothing in 'nowhere'"):
        exactly_once(
            to_topic, input={"orders": ROWS}, output="nowhere", disturbances=["replay"], waves=2
        )  # fmt: skip
