"""foreachBatch through `txnlog_spark.foreach_batch`: update mode, several sinks, and replays."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame
from support.clients.librdkafka import create_topic, read_topic, values_of
from support.spark.connector import finish, shown_error

from txnlog_spark import foreach_batch
from txnlog_spark.errors import OptionError
from txnlog_spark.foreachbatch import QUERY_ID_PROPERTY
from txnlog_spark.sink.writers import BATCH_ID_PROPERTY


def counted(rows: DataFrame) -> DataFrame:
    """Return the count of each value, as update mode gives it."""
    words = rows.selectExpr("CAST(value AS STRING) AS word")
    return words.groupBy("word").count()


def as_records(counts: DataFrame) -> DataFrame:
    return counts.selectExpr("word AS key", "concat(word, '=', count) AS value")


def records(rows: DataFrame) -> DataFrame:
    return rows.select("key", "value")


def sink(pipe: Any, transform: Any = None, **changes: Any) -> Any:
    options = {
        "kafka.bootstrap.servers": pipe.bootstrap,
        "topic": pipe.output,
        "checkpointLocation": str(pipe.checkpoint),
        "group.id": pipe.group,
    }
    return foreach_batch(transform or records, **(options | changes))


def run(pipe: Any, rows: DataFrame, function: Any, mode: str = "append") -> None:
    writer = rows.writeStream.outputMode(mode).foreachBatch(function)
    writer = writer.option("checkpointLocation", str(pipe.checkpoint))
    finish(writer.trigger(availableNow=True).start())


@pytest.mark.matrix
def test_update_mode_is_exactly_once_through_replays(both_pipe) -> None:
    pipe = both_pipe
    pipe.feed(["a", "b", "a"])
    run(pipe, counted(pipe.stream()), sink(pipe, as_records), "update")
    pipe.feed(["a", "c"])
    run(pipe, counted(pipe.stream()), sink(pipe, as_records), "update")
    expected = sorted(["a=2", "b=1", "a=3", "c=1"])
    assert pipe.output_values() == expected
    pipe.lose("commits", max(pipe.logged("commits")))
    run(pipe, counted(pipe.stream()), sink(pipe, as_records), "update")
    assert pipe.output_values("read_uncommitted") == expected


def test_the_groups_offsets_move_with_the_output(pipe) -> None:
    pipe.feed(range(5))
    run(pipe, pipe.stream(), sink(pipe))
    pipe.checkpoint.rename(pipe.checkpoint.with_name("lost"))
    pipe.feed(range(5, 8))
    rows = pipe.stream(startingOffsets="committed")
    run(pipe, rows, sink(pipe))
    run(pipe, rows, sink(pipe))
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(8)))


@pytest.mark.matrix
def test_a_failure_between_two_sinks_doubles_neither(pipe) -> None:
    second = create_topic(pipe.bootstrap, pipe.output + "-second", 1)
    first = sink(pipe, name="first", **{"group.id": None})
    other = sink(pipe, name="second", topic=second)
    fails = [True]

    def both(batch: DataFrame, batch_id: int) -> None:
        first(batch, batch_id)
        if fails.pop() if fails else False:
            raise RuntimeError("between the two")
        other(batch, batch_id)

    pipe.feed(range(4))
    with pytest.raises(Exception, match="between the two"):
        run(pipe, pipe.stream(), both)
    pipe.feed(range(4, 6))
    run(pipe, pipe.stream(), both)
    expected = sorted(map(str, range(6)))
    assert pipe.output_values("read_uncommitted") == expected
    seen = read_topic(pipe.bootstrap, second, isolation="read_uncommitted")
    assert values_of(seen) == expected


def test_a_function_that_catches_an_error_and_writes_the_batch_again_writes_it_once(
    both_pipe,
) -> None:
    """The rows are too many for commit messages, and wait in the staging server."""
    pipe = both_pipe
    config = {"max.message.bytes": "300000"}
    pipe.output = create_topic(pipe.bootstrap, pipe.output + "-small", 3, config)
    errors: list[str] = []

    def of_size(size: int) -> Any:
        value = f"repeat(CAST(value AS STRING), {size}) AS value"
        return sink(pipe, lambda rows: rows.selectExpr("key", value))

    fails, writes = of_size(400_000), of_size(200_000)

    def insists(batch: DataFrame, batch_id: int) -> None:
        try:
            fails(batch, batch_id)
        except Exception as error:
            errors.append(shown_error(error))
        writes(batch, batch_id)

    values = "abcdefghijklmnopqrst"
    pipe.feed(values)
    run(pipe, pipe.stream(maxOffsetsPerTrigger=10), insists)
    assert len(errors) == 2
    assert all("MESSAGE_TOO_LARGE" in error for error in errors)
    assert pipe.output_values() == [each * 200_000 for each in values]


def test_a_batch_without_rows_moves_offsets_and_progress(pipe) -> None:
    pipe.feed(["x", "y"])

    def last_letter(rows: DataFrame) -> DataFrame:
        return records(rows).where("CAST(value AS STRING) = 'z'")

    run(pipe, pipe.stream(), sink(pipe, last_letter))
    pipe.feed(["z"])
    run(pipe, pipe.stream(), sink(pipe, last_letter))
    assert pipe.output_values("read_uncommitted") == ["z"]


def untold(function: Any) -> Any:
    """The tasks that write are not told their query, as in Spark Connect."""

    def write(batch: DataFrame, batch_id: int) -> None:
        context = batch.sparkSession.sparkContext
        for name in (BATCH_ID_PROPERTY, QUERY_ID_PROPERTY):
            context.setLocalProperty(name, None)
        function(batch, batch_id)

    return write


def test_tasks_that_are_not_told_their_query_write_exactly_once_too(pipe) -> None:
    pipe.feed(range(5))
    run(pipe, pipe.stream(), untold(sink(pipe)))
    pipe.lose("commits", 0)
    pipe.feed(range(5, 10))
    run(pipe, pipe.stream(), untold(sink(pipe)))
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(10)))


def test_tasks_that_are_not_told_their_query_stage_where_the_others_of_the_query_do(
    pipe, tmp_path
) -> None:
    staged = tmp_path / "staged"
    folders: list[str] = []

    def seen(function: Any) -> Any:
        def write(batch: DataFrame, batch_id: int) -> None:
            function(batch, batch_id)
            folders.extend(each.name for each in staged.iterdir())

        return write

    function = sink(pipe, stagingLocation=str(staged))
    for letters, write in (("abcdefgh", function), ("ijklmnop", untold(function))):
        pipe.feed([letter * 200_000 for letter in letters])
        run(pipe, pipe.stream(), seen(write))
    assert len(folders) == 2
    assert len(set(folders)) == 1
    assert not list(staged.rglob("*.staged"))
    assert pipe.output_values() == [letter * 200_000 for letter in "abcdefghijklmnop"]


@pytest.mark.parametrize("are_told", [True, False])
def test_the_checkpoint_of_another_query_is_refused_also_by_tasks_that_are_not_told_theirs(
    pipe, tmp_path, are_told: bool
) -> None:
    pipe.feed(["x"])
    run(pipe, pipe.stream(), sink(pipe))
    other = sink(pipe, checkpointLocation=str(pipe.checkpoint))
    pipe.checkpoint = tmp_path / "another"
    with pytest.raises(Exception, match="this query's own checkpoint"):
        run(pipe, pipe.stream(), other if are_told else untold(other))
    assert pipe.output_values("read_uncommitted") == ["x"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "the query's own checkpointLocation"),
        ({"checkpointLocation": "c", "txnVersion": 3}, "remove it"),
        ({"checkpointLocation": "c", "txnAppId": "a"}, "remove it"),
        ({"checkpointLocation": "c", "name": "a/b"}, "letters, digits"),
    ],
)
def test_wrong_options_are_refused_before_the_query_starts(options, told) -> None:
    with pytest.raises(OptionError, match=told):
        foreach_batch(None, **options)
