"""The Arrow batches of a read, in the schema of `source.schema`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.decode import HEADERS_TYPE, DecodedColumns

TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
"""What Spark's timestamp type can hold, in ms."""

_ARROW_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
_ARROW_SCHEMA_WITH_HEADERS = _ARROW_SCHEMA.append(pa.field("headers", HEADERS_TYPE))


def to_arrow(columns: DecodedColumns, partition: TopicPartition) -> pa.RecordBatch:
    """One Arrow batch of decoded records.

    A record without a timestamp has a null one, as has one whose timestamp Spark's microseconds
    cannot hold (a producer that counted in nanoseconds).
    """
    count = len(columns.offsets)
    missing = (columns.timestamps < 0) | (columns.timestamps > TIMESTAMP_MS_MAX)
    timestamps_us = pa.array(
        np.where(missing, 0, columns.timestamps) * 1000, pa.timestamp("us", tz="UTC"), mask=missing
    )
    arrays = [
        columns.keys,
        columns.values,
        pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(count, np.int8)), pa.array([partition.topic])
        ).dictionary_decode(),
        pa.array(np.full(count, partition.partition, np.int32)),
        pa.array(columns.offsets),
        timestamps_us,
        pa.array(columns.timestamp_types),
    ]
    if columns.headers is None:
        return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)
    headers = pa.ListArray.from_arrays(
        columns.headers.offsets,
        columns.headers.values,
        type=HEADERS_TYPE,
        mask=pc.equal(pc.list_value_length(columns.headers), 0),
    )
    return pa.RecordBatch.from_arrays([*arrays, headers], schema=_ARROW_SCHEMA_WITH_HEADERS)
