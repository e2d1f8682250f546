"""The Arrow batches of a read, in the schema of `source.schema`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.decode import DecodedColumns
from txnlog_spark.codec.record_headers import HEADERS_TYPE
from txnlog_spark.errors import MalformedTimestamp, MalformedValue
from txnlog_spark.formats.decoded import Decoded
from txnlog_spark.formats.read_formats import BINARY, ReadFormats
from txnlog_spark.source.schema import source_schema

TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
"""Latest time of Spark's timestamp type, in ms."""


@lru_cache(maxsize=16)
def _arrow_schema(formats: ReadFormats, include_headers: bool) -> pa.Schema:
    schema = source_schema(include_headers=include_headers, formats=formats)
    return to_arrow_schema(schema, timezone="UTC")


def to_arrow(
    columns: DecodedColumns, partitions: Sequence[TopicPartition], formats: ReadFormats = BINARY
) -> pa.RecordBatch:
    """Make an Arrow batch of decoded records; `partitions` are the partitions of the ranges.

    A record without a timestamp has -1 ms, as in Spark. Raises MalformedValue, MalformedTimestamp.
    """
    # A time that Spark cannot hold is an error: cast wrongly it would be another time.
    ms = columns.timestamps
    if len(wrong := np.flatnonzero((ms > TIMESTAMP_MS_MAX) | (ms < -TIMESTAMP_MS_MAX))):
        row = int(wrong[0])
        partition, offset = partitions[columns.ranges[row]], int(columns.offsets[row])
        raise MalformedTimestamp(partition, offset, int(ms[row]))
    # Keys and values, decoded by their formats.
    sides = {"key": columns.keys, "value": columns.values}
    decoded = {e.side: e.decode(sides[e.side], columns.named_headers) for e in formats.given}
    for each in formats.given:
        problem = decoded[each.side].first_problem
        if problem is not None and not each.permissive:
            row, text = problem
            partition = partitions[columns.ranges[row]]
            raise MalformedValue(each.side, partition, int(columns.offsets[row]), text)
    # The columns of `source_schema`, in its order.
    topics = pa.array([each.topic for each in partitions])
    numbers = np.array([each.partition for each in partitions], np.int32)
    arrays = [
        *(decoded[side].values if side in decoded else sides[side] for side in sides),
        topics.take(pa.array(columns.ranges)),
        pa.array(numbers[columns.ranges]),
        pa.array(columns.offsets),
        pa.array(ms * 1000, pa.timestamp("us", tz="UTC")),
        pa.array(columns.timestamp_types),
    ]
    if columns.headers is not None:
        headers = pa.ListArray.from_arrays(
            columns.headers.offsets,
            columns.headers.values,
            type=HEADERS_TYPE,
            mask=pc.equal(pc.list_value_length(columns.headers), 0),
        )
        arrays.append(headers)
    arrays += _more_arrays(formats, sides, decoded, len(columns.offsets))
    schema = _arrow_schema(formats, columns.headers is not None)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _more_arrays(
    formats: ReadFormats, sides: dict[str, Any], decoded: dict[str, Decoded], count: int
) -> list[Any]:
    """Make the columns of `ReadFormats.more_columns`."""
    if not formats.with_bytes:
        return []
    problems = {
        side: pa.nulls(count, pa.string()) if found.problems is None else found.problems
        for side, found in decoded.items()
    }
    malformed = reduce(pc.or_, (each.is_valid() for each in problems.values()))
    no_bytes = pa.scalar(None, pa.binary())
    made = [pc.if_else(malformed, sides[side], no_bytes) for side in formats.with_bytes]
    return made + [problems[each.side] for each in formats.given if each.permissive]
