"""A batch read sees the log as it is when it runs, with Spark's own connector and with this one."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import confluent_kafka
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, udf
from support.brokers.probe import wait_until
from support.clients.librdkafka import create_topic
from support.clients.librdkafka_client import LibrdkafkaAdmin
from support.harness.availability import available
from support.spark.connector import Pipe, error_of
from support.spark.spark_kafka_jars import spark_kafka_jars

WEEKLY = pytest.mark.weekly
BOTH = pytest.mark.parametrize("name", [pytest.param("kafka", marks=WEEKLY), "txnlog"])


def load(pipe: Pipe, name: str, **options: object) -> DataFrame:
    if name == "kafka":
        for jar in available(spark_kafka_jars):
            pipe.spark.sql(f"ADD JAR '{jar}'")
    reader = pipe.spark.read.format(name).option("kafka.bootstrap.servers", pipe.bootstrap)
    given = {"subscribe": pipe.input, **options}
    if "subscribePattern" in given:
        del given["subscribe"]
    return reader.options(**given).load().selectExpr("cast(value as string) value", "partition")


def values(rows: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in rows.collect())


def actions(rows: DataFrame, view: str, folder: Path) -> dict[str, int]:
    rows.write.mode("overwrite").parquet(str(folder / view))
    return {
        "collect": len(rows.collect()),
        "pandas": len(rows.toPandas()),
        "count": rows.count(),
        "order": len(rows.orderBy("value").tail(99)),
        "union": rows.union(rows).count() // 2,
        "view": rows.sparkSession.sql(f"select count(*) from {view}").first()[0],
        "write": rows.sparkSession.read.parquet(str(folder / view)).count(),
    }


@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param("kafka", {}, marks=WEEKLY), ("txnlog", {"minPartitions": "4"})],
)
def test_every_action_on_one_dataframe_sees_what_is_in_the_log_then(
    pipe: Pipe, name: str, options: dict[str, str], tmp_path: Path
) -> None:
    pipe.feed(range(8), partition=0)
    rows, view = load(pipe, name, **options), f"view_{name}"
    rows.createOrReplaceTempView(view)
    kept, in_rdd = rows.filter("true").cache(), rows.rdd
    assert set(actions(rows, view, tmp_path).values()) == {8}
    assert (kept.count(), in_rdd.count()) == (8, 8)
    pipe.feed(range(8, 12), partition=0)
    pipe.feed(range(12, 15), partition=1)  # without a record when it was planned
    seen = actions(rows, view, tmp_path)
    assert set(seen.values()) == {15}
    assert in_rdd.count() == 15
    assert kept.count() == 8
    kept.unpersist()


@BOTH
def test_a_stream_is_joined_with_what_its_batch_side_holds_at_each_trigger(
    pipe: Pipe, name: str
) -> None:
    pipe.feed([1], partition=0)
    static = load(pipe, name).selectExpr("value as known")
    joined: dict[int, tuple[list[str], int]] = {}

    def batch(rows: DataFrame, batch_id: int) -> None:
        found = sorted(row.value for row in rows.collect())
        # A batch read that was made outside is as new here as the joined one.
        joined[batch_id] = found, static.count()

    pipe.feed([1, 2], pipe.output)
    stream = pipe.stream(subscribe=pipe.output, **{"kafka.group.id": None})
    matched = stream.selectExpr("cast(value as string) value").join(
        static, col("value") == col("known")
    )
    query = matched.writeStream.foreachBatch(batch)
    query = query.option("checkpointLocation", str(pipe.checkpoint)).start()
    try:
        wait_until(lambda: 0 in joined or not query.isActive, "the first batch")
        pipe.feed([2], partition=1)
        pipe.feed([1, 2], pipe.output)
        wait_until(lambda: 1 in joined or not query.isActive, "the second batch")
    finally:
        query.stop()
    assert joined == {0: (["1"], 1), 1: (["1", "2"], 2)}


def test_positions_that_are_numbers_stay_and_words_beside_them_move(pipe: Pipe) -> None:
    pipe.feed(range(10), partition=0)
    pipe.feed(range(10, 20), partition=1)
    starts = json.dumps({pipe.input: {"0": 2, "1": -2, "2": -2}})
    ends = json.dumps({pipe.input: {"0": 5, "1": -1, "2": -1}})
    rows = load(pipe, "txnlog", startingOffsets=starts, endingOffsets=ends)
    assert values(rows) == [2, 3, 4, *range(10, 20)]
    pipe.feed(range(20, 23), partition=0)
    pipe.feed(range(23, 25), partition=1)
    pipe.feed(range(25, 27), partition=2)
    assert values(rows) == [2, 3, 4, *range(10, 20), 23, 24, 25, 26]
    assert values(rows.filter("partition = 1")) == [*range(10, 20), 23, 24]
    LibrdkafkaAdmin(pipe.bootstrap).delete_records((pipe.input, 0), 4)
    assert "TXNLOG_DATA_LOSS" in error_of(lambda: values(rows))


@BOTH
def test_a_view_is_read_again_after_retention_has_taken_its_first_records(
    pipe: Pipe, name: str
) -> None:
    pipe.feed(range(10), partition=0)
    rows = load(pipe, name)
    assert values(rows) == [*range(10)]
    LibrdkafkaAdmin(pipe.bootstrap).delete_records((pipe.input, 0), 7)
    assert values(rows) == [7, 8, 9]


def test_partitions_and_topics_that_were_added_since_are_read(pipe: Pipe) -> None:
    pipe.feed(range(10), partition=0)
    by_name = load(pipe, "txnlog", minPartitions=4)
    by_pattern = load(pipe, "txnlog", subscribePattern=f"{pipe.input}.*")
    at_numbers = load(
        pipe, "txnlog", startingOffsets=json.dumps({pipe.input: dict.fromkeys("012", 0)})
    )
    for rows in (by_name, by_pattern, at_numbers):
        assert values(rows) == [*range(10)]
    admin = LibrdkafkaAdmin(pipe.bootstrap)
    admin.add_partitions(pipe.input, 5)
    create_topic(pipe.bootstrap, f"{pipe.input}-more", 1)
    pipe.feed(range(10, 13), partition=4)
    pipe.feed(range(13, 15), f"{pipe.input}-more", partition=0)
    assert values(by_name) == [*range(13)]
    assert values(by_pattern) == [*range(15)]
    assert f"name also {pipe.input}-3, {pipe.input}-4" in error_of(lambda: values(at_numbers))
    admin.delete_topic(f"{pipe.input}-more")
    assert values(by_pattern) == [*range(13)]
    admin.delete_topic(pipe.input)
    assert values(by_pattern) == []
    assert "TXNLOG_UNKNOWN_TOPIC" in error_of(lambda: values(by_name))


@BOTH
def test_a_copy_whose_task_is_killed_has_each_record_once(
    pipe: Pipe, name: str, tmp_path: Path
) -> None:
    """The second try of a task may end later than the first, which has left nothing."""
    pipe.feed(range(100))
    bootstrap, topic, flag = pipe.bootstrap, pipe.input, tmp_path / "killed"

    @udf("string")
    def killed_once(value: str) -> str:
        try:
            flag.touch(exist_ok=False)  # one of the tasks that run at the same time
        except FileExistsError:
            return value
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})  # no `support` here
        for number in range(100, 110):
            producer.produce(topic, str(number).encode())
        assert not producer.flush(60)
        os.kill(os.getpid(), signal.SIGKILL)
        return value

    rows = load(pipe, name).select(killed_once("value").alias("value")).repartition(3)
    pipe.save(rows)
    assert flag.exists()
    found = [int(value) for value in pipe.output_values()]
    assert len(found) == len(set(found))
    assert set(range(100)) <= set(found) <= set(range(110))


def test_a_topic_of_a_pattern_that_is_gone_is_left_out_with_its_named_positions(
    pipe: Pipe,
) -> None:
    more = f"{pipe.input}-more"
    create_topic(pipe.bootstrap, more, 1)
    pipe.feed(range(10), partition=0)
    pipe.feed(range(10, 13), more, partition=0)
    starts = json.dumps({pipe.input: {"0": 4, "1": 0, "2": 0}, more: {"0": 1}})
    rows = load(pipe, "txnlog", subscribePattern=f"{pipe.input}.*", startingOffsets=starts)
    assert values(rows) == [4, 5, 6, 7, 8, 9, 11, 12]
    LibrdkafkaAdmin(pipe.bootstrap).delete_topic(more)
    assert values(rows) == [4, 5, 6, 7, 8, 9]
