"""A restart after a loss in the checkpoint: a batch is its plan, and evidence outlives a purge.

Spark does not flush its logs, copies of a checkpoint lag behind, and Spark purges entries: each
test loses files as one of these would, and starts the query again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from support.clients.librdkafka import committed_offsets, create_topic, read_topic, values_of
from support.spark.connector import PARTITIONS, Pipe, error_of, finish

from broker_sim.__main__ import main
from txnlog_spark import foreach_batch

BEGIN_S = 1_000_000
RETAIN = "spark.sql.streaming.minBatchesToRetain"
REFUSED = "[TXNLOG_PROGRESS.STATEFUL_REPLANNED]"


@pytest.fixture
def one_partition(both_pipe: Pipe, unique: Callable[[str], str]) -> Pipe:
    """Return a pipe with one input partition on both brokers: a watermark needs events in order."""
    both_pipe.input = create_topic(both_pipe.bootstrap, unique("in-1"), 1)
    return both_pipe


def windows(rows: DataFrame) -> DataFrame:
    """Count the events of each 10 s, written once the watermark has passed them."""
    seconds = rows.selectExpr("timestamp_seconds(CAST(CAST(value AS STRING) AS LONG)) AS t")
    counts = seconds.withWatermark("t", "0 seconds").groupBy(sf.window("t", "10 seconds")).count()
    start = f"CAST(unix_timestamp(window.start) - {BEGIN_S} AS STRING)"
    return counts.selectExpr(f"{start} AS key", f"concat({start}, ':', count) AS value")


def feed_event(pipe: Pipe, at_s: int) -> None:
    pipe.feed([BEGIN_S + at_s])


def run_windows(pipe: Pipe, **trigger: Any) -> None:
    trigger = trigger or {"availableNow": True}
    finish(pipe.write(windows(pipe.stream())).trigger(**trigger).start())


def lose_tail(pipe: Pipe, count: int) -> list[int]:
    """Lose the newest batches from both logs; returns their ids."""
    lost = pipe.logged("offsets")[-count:]
    for batch_id in lost:
        pipe.lose("offsets", batch_id)
        if batch_id in pipe.logged("commits"):
            pipe.lose("commits", batch_id)
    return lost


@pytest.mark.invariant(59)
def test_a_window_query_that_lost_its_newest_plans_is_refused_and_goes_on_once_they_are_restored(
    one_partition: Pipe, tmp_path: Path
) -> None:
    """Two batches planned as one close other windows than the two did."""
    pipe = one_partition
    for at_s in (10, 20, 30):
        feed_event(pipe, at_s)
        run_windows(pipe, once=True)
    whole = tmp_path / "whole"
    shutil.copytree(pipe.checkpoint, whole)
    feed_event(pipe, 40)
    for lost, starts in ((1, 1), (2, 2)):
        lose_tail(pipe, lost)
        for _ in range(starts):
            text = error_of(lambda: run_windows(pipe))
            assert REFUSED in text
            assert "Nothing was written" in text
        shutil.rmtree(pipe.checkpoint)
        shutil.copytree(whole, pipe.checkpoint)
    feed_event(pipe, 50)
    run_windows(pipe)
    assert pipe.output_values("read_uncommitted") == ["10:1", "20:1", "30:1", "40:1"]


@pytest.mark.invariant(59)
def test_a_lost_batch_without_data_of_a_window_query_is_not_taken_for_one_with_data(
    one_partition: Pipe,
) -> None:
    pipe = one_partition
    for at_s in (10, 20):
        feed_event(pipe, at_s)
        run_windows(pipe)
    (lost,) = lose_tail(pipe, 1)
    feed_event(pipe, 30)
    text = error_of(lambda: run_windows(pipe))
    assert REFUSED in text
    assert f"offsets/{lost}" in text
    assert pipe.output_values("read_uncommitted") == ["10:1"]


def alerts(pipe: Pipe, **options: Any) -> Callable[[DataFrame, int], None]:
    """A function that writes the rows whose value begins with "alert", if there are any."""
    sink = {
        "kafka.bootstrap.servers": pipe.bootstrap,
        "topic": pipe.output,
        "checkpointLocation": str(pipe.checkpoint),
        "kafka.group.id": pipe.group,
    }
    write = foreach_batch(lambda rows: rows.select("key", "value"), **(sink | options))

    def function(batch: DataFrame, batch_id: int) -> None:
        found = batch.where("CAST(value AS STRING) LIKE 'alert%'")
        if not found.isEmpty():
            write(found, batch_id)

    return function


def run_function(pipe: Pipe, function: Callable[[DataFrame, int], None], **source: Any) -> None:
    """Run the function's query to the end of its input; raise the error that stopped the query."""
    rows = pipe.stream(**({"startingOffsets": "committedOrEarliest"} | source))
    writer = rows.writeStream.foreachBatch(function)
    writer = writer.option("checkpointLocation", str(pipe.checkpoint))
    finish(writer.trigger(availableNow=True).start())


@pytest.fixture
def retains_few(one_partition: Pipe):
    """Spark purges all but the newest entries of its logs, as it does after 100 batches."""
    conf = one_partition.spark.conf
    conf.set(RETAIN, "1")
    yield one_partition
    conf.unset(RETAIN)


def quiet(pipe: Pipe, count: int) -> None:
    """Batches of one run that the function leaves out."""
    pipe.feed(f"quiet-{number}" for number in range(count))
    run_function(pipe, alerts(pipe), maxOffsetsPerTrigger=1)


@pytest.mark.parametrize("quiet_batches", [0, 4])
def test_an_old_checkpoint_that_comes_back_is_refused_however_long_its_function_was_quiet(
    retains_few: Pipe, quiet_batches: int
) -> None:
    pipe = retains_few
    pipe.feed(["alert-0"])
    run_function(pipe, alerts(pipe))
    if quiet_batches:
        quiet(pipe, quiet_batches)
    old = pipe.checkpoint
    pipe.checkpoint = old.with_name("new")  # the old one is believed to be lost
    pipe.feed(["alert-1"])
    run_function(pipe, alerts(pipe), startingOffsets="committed")
    other, pipe.checkpoint = pipe.query_id, old
    text = error_of(lambda: run_function(pipe, alerts(pipe)))
    assert "[TXNLOG_PROGRESS.COMMITTED_OFFSETS_MOVED]" in text
    assert f"Query {other} has committed them" in text
    assert pipe.output_values("read_uncommitted") == ["alert-0", "alert-1"]


def test_the_first_alert_of_a_job_may_come_after_spark_has_purged_where_it_began(
    retains_few: Pipe,
) -> None:
    pipe = retains_few
    pipe.feed(["alert-0"])
    run_function(pipe, alerts(pipe))
    pipe.checkpoint = pipe.checkpoint.with_name("new")
    quiet(pipe, 4)
    assert 0 not in pipe.logged("offsets")
    pipe.feed(["alert-1"])
    run_function(pipe, alerts(pipe))
    assert pipe.output_values("read_uncommitted") == ["alert-0", "alert-1"]


def delete_records(pipe: Pipe, before: int) -> None:
    """Delete the records below an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": pipe.bootstrap})
    gone = admin.delete_records([TopicPartition(pipe.input, 0, before)])
    for each in gone.values():
        each.result(30)


def test_a_committed_batch_whose_input_is_gone_is_skipped_without_reading_it(
    one_partition: Pipe,
) -> None:
    """Killed between the brokers' commit and Spark's, and down for longer than the retention."""
    pipe = one_partition
    for first in (0, 5):
        pipe.feed(range(first, first + 5))
        pipe.copy()
    pipe.lose("commits", pipe.logged("commits")[-1])
    delete_records(pipe, 10)
    pipe.feed(range(10, 13))
    pipe.copy()
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(13)))


def test_a_backup_of_any_age_goes_forward_at_once_without_its_input_and_over_every_limit(
    one_partition: Pipe, tmp_path: Path
) -> None:
    pipe = one_partition
    limit = {"maxOffsetsPerTrigger": 2}
    pipe.feed(range(4))
    pipe.copy(source=limit)
    backup = tmp_path / "backup"
    shutil.copytree(pipe.checkpoint, backup)
    pipe.feed(range(4, 10))
    pipe.copy(source=limit)
    newest = pipe.logged("offsets")[-1]
    shutil.rmtree(pipe.checkpoint)
    shutil.copytree(backup, pipe.checkpoint)
    delete_records(pipe, 9)
    pipe.feed(range(10, 12))
    pipe.copy(source=limit)
    assert pipe.logged("offsets")[-1] < newest, "the batches have the numbers of others"
    pipe.feed(range(12, 14))
    pipe.copy(source=limit)
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(14)))


class TwoSinks:
    """A query whose function writes to two topics; the last sink has the group."""

    def __init__(self, pipe: Pipe, first: str) -> None:
        self.pipe, self.first = pipe, first

    def run(self, checkpoint: str, **source: Any) -> None:
        """Run the query once, with the checkpoint of this name."""
        pipe = self.pipe
        pipe.checkpoint = pipe.checkpoint.with_name(checkpoint)
        sink = {"kafka.bootstrap.servers": pipe.bootstrap, "checkpointLocation": pipe.checkpoint}
        group = {"kafka.group.id": pipe.group}
        first = foreach_batch(name="first", topic=self.first, **sink)
        last = foreach_batch(name="last", topic=pipe.output, **sink, **group)

        def function(batch: DataFrame, batch_id: int) -> None:
            rows = batch.select("key", "value")
            first(rows, batch_id)
            last(rows, batch_id)

        run_function(pipe, function, **({"maxOffsetsPerTrigger": 4} | source))

    def check(self, count: int) -> None:
        """Each of so many rows is in each topic once."""
        every = sorted(map(str, range(count)))
        found = read_topic(self.pipe.bootstrap, self.first, isolation="read_uncommitted")
        assert values_of(found) == every
        assert self.pipe.output_values("read_uncommitted") == every


@pytest.fixture
def two_sinks(one_partition: Pipe, unique: Callable[[str], str]) -> TwoSinks:
    return TwoSinks(one_partition, create_topic(one_partition.bootstrap, unique("first"), 1))


@pytest.mark.parametrize("reads_with_group", [False, True])
def test_no_sink_of_a_query_writes_again_after_a_lost_checkpoint_and_the_remedy_helps(
    two_sinks: TwoSinks, reads_with_group: bool
) -> None:
    pipe = two_sinks.pipe
    group = {} if reads_with_group else {"kafka.group.id": None}
    pipe.feed(range(6))
    two_sinks.run("a", startingOffsets="earliest", **group)
    for _ in range(2):
        text = error_of(lambda: two_sinks.run("b", startingOffsets="earliest", **group))
        assert "[TXNLOG_PROGRESS.GROUP_HAS_OFFSETS]" in text
        assert "Sink 'first' wrote nothing" in text
        assert f"group.id='{pipe.group}' on the reader as well" in text
    two_sinks.check(6)
    pipe.feed(range(6, 8))
    two_sinks.run("c", startingOffsets="committed")
    two_sinks.check(8)


def test_the_safe_setting_works_for_two_sinks_and_the_old_checkpoint_is_refused(
    two_sinks: TwoSinks,
) -> None:
    pipe = two_sinks.pipe
    pipe.feed(range(6))
    two_sinks.run("a")
    pipe.feed(range(6, 9))
    two_sinks.run("b")
    pipe.feed(range(9, 12))
    text = error_of(lambda: two_sinks.run("a"))
    assert "[TXNLOG_PROGRESS.COMMITTED_OFFSETS_MOVED]" in text
    assert "Sink 'first' wrote nothing" in text
    two_sinks.check(9)
    two_sinks.run("b")
    two_sinks.check(12)


@pytest.mark.parametrize("is_function", [False, True])
def test_an_output_topic_that_is_deleted_and_created_again_is_noticed_by_its_id(
    one_partition: Pipe, is_function: bool
) -> None:
    """Such as by the broker itself, with one partition in place of three."""
    pipe = one_partition

    def run(**sink: object) -> None:
        if not is_function:
            pipe.copy(sink=sink)
            return
        run_function(pipe, alerts(pipe, **sink))

    pipe.feed(["alert-0"])
    run()
    admin = AdminClient({"bootstrap.servers": pipe.bootstrap})
    for each in admin.delete_topics([pipe.output]).values():
        each.result(30)
    create_topic(pipe.bootstrap, pipe.output, 1)
    pipe.feed(["alert-1"])
    for _ in range(2):
        text = error_of(run)
        assert "[TXNLOG_DATA_LOSS" in text
        assert f"topic {pipe.output} was deleted and created again" in text
        assert "with 3 partitions before" in text
        assert "with 1 now" in text
    run(failOnDataLoss="false")
    pipe.feed(["alert-2"])
    run()
    assert pipe.output_values("read_uncommitted") == ["alert-1", "alert-2"]


def test_a_lost_checkpoint_and_a_lost_offset_are_refused_and_the_advice_writes_each_row_once(
    both_pipe: Pipe,
) -> None:
    """An idle partition's offset expires first; `committed` would read the partition again."""
    pipe = both_pipe
    pipe.feed(range(20))
    pipe.copy()
    shutil.rmtree(pipe.checkpoint)
    ends = committed_offsets(pipe.bootstrap, pipe.group, pipe.input, PARTITIONS)
    where = ("--bootstrap-server", pipe.bootstrap, "--group", pipe.group)
    assert main(["groups", "delete-offsets", *where, "--topic", f"{pipe.input}:1"]) == 0
    pipe.feed(range(20, 30))
    for word in ("committed", "committedOrEarliest"):
        text = pipe.copy_error(source={"startingOffsets": word})
        assert "[TXNLOG_PROGRESS.NO_COMMITTED_OFFSETS]" in text
        assert f"({pipe.input}-1)" in text
    advised = json.loads(text.rpartition("partition: ")[2].partition(" (")[0])
    advised[pipe.input]["1"] = ends[1]
    pipe.copy(source={"startingOffsets": json.dumps(advised)})
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(30)))


def test_a_start_that_names_the_group_s_offsets_begins_there(one_partition: Pipe) -> None:
    pipe = one_partition
    pipe.feed(range(5))
    pipe.copy()
    shutil.rmtree(pipe.checkpoint)
    pipe.feed(range(5, 8))
    elsewhere = {"startingOffsets": f'{{"{pipe.input}":{{"0":3}}}}'}
    assert "[TXNLOG_PROGRESS.GROUP_HAS_OFFSETS]" in pipe.copy_error(source=elsewhere)
    shutil.rmtree(pipe.checkpoint)
    pipe.copy(source={"startingOffsets": f'{{"{pipe.input}":{{"0":5}}}}'})
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(8)))
