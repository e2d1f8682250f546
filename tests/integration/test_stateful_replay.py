"""Windows, duplicates, a stream-stream join and transformWithState through crashes and replays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.clients.librdkafka import (
    create_topic,
    produce_values,
    read_topic,
    values_of,
)
from support.spark.connector import Pipe, finish
from support.spark.spark_copy import KILLED, CopyQuery
from support.spark.stateful_query import FAR, ROCKS_DB, STATE_FORMAT, STATE_STORE, check, stateful

BATCH = 30


def feed(bootstrap: str, topics: tuple[str, str], numbers: range) -> None:
    """Produce all numbers to the first topic, and the even numbers to the second."""
    first, second = topics
    produce_values(bootstrap, first, map(str, numbers))
    produce_values(bootstrap, second, [str(n) for n in numbers if n % 2 == 0])


def feed_far(bootstrap: str, topics: tuple[str, str]) -> None:
    """Let the watermark pass all that came before."""
    for topic in topics:
        produce_values(bootstrap, topic, [str(FAR)])


@pytest.fixture(params=("1", "2"))
def small_state(connector_spark: SparkSession, request: pytest.FixtureRequest):
    """Use one shuffle partition, in both state formats: a state store is slower than its rows."""
    settings = {
        STATE_STORE: ROCKS_DB,
        STATE_FORMAT: request.param,
        "spark.sql.shuffle.partitions": "1",
    }
    before = {name: connector_spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        connector_spark.conf.set(name, value)
    yield
    for name, was in before.items():
        if was is None:
            connector_spark.conf.unset(name)
        else:
            connector_spark.conf.set(name, was)


@pytest.mark.chaos
def test_state_that_was_computed_again_gives_the_output_of_a_batch_computation(
    pipe: Pipe, small_state: None, unique: Callable[[str], str]
) -> None:
    """A batch is in Kafka and not in Spark's commit log, and it is the one that moved all state."""
    second = create_topic(pipe.bootstrap, unique("second"), 1)
    topics = pipe.input, second

    def run() -> None:
        none = {"kafka.group.id": None}  # the first topic is read by several sources
        rows = stateful(pipe.stream(**none), pipe.stream(subscribe=second, **none))
        finish(pipe.write(rows, **none).trigger(availableNow=True).start())

    feed(pipe.bootstrap, topics, range(40))
    run()
    pipe.lose("commits", max(pipe.logged("commits")))
    feed(pipe.bootstrap, topics, range(40, 60))
    feed_far(pipe.bootstrap, topics)
    run()
    check(pipe.output_values("read_uncommitted"), 60)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_stateful_query_survives_the_kills_of_its_driver_around_the_commit(
    broker, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    query = CopyQuery(tmp_path, broker.bootstrap_servers, unique("state"))
    topics = query.source, create_topic(query.bootstrap, unique("second"), 2)
    query.program = "stateful_job.py"
    query.job_arguments = [f"second={topics[1]}"]
    query.read_options["maxOffsetsPerTrigger"] = str(BATCH)
    places = (
        "txn_offset_commit:after",
        "end_txn:after",
        "commit_log:before",
        "end_txn:before",
        "commit_log:before",
        "txn_offset_commit:after",
    )
    for number, place in enumerate(places):
        feed(query.bootstrap, topics, range(number * 2 * BATCH, (number + 1) * 2 * BATCH))
        failpoint = f"{place}:kill-driver@{query.next_batch() + 1}"
        run = query.run(failpoint)
        assert run.code == KILLED, run.stderr[-3000:]
        assert run.fired == (failpoint,)
    feed_far(query.bootstrap, topics)
    ended = query.run()
    assert ended.code == 0, ended.stderr[-3000:]
    values = values_of(read_topic(query.bootstrap, query.target))
    check(values, len(places) * 2 * BATCH)


def test_a_query_goes_on_after_its_state_was_repartitioned(pipe: Pipe) -> None:
    """Spark's own tool gives the state another number of partitions, as a batch."""
    spark = pipe.spark

    def run_distinct() -> None:
        rows = pipe.stream().select("value").dropDuplicates(["value"])
        finish(pipe.write(rows).trigger(availableNow=True).start())

    def sources_of(batch_id: str) -> list[str]:
        """Return the sources' lines of an entry of Spark's offset log."""
        return (pipe.checkpoint / "offsets" / batch_id).read_text().splitlines()[2:]

    spark.conf.set(STATE_STORE, ROCKS_DB)  # the only one that the tool takes
    try:
        pipe.feed(range(10))
        run_distinct()
        partitions = int(spark.conf.get("spark.sql.shuffle.partitions", "")) + 1
        spark._streamingCheckpointManager.repartition(str(pipe.checkpoint), partitions)
        assert pipe.logged("offsets") == pipe.logged("commits") == [0, 1]
        assert sources_of("0") == sources_of("1")
        pipe.feed(range(5, 15))
        run_distinct()
    finally:
        spark.conf.unset(STATE_STORE)
    assert pipe.output_values() == sorted(map(str, range(15)))
