"""Rows of a read: what the columns of a record become."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.codec.decode import DecodedColumns, FetchedRange, decode_batches, iter_decoded
from txnlog_spark.errors import MalformedTimestamp
from txnlog_spark.source.columns import to_arrow


def rows_at(*timestamps_ms: int) -> pa.RecordBatch:
    """Build one row for each of these timestamps."""
    count = len(timestamps_ms)
    columns = DecodedColumns(
        keys=pa.nulls(count, pa.binary()),
        values=pa.nulls(count, pa.binary()),
        offsets=np.arange(count),
        timestamps=np.array(timestamps_ms, np.int64),
        timestamp_types=np.zeros(count, np.int32),
        headers=None,
        ranges=np.zeros(count, np.int32),
    )
    return to_arrow(columns, [TopicPartition("t", 0)])


LAST_MS = (2**63 - 1) // 1000


def test_a_timestamp_is_the_one_that_sparks_own_source_has() -> None:
    """Kafka's -1, no timestamp, is a time in it too; microseconds are of a later year."""
    given = [-1, 0, 1_718_000_000_000, 1_718_000_000_000_000, LAST_MS, -LAST_MS]
    batch = rows_at(*given)
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [ms * 1000 for ms in given]
    shown = batch["timestamp"][2].as_py()
    assert shown == datetime.datetime(2024, 6, 10, 6, 13, 20, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    "timestamp_ms", [1_718_000_000_000_000_000, LAST_MS + 1, 2**63 - 1, -LAST_MS - 1, -(2**63)]
)
def test_a_timestamp_that_spark_cannot_hold_is_refused_with_its_offset(timestamp_ms: int) -> None:
    """A producer may count nanoseconds, and brokers before Kafka 4 accept such a timestamp."""
    with pytest.raises(MalformedTimestamp, match=f"t-0 at offset 2 .* {timestamp_ms} ms") as caught:
        rows_at(0, -1, timestamp_ms, timestamp_ms)
    assert "startingOffsets name offset 3 for this partition" in str(caught.value)


def test_a_record_without_headers_has_null_and_no_empty_list_as_in_sparks_own_source() -> None:
    header = ("h", b"1"), ("n", None)
    data = encode_batch([Record(None, b"a", 1, header), Record(None, b"b", 1)])
    columns = decode_batches(data, start_offset=0, end_offset=2, aborted=None, include_headers=True)
    batch = to_arrow(columns, [TopicPartition("t", 0)])
    expected = [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    assert batch["headers"].to_pylist() == [expected, None]


def test_rows_of_several_ranges_name_the_topic_and_partition_of_theirs() -> None:
    partitions = [TopicPartition("t", 7), TopicPartition("u", 0), TopicPartition("t", 0)]
    data = encode_batch([Record(None, b"a", 1), Record(None, b"b", 1)], base_offset=5)
    ranges = [FetchedRange(data, start, 7, None) for start in (5, 6, 7)]
    (columns,) = iter_decoded(ranges)
    rows = to_arrow(columns, partitions).select(["topic", "partition", "offset"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [("t", 7, 5), ("t", 7, 6), ("u", 0, 6)]
