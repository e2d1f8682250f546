"""The rows of a read: Spark's Kafka source schema.

Without headers: key binary, value binary, topic string, partition int, offset long, timestamp
timestamp, timestampType int (0 CreateTime, 1 LogAppendTime); with includeHeaders also headers,
array<struct<key: string, value: binary>>, null for a record that has none.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_HEADER_STRUCT = StructType(
    [StructField("key", StringType()), StructField("value", BinaryType())]
)  # fmt: skip


def source_schema(*, include_headers: bool) -> StructType:
    """The schema of a read, as Spark's Kafka source has it."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        fields.append(StructField("headers", ArrayType(_HEADER_STRUCT)))
    return StructType(fields)
