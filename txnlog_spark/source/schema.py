"""Schema of a read's rows, that of Spark's Kafka source.

Without headers: key binary, value binary, topic string, partition int, offset long, timestamp
timestamp, timestampType int (0 CreateTime, 1 LogAppendTime); with includeHeaders also headers,
array<struct<key: string, value: binary>>, null for a record without them. With key.format and
value.format key and value have the format's type; `ReadFormats.more_columns` follow.
"""

from __future__ import annotations

from pyspark.sql import types as spark

from txnlog_spark.formats.read_formats import BINARY, ReadFormats

_HEADER_STRUCT = spark.StructType(
    [spark.StructField("key", spark.StringType()), spark.StructField("value", spark.BinaryType())]
)  # fmt: skip


def source_schema(*, include_headers: bool, formats: ReadFormats = BINARY) -> spark.StructType:
    """Return the schema of a read."""
    fields = [
        spark.StructField("key", formats.type_of("key")),
        spark.StructField("value", formats.type_of("value")),
        spark.StructField("topic", spark.StringType()),
        spark.StructField("partition", spark.IntegerType()),
        spark.StructField("offset", spark.LongType()),
        spark.StructField("timestamp", spark.TimestampType()),
        spark.StructField("timestampType", spark.IntegerType()),
    ]
    if include_headers:
        fields.append(spark.StructField("headers", spark.ArrayType(_HEADER_STRUCT)))
    return spark.StructType(fields + formats.more_columns())
