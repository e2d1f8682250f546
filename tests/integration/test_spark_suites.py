"""Scenarios of Spark's own Kafka suites, with Spark's connector and with this one.

Each test names the test that it comes from. Both connectors run in one session, with a checkpoint
and output topics each; where they differ, docs/migration.md has a row that says so. Spark's
connector runs on one day of the week.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery
from support.brokers.prepared import wait_until_marked
from support.clients.librdkafka import (
    committed_offsets,
    create_topic,
    produce_values,
    read_topic,
    transact,
    transactional,
    values_of,
)
from support.clients.librdkafka_client import LibrdkafkaAdmin
from support.harness.availability import available
from support.harness.printed import code_blocks, section
from support.spark.connector import Pipe, error_of, finish
from support.spark.spark_kafka_jars import spark_kafka_jars

from txnlog_spark.tools.cli import main as tool

pytestmark = pytest.mark.slow

MIGRATION = Path(__file__).resolve().parents[2] / "docs" / "migration.md"
EMPTY_AT_START = "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"
LAST_MS = 253_370_764_800_000
"""A time after that of every record: the year 9999."""


class Side:
    """Queries of one connector on one checkpoint, between topics of one partition each."""

    def __init__(self, name: str, pipe: Pipe, folder: Path, unique: Callable[[str], str]) -> None:
        self.name = name
        self.spark = pipe.spark
        self.bootstrap = pipe.bootstrap
        self.checkpoint = folder / "checkpoint"
        self._unique = unique

    def topic(self, name: str) -> str:
        """A new topic."""
        return create_topic(self.bootstrap, self._unique(f"{name}-{self.name}"), 1)

    def feed(self, topic: str, *values: object, partition: int = 0) -> None:
        produce_values(self.bootstrap, topic, [str(value) for value in values], partition)

    def stream(self, connector: str = "", **options: object) -> DataFrame:
        """Rows with the record's value as text, in the column `value`."""
        reader = self.spark.readStream.format(connector or self.name)
        options = {"kafka.bootstrap.servers": self.bootstrap, **options}
        return reader.options(**options).load().selectExpr("CAST(value AS STRING) AS value")

    def writer(self, rows: DataFrame, topic: str, **options: object) -> Any:
        writer = rows.writeStream.format(self.name).option("topic", topic).options(**options)
        writer = writer.option("kafka.bootstrap.servers", self.bootstrap)
        return writer.option("checkpointLocation", str(self.checkpoint))

    def copy(self, rows: DataFrame, topic: str, **options: object) -> StreamingQuery:
        """Write the rows that are there to a topic; raises what the query failed with."""
        return finish(self.writer(rows, topic, **options).trigger(availableNow=True).start())

    def batches(self, rows: DataFrame, **trigger: Any) -> dict[int, list[int]]:
        """The sorted values of each batch that a run of the query has, by its id."""
        seen: dict[int, list[int]] = {}

        def note(batch: DataFrame, batch_id: int) -> None:
            values = sorted(int(row.value) for row in batch.collect())
            if values:
                seen[batch_id] = values

        writer = rows.writeStream.foreachBatch(note)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        finish(writer.trigger(**trigger or {"availableNow": True}).start())
        return seen

    def values(self, topic: str) -> list[str]:
        """Return the values that a read_committed consumer sees, sorted."""
        return values_of(read_topic(self.bootstrap, topic, isolation="read_committed"))


PEER = pytest.mark.weekly(day=1)


def add_peer(pipe: Pipe) -> None:
    """Give the session Spark's own connector."""
    for jar in available(spark_kafka_jars):
        pipe.spark.sql(f"ADD JAR '{jar}'")


@pytest.fixture(params=[pytest.param("kafka", marks=PEER), "txnlog"])
def side(
    request: pytest.FixtureRequest, pipe: Pipe, tmp_path: Path, unique: Callable[[str], str]
) -> Side:
    """Each connector in turn."""
    if request.param == "kafka":
        add_peer(pipe)
    return Side(request.param, pipe, tmp_path, unique)


def texts(values: Iterable[object]) -> list[str]:
    return sorted(map(str, values))


def test_a_source_without_news_keeps_its_place_beside_one_that_has_some(side: Side) -> None:
    """SPARK-22956: a union of two sources with rate limits, restarted twice."""
    first, second = side.topic("first"), side.topic("second")
    limit = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 5}

    def run() -> dict[int, list[int]]:
        rows = side.stream(subscribe=first, **limit).union(side.stream(subscribe=second, **limit))
        return side.batches(rows)

    side.feed(first, *range(10))
    side.feed(second, *range(100, 105))
    assert run() == {0: [*range(5), *range(100, 105)], 1: [*range(5, 10)]}
    side.feed(second, *range(105, 110))
    assert run() == {2: [*range(105, 110)]}
    side.feed(first, *range(10, 13))
    assert run() == {3: [10, 11, 12]}


def test_a_failed_batch_is_the_same_batch_after_partitions_were_added(side: Side) -> None:
    """SPARK-53560: a batch that was planned and not committed, with Trigger.AvailableNow."""
    topic = side.topic("in")
    side.feed(topic, *range(3))

    def rows(value: str) -> DataFrame:
        return side.stream(subscribe=topic, startingOffsets="earliest").selectExpr(value)

    with pytest.raises(PySparkException, match="poison"):
        side.batches(rows("raise_error('poison') AS value"))
    LibrdkafkaAdmin(side.bootstrap).add_partitions(topic, 3)
    side.feed(topic, 3, 4, partition=2)
    assert side.batches(rows("value")) == {0: [0, 1, 2], 1: [3, 4]}


def test_the_topics_of_a_query_may_be_named_otherwise_at_each_restart(side: Side) -> None:
    """KafkaMicroBatchV2SourceSuite: topics that are new to a query are read from their beginning,
    whatever `startingOffsets` says."""
    old, new = side.topic("old"), side.topic("new")
    side.feed(old, 1)
    assert side.batches(side.stream(subscribe=old, startingOffsets="earliest")) == {0: [1]}
    side.feed(old, 2)
    side.feed(new, 10)
    both = side.stream(subscribe=f"{old},{new}", startingOffsets="latest")
    assert side.batches(both) == {1: [2, 10]}
    side.feed(new, 11)
    assert side.batches(side.stream(subscribePattern=f"{old}|{new}")) == {2: [11]}
    side.feed(old, 3)
    assigned = json.dumps({old: [0], new: [0]})
    assert side.batches(side.stream(assign=assigned)) == {3: [3]}


def test_a_start_at_a_time_after_the_last_record_is_an_error_or_the_end(side: Side) -> None:
    """KafkaMicroBatchV2SourceSuite, "specific timestamp with non-matching starting offset"."""
    topic = side.topic("in")
    side.feed(topic, 0)
    time = {"subscribe": topic, "startingTimestamp": LAST_MS}
    with pytest.raises(PySparkException):
        side.batches(side.stream(**time))
    side.checkpoint = side.checkpoint.with_name("second")
    at_the_end = {**time, "startingOffsetsByTimestampStrategy": "latest"}
    assert side.batches(side.stream(**at_the_end)) == {}
    side.feed(topic, 1, 2)
    assert [*side.batches(side.stream(**at_the_end)).values()] == [[1, 2]]


@pytest.mark.parametrize(
    ("limit", "trigger"),
    [
        pytest.param({"maxOffsetsPerTrigger": 2**63 - 1}, {"availableNow": True}, marks=PEER),
        ({"maxOffsetsPerTrigger": 1}, {"once": True}),
        pytest.param({"minOffsetsPerTrigger": 1000}, {"once": True}, marks=PEER),
    ],
)
def test_a_limit_of_long_max_and_a_limit_under_trigger_once_bound_nothing(
    side: Side, limit: dict[str, int], trigger: dict[str, bool]
) -> None:
    """SPARK-26718, and "Trigger.Once" of KafkaMicroBatchV2SourceSuite."""
    topic = side.topic("in")
    side.feed(topic, *range(5))
    rows = side.stream(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 2}}), **limit)
    assert side.batches(rows, **trigger) == {0: [2, 3, 4]}


def test_what_is_left_of_a_failed_batch_is_not_seen_and_fewer_tasks_may_do_it(side: Side) -> None:
    """Flink's KafkaSinkITCase, testAbortTransactionsAfterScaleIn."""
    topic, output = side.topic("in"), side.topic("out")
    side.feed(topic, *range(8))
    rows = side.stream(subscribe=topic, startingOffsets="earliest")
    poison = "if(value = '5', raise_error('poison'), value) AS value"
    with pytest.raises(PySparkException, match="poison"):
        side.copy(rows.repartition(4).selectExpr(poison), output)
    if side.name == "txnlog":
        assert side.values(output) == []
    side.copy(rows.coalesce(1), output)
    copied = side.values(output)
    # The other connector's sink is at least once: what its tasks had sent may be there twice.
    assert (copied if side.name == "txnlog" else sorted(set(copied))) == texts(range(8))


def test_a_batch_that_failed_goes_to_the_topic_of_the_restart(side: Side) -> None:
    """DeltaSinkSuite, with another topic in the place of another path."""
    topic, before, after = side.topic("in"), side.topic("before"), side.topic("after")
    rows = side.stream(subscribe=topic, startingOffsets="earliest")
    side.feed(topic, 1)
    side.copy(rows, before)
    side.feed(topic, 2)
    with pytest.raises(PySparkException, match="poison"):
        side.copy(rows.selectExpr("raise_error('poison') AS value"), before)
    side.copy(rows, after)
    assert (side.values(before), side.values(after)) == (["1"], ["2"])


def test_a_group_stands_behind_the_markers_of_a_transactional_input(side: Side) -> None:
    """Kafka Streams' EosIntegrationTest, shouldCommitCorrectOffsetIfInputTopicIsTransactional.

    A lag tool shows 0. Spark's own sink commits no offsets.
    """
    topic, output = side.topic("in"), side.topic("out")
    writer = transactional(side.bootstrap, topic)
    transact(writer, topic, "1", "2")
    transact(writer, topic, "3", commits=False)
    wait_until_marked(side.bootstrap)
    group = {"kafka.group.id": topic} if side.name == "txnlog" else {}
    isolation = {"kafka.isolation.level": "read_committed"}
    rows = side.stream(subscribe=topic, startingOffsets="earliest", **isolation, **group)
    side.copy(rows, output, **group)
    assert side.values(output) == ["1", "2"]
    end = 5  # three records and two markers
    committed = committed_offsets(side.bootstrap, topic, topic, 1)
    assert committed == ({0: end} if side.name == "txnlog" else {})


def test_asynchronous_progress_is_refused_by_spark_as_the_page_says(side: Side) -> None:
    """KafkaMicroBatchV2SourceSuite, "async progress tracking"."""
    topic, output = side.topic("in"), side.topic("out")
    side.feed(topic, *range(5))
    rows = side.stream(subscribe=topic, startingOffsets="earliest")
    writer = side.writer(rows, output, asyncProgressTrackingEnabled=True)

    def run() -> None:
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    if side.name == "kafka":
        run()
    else:
        with pytest.raises(PySparkException, match="does not support async progress tracking"):
            run()
        assert "| `asyncProgressTrackingEnabled` |" in MIGRATION.read_text(encoding="utf-8")
    assert side.values(output) == (texts(range(5)) if side.name == "kafka" else [])


@PEER
def test_a_query_of_kafka_without_a_batch_is_taken_over_with_the_offsets_of_its_file(
    side: Side, pipe: Pipe
) -> None:
    """KafkaMicroBatchV2SourceSuite, "(de)serialization of initial offsets".

    Spark's source writes where it begins to `sources/0/0` before its first batch. Only that source
    reads the file.
    """
    add_peer(pipe)
    topic = side.topic("in")
    side.feed(topic, *range(5))
    assert side.batches(side.stream("kafka", subscribe=topic, startingOffsets="latest")) == {}
    for log in ("offsets", "commits"):  # as if it had been killed before it planned a batch
        for name in ("0", ".0.crc"):
            (side.checkpoint / log / name).unlink(missing_ok=True)
    side.feed(topic, 5, 6)
    start = "latest"
    if side.name == "txnlog":
        start = (side.checkpoint / "sources" / "0" / "0").read_text().rpartition("\n")[2]
        assert "`sources/0/0`" in MIGRATION.read_text(encoding="utf-8")
    side.spark.conf.set(EMPTY_AT_START, "false")
    try:
        rows = side.stream(subscribe=topic, startingOffsets=start)
        assert side.batches(rows) == {0: [5, 6]}
    finally:
        side.spark.conf.unset(EMPTY_AT_START)


@PEER
def test_the_walk_of_the_migration_page_copies_each_record_once_there_and_back(pipe: Pipe) -> None:
    """KafkaMicroBatchV2SourceSuite's checkpoints of another version; the lines are the page's."""
    add_peer(pipe)
    page = MIGRATION.read_text(encoding="utf-8")
    (diff,) = code_blocks("diff", section(page, "Change the job"))
    (command,) = code_blocks("sh", section(page, "How to go back"))
    names = {
        "host:9092": pipe.bootstrap,
        "HOST:9092": pipe.bootstrap,
        "checkpoints/shouter": str(pipe.checkpoint),
        '"orders"': f'"{pipe.input}"',
        '"orders-loud"': f'"{pipe.output}"',
        '"shouter"': f'"{pipe.group}"',
    }

    def placed(text: str) -> str:
        for printed, name in names.items():
            text = text.replace(printed, name)
        return text

    def run(signs: str, fed: str) -> None:
        pipe.feed([fed], partition=0)
        lines = [line[1:] for line in diff.splitlines() if line[0] in signs]
        exec(placed("\n".join(lines)), {"spark": pipe.spark})

    run(" -", "by kafka")
    run(" +", "by txnlog")
    assert committed_offsets(pipe.bootstrap, pipe.group, pipe.input, 1) == {0: 2}
    run(" -", "by kafka again")
    assert "TXNLOG_PROGRESS.BEHIND" in error_of(lambda: run(" +", "at last"))
    assert tool(shlex.split(placed(command))[3:]) == 0
    run(" +", "and more")
    assert pipe.output_values() == sorted(
        ["BY KAFKA", "BY TXNLOG", "BY KAFKA AGAIN", "AT LAST", "AND MORE"]
    )
