"""The rows of a read: Spark's Kafka source schema.

Without headers: key binary, value binary, topic string, partition int, offset long, timestamp
timestamp, timestampType int (0 CreateTime, 1 LogAppendTime); with includeHeaders also headers,
array<struct<key: string, value: binary>>, null for a record that has none. With key.format and
value.format these columns have the type of the format, and where one is PERMISSIVE there follow the
columns of `ReadFormats.more_columns`.
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

from txnlog_spark.formats.read_formats import BINARY, ReadFormats

_HEADER_STRUCT = StructType(
    [StructField("key", StringType()), StructField("value", BinaryType())]
)  # fmt: skip


def source_schema(*, include_headers: bool, formats: ReadFormats = BINARY) -> StructType:
    """The schema of a read, as Spark's Kafka source has it."""
    fields = [
        StructField("key", formats.type_of("key")),
        StructField("value", formats.type_of("value")),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        fields.append(StructField("headers", ArrayType(_HEADER_STRUCT)))
    return StructType(fields + formats.more_columns())
