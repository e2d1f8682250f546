"""Run ids, and writers in foreachBatch: sinks with and without names, threads, guards, groups."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql import DataFrame
from support.clients.librdkafka import create_topic, read_topic, values_of
from support.spark.connector import Pipe, finish

from txnlog_spark import foreach_batch

Function = Callable[[DataFrame, int], None]


class Sinks:
    """A query whose function writes to two topics."""

    def __init__(self, pipe: Pipe, second: str) -> None:
        self.pipe = pipe
        self.topics = pipe.output, second
        self.fed = 0

    def sink(
        self, topic: str, name: str = "", group: str | None = None, **options: Any
    ) -> Function:
        """A sink without a group, unless one is given."""
        given = {
            "kafka.bootstrap.servers": self.pipe.bootstrap,
            "topic": topic,
            "checkpointLocation": str(self.pipe.checkpoint),
            "kafka.group.id": group,
        }
        return foreach_batch(
            lambda rows: rows.select("key", "value"), name=name, **(given | options)
        )

    def feed(self, count: int = 4) -> None:
        """More rows of input: 00, 01 ..."""
        self.pipe.feed([f"{number:02}" for number in range(self.fed, self.fed + count)])
        self.fed += count

    def run(self, function: Function, **source: Any) -> None:
        """Run the query to the end of its input; raise the error that stopped the query."""
        rows = self.pipe.stream(**({"kafka.group.id": None} | source))
        writer = rows.writeStream.foreachBatch(function)
        writer = writer.option("checkpointLocation", str(self.pipe.checkpoint))
        finish(writer.trigger(availableNow=True).start())

    def written(self) -> list[list[str]]:
        """Return the values in each topic, aborted values included."""
        return [
            values_of(read_topic(self.pipe.bootstrap, topic, isolation="read_uncommitted"))
            for topic in self.topics
        ]

    def check(self) -> None:
        """Each row is in each topic once, and nothing was aborted."""
        every = [f"{number:02}" for number in range(self.fed)]
        assert self.written() == [every, every]


@pytest.fixture
def sinks(both_pipe, unique: Callable[[str], str]) -> Sinks:
    """Return the sinks on both brokers."""
    return Sinks(both_pipe, create_topic(both_pipe.bootstrap, unique("second"), 1))


def after_each_other(*functions: Function) -> Function:
    def write(batch: DataFrame, batch_id: int) -> None:
        for function in functions:
            function(batch, batch_id)

    return write


def test_a_second_sink_without_a_name_is_refused_and_loses_nothing(sinks: Sinks) -> None:
    first, second = sinks.topics
    sinks.feed()
    function = after_each_other(sinks.sink(first), sinks.sink(second))
    with pytest.raises(Exception, match="name of its own") as refused:
        sinks.run(function)
    assert "Leave the sink that wrote it as it is" in str(refused.value)
    with pytest.raises(Exception, match="name of its own"):
        sinks.run(function)
    named = after_each_other(sinks.sink(first), sinks.sink(second, "second"))
    sinks.run(named)
    sinks.feed()
    sinks.run(named)
    sinks.check()


def test_a_sink_that_is_not_called_for_empty_batches_is_exactly_once(sinks: Sinks) -> None:
    first, second = sinks.topics
    guarded, always = sinks.sink(first, "guarded"), sinks.sink(second, "always")

    def write(batch: DataFrame, batch_id: int) -> None:
        always(batch, batch_id)
        rare = batch.where("CAST(value AS STRING) IN ('00', '03', '04')")
        if rare.isEmpty():
            return
        guarded(rare, batch_id)

    for _ in range(3):
        sinks.feed(2)
        sinks.run(write, maxOffsetsPerTrigger=1)
    sinks.pipe.lose("commits", max(sinks.pipe.logged("commits")))
    sinks.run(write)
    every = [f"{number:02}" for number in range(6)]
    assert sinks.written() == [["00", "03", "04"], every]


@pytest.mark.live
def test_sinks_in_threads_of_the_function_write_exactly_once(sinks: Sinks) -> None:
    first, second = sinks.topics
    each = sinks.sink(first, "first"), sinks.sink(second, "second")

    def side_by_side(batch: DataFrame, batch_id: int) -> None:
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(write, batch, batch_id) for write in each]:
                done.result()

    for limit in (2, None):
        sinks.feed()
        sinks.run(side_by_side, maxOffsetsPerTrigger=limit)
    sinks.pipe.lose("commits", max(sinks.pipe.logged("commits")))
    sinks.run(side_by_side)
    sinks.check()


def test_a_function_that_sets_a_job_group_has_another_run_id_in_each_run(sinks: Sinks) -> None:
    first, second = sinks.topics
    both = after_each_other(sinks.sink(first, "first"), sinks.sink(second, "second"))

    def grouped(batch: DataFrame, batch_id: int) -> None:
        batch.sparkSession.sparkContext.setJobGroup("orders", "the job group of all its runs")
        both(batch, batch_id)

    runs = []
    for limit in (2, None, None):
        sinks.feed()
        sinks.run(grouped, maxOffsetsPerTrigger=limit)
        folders = "txnlog/sinks/first", "txnlog/sinks/second"
        runs.append([recorded(sinks.pipe, folder) for folder in folders])
    sinks.check()
    run_ids = [first["run_id"] for first, _ in runs]
    assert len({*run_ids, "orders"}) == 4
    for number, names in enumerate(runs):
        for record in names:
            assert record["run_id"] == run_ids[number], "the sinks of a run have one run id"
            assert record["ended_runs"] == run_ids[:number]


def recorded(pipe: Pipe, folder: str) -> dict[str, Any]:
    """The record of what the sink with this folder has begun last."""
    path = pipe.checkpoint / folder / "attempt.json"
    return dict(json.loads(path.read_text()))


def test_named_sinks_with_one_transactional_id_do_not_fence_each_other(sinks: Sinks) -> None:
    name = {"kafka.transactional.id": sinks.pipe.group}
    first, second = sinks.topics
    both = after_each_other(
        sinks.sink(first, "first", **name), sinks.sink(second, "second", **name)
    )
    for _ in range(2):
        sinks.feed()
        sinks.run(both)
    sinks.check()


def test_a_group_for_two_sinks_or_for_one_made_inside_of_the_function_is_refused(
    sinks: Sinks,
) -> None:
    """The group's offsets would be ahead of an output, or an output would not be compared."""
    group = sinks.pipe.group
    first, second = sinks.topics
    sinks.feed()
    twice = after_each_other(sinks.sink(first, "first", group), sinks.sink(second, "second", group))
    with pytest.raises(Exception, match="set it for the sink that is called last only"):
        sinks.run(twice)

    def late(batch: DataFrame, batch_id: int) -> None:
        sinks.sink(first, "first")(batch, batch_id)
        sinks.sink(second, "second", group)(batch, batch_id)

    sinks.run(after_each_other(sinks.sink(first, "first"), sinks.sink(second, "second", group)))
    sinks.check()
    sinks.pipe.checkpoint = sinks.pipe.checkpoint.with_name("another")
    with pytest.raises(Exception, match="make the sink 'second' before the query is started"):
        sinks.run(late)


def test_all_batches_of_a_run_have_one_run_id_and_each_restart_ends_one(pipe: Pipe) -> None:
    """Pins Spark's behaviour: one instance of a data source for all commits of a started query."""
    ended: list[str] = []
    for number in range(3):
        rows = pipe.stream().select("key", "value")
        query = pipe.write(rows).trigger(processingTime="100 milliseconds").start()
        seen = []
        try:
            for value in range(3):
                pipe.feed([f"{number}-{value}"])
                query.processAllAvailable()
                seen.append(recorded(pipe, "txnlog"))
        finally:
            query.stop()
        assert [each["batch_id"] for each in seen] == list(range(3 * number, 3 * number + 3))
        (run_id,) = {each["run_id"] for each in seen}
        assert run_id not in ended
        assert all(each["ended_runs"] == ended for each in seen)
        ended = [*ended, run_id]
    assert pipe.output_values() == sorted(f"{n}-{value}" for n in range(3) for value in range(3))
