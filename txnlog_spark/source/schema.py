"""Schema of a read's rows, equal to that of Spark's Kafka source.

A timestampType is 0 for CreateTime, 1 for LogAppendTime. A record without headers has null headers
(only with includeHeaders). Key and value are binary, or have the type of their format.
"""

from __future__ import annotations

from pyspark.sql import types as spark

from txnlog_spark.formats.read_formats import BINARY, ReadFormats

_HEADER_STRUCT = spark.StructType().add("key", spark.StringType()).add("value", spark.BinaryType())


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
