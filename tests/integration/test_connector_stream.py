"""readStream -> transform -> writeStream on real brokers, and what Spark may ask of a source."""

from __future__ import annotations

import contextlib

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from support.brokers.probe import wait_until
from support.clients.librdkafka import committed_offsets, create_topic
from support.clients.librdkafka_client import LibrdkafkaAdmin
from support.spark.connector import Pipe, error_of, finish


def texts(numbers: range) -> list[str]:
    return sorted(map(str, numbers))


@pytest.mark.matrix
def test_every_record_is_in_the_output_once_with_the_groups_offsets_at_the_end(
    both_pipe: Pipe,
) -> None:
    """The tasks split partitions."""
    pipe = both_pipe
    pipe.feed(range(300))
    query = pipe.copy(
        source={"minPartitions": 8, "maxRecordsPerPartition": 60},
        transform=lambda rows: rows.selectExpr("key", "concat(value, '!') value"),
    )
    assert pipe.output_values() == sorted(f"{n}!" for n in range(300))
    ends = committed_offsets(pipe.bootstrap, pipe.group, pipe.input, 3)
    assert sum(ends.values()) == 300
    assert query.recentProgress[-1].sources[0].endOffset.replace(" ", "").startswith('{"in')


@pytest.mark.matrix
@pytest.mark.live
def test_a_restarted_query_goes_on_where_it_was(both_pipe: Pipe) -> None:
    both_pipe.feed(range(50))
    both_pipe.copy()
    both_pipe.feed(range(50, 80))
    both_pipe.copy()
    assert both_pipe.output_values() == texts(range(80))


def test_a_query_from_latest_gets_what_came_later_also_when_its_first_batch_is_replayed(
    pipe: Pipe,
) -> None:
    pipe.feed(range(20))
    latest = {"startingOffsets": "latest"}
    pipe.copy(latest)
    assert pipe.logged("offsets") == [0]
    pipe.lose("commits", 0)
    pipe.feed(range(20, 45))
    pipe.copy(latest)
    assert pipe.output_values() == texts(range(20, 45))


def test_new_partitions_are_read_while_the_query_runs(pipe: Pipe) -> None:
    pipe.feed(range(10))
    rows = pipe.stream(failOnDataLoss="true").select("key", "value")
    query = pipe.write(rows).trigger(processingTime="200 milliseconds").start()
    try:
        wait_until(lambda: len(pipe.output_values()) == 10, "the first records")
        LibrdkafkaAdmin(pipe.bootstrap).add_partitions(pipe.input, 5)
        pipe.feed(range(10, 15), partition=4)
        wait_until(lambda: len(pipe.output_values()) == 15, "the new partition")
    finally:
        query.stop()
    assert pipe.output_values() == texts(range(15))


@pytest.mark.matrix
@pytest.mark.live
def test_a_committed_batch_that_the_commit_log_lost_is_skipped(both_pipe: Pipe) -> None:
    both_pipe.feed(range(40))
    both_pipe.copy(source={"maxOffsetsPerTrigger": 25})
    both_pipe.lose("commits", max(both_pipe.logged("commits")))
    both_pipe.feed(range(40, 60))
    both_pipe.copy(source={"maxOffsetsPerTrigger": 25})
    assert both_pipe.output_values("read_uncommitted") == texts(range(60))


def test_a_torn_commit_log_is_repaired_or_refused_but_doubles_nothing(pipe: Pipe) -> None:
    # docs/internals/faults.md D19: what a crash can leave of Spark's own commits/N.
    def copy() -> None:
        pipe.copy(source={"maxOffsetsPerTrigger": 25})

    pipe.feed(range(40))
    copy()
    entry = pipe.checkpoint / "commits" / str(max(pipe.logged("commits")))
    checksum = entry.with_name(f".{entry.name}.crc")
    whole = entry.read_bytes()
    for torn in (b"", b"v1", b'v1\n{"nextBatch'):
        checksum.unlink(missing_ok=True)
        entry.write_bytes(torn)
        with contextlib.suppress(PySparkException):  # repaired, or refused
            copy()
        assert pipe.output_values("read_uncommitted") == texts(range(40))
    checksum.unlink(missing_ok=True)
    entry.write_bytes(whole)
    # The rename never happened: only the temporary file is there.
    entry.rename(entry.with_name(f".{entry.name}.0000.tmp"))
    pipe.feed(range(40, 60))
    copy()
    assert pipe.output_values("read_uncommitted") == texts(range(60))


def test_a_committed_batch_that_both_logs_lost_is_planned_again_and_skipped(
    both_pipe: Pipe,
) -> None:
    both_pipe.feed(range(40))
    both_pipe.copy(source={"maxOffsetsPerTrigger": 25})
    last = max(both_pipe.logged("offsets"))
    both_pipe.lose("commits", last)
    both_pipe.lose("offsets", last)
    both_pipe.feed(range(40, 60))
    both_pipe.copy(source={"maxOffsetsPerTrigger": 25})
    assert both_pipe.output_values("read_uncommitted") == texts(range(60))


def test_a_committed_batch_that_comes_back_wider_stops_the_query_and_doubles_nothing(
    pipe: Pipe,
) -> None:
    pipe.feed(range(40))
    ungrouped = {"kafka.group.id": None}
    pipe.copy(ungrouped, ungrouped)
    pipe.lose("commits", 0)
    pipe.lose("offsets", 0)
    pipe.feed(range(40, 60))
    line = pipe.copy_error(source=ungrouped, sink=ungrouped)
    assert "BatchReplanned" in line
    assert "Nothing was written" in line
    assert pipe.output_values("read_uncommitted") == texts(range(40))


@pytest.mark.kafka
@pytest.mark.parametrize("broker_name", ["apache_kafka"], indirect=True)
def test_deleted_records_are_loss_unless_they_may_be_skipped(both_pipe: Pipe) -> None:
    pipe = both_pipe
    pipe.feed(range(10), partition=0)
    pipe.copy()
    pipe.feed(range(10, 20), partition=0)
    LibrdkafkaAdmin(pipe.bootstrap).delete_records((pipe.input, 0), 15)
    assert "TXNLOG_DATA_LOSS" in pipe.copy_error()
    pipe.copy(source={"failOnDataLoss": "false"})
    assert pipe.output_values() == sorted(texts(range(10)) + texts(range(15, 20)))


def test_a_recreated_topic_is_loss_and_where_that_is_allowed_it_is_read_from_its_beginning(
    both_pipe: Pipe,
) -> None:
    """The new topic has more records than the old one: offsets alone do not tell."""
    pipe, count = both_pipe, 25
    pipe.feed(range(10), partition=0)
    pipe.copy()
    LibrdkafkaAdmin(pipe.bootstrap).delete_topic(pipe.input)
    create_topic(pipe.bootstrap, pipe.input, 3)
    pipe.feed(range(10, 10 + count), partition=0)
    line = pipe.copy_error()
    assert "TXNLOG_DATA_LOSS" in line
    assert "-0: its topic was deleted and created again" in line
    assert "the former was read up to offset 10" in line
    pipe.copy(source={"failOnDataLoss": "false"})
    pipe.feed(range(50, 56), partition=0)
    pipe.copy()
    assert pipe.output_values() == sorted(
        texts(range(10)) + texts(range(10, 10 + count)) + texts(range(50, 56))
    )
    ends = committed_offsets(pipe.bootstrap, pipe.group, pipe.input, 3)
    assert sum(end for end in ends.values() if end > 0) == count + 6


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_is_recreated_before_its_batch_is_read_is_loss_or_left_out_at_once(
    pipe: Pipe, fails: bool
) -> None:
    pipe.feed(range(10), partition=0)
    read = []

    def batch(rows: DataFrame, batch_id: int) -> None:
        if not batch_id:
            LibrdkafkaAdmin(pipe.bootstrap).delete_topic(pipe.input)
            create_topic(pipe.bootstrap, pipe.input, 3)
        read.append([row.value for row in rows.collect()])
        if not batch_id:
            pipe.feed(range(10, 12), partition=0)

    rows = pipe.stream(**{"kafka.group.id": None, "failOnDataLoss": str(fails).lower()})
    query = rows.selectExpr("cast(value as string) value").writeStream.foreachBatch(batch)
    query = query.option("checkpointLocation", str(pipe.checkpoint)).start()
    if fails:
        line = error_of(lambda: finish(query))
        assert "[TXNLOG_DATA_LOSS]" in line
        assert "-0 from offset 0 to 10: its topic was deleted and created again" in line
        return
    wait_until(lambda: any(read) or not query.isActive, "the new records")
    query.stop()
    assert [value for values in read for value in values] == ["10", "11"]


@pytest.mark.matrix
def test_an_aggregation_is_written_in_complete_mode_with_its_source_offsets(pipe: Pipe) -> None:
    pipe.feed(range(30))
    buckets = pipe.stream().selectExpr("cast(cast(value as string) as int) % 3 as bucket")
    counts = buckets.groupBy("bucket").count()
    rows = counts.selectExpr("cast(bucket as string) key", "cast(count as string) value")
    finish(pipe.write(rows).outputMode("complete").trigger(availableNow=True).start())
    assert pipe.output_values() == ["10", "10", "10"]
    assert sum(committed_offsets(pipe.bootstrap, pipe.group, pipe.input, 3).values()) == 30
