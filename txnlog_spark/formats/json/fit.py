"""Columns that may be written as the JSON of a schema.

A type fits a type of the schema if the JSON of both is of the same kind. Strings, dates, times and
binary are texts in JSON, and fit each other. Contents of texts and values of numbers are not
checked.
"""

from __future__ import annotations

from pyspark.sql import types as spark

from txnlog_spark.errors import OptionError
from txnlog_spark.formats.columns import below

_TEXTS = (
    spark.StringType,
    spark.BinaryType,
    spark.DateType,
    spark.TimestampType,
    spark.TimestampNTZType,
)


def fitted(given: spark.DataType, wanted: spark.DataType, path: str) -> spark.DataType:
    """Return `given`, with null refused where `wanted` refuses it, for `json_encoder`.

    `wanted` is the type of a schema; `path` is the column, "" where the fields of a struct are the
    columns. OptionError names a column that has no place in the schema, or that the schema needs.
    """
    if isinstance(given, spark.StructType) and isinstance(wanted, spark.StructType):
        return _struct(given, wanted, path)
    if isinstance(given, spark.StructType) and isinstance(wanted, spark.MapType):
        others = spark.StructType(
            [spark.StructField(name, wanted.valueType) for name in given.names]
        )
        return _struct(given, others, path)
    if isinstance(given, spark.ArrayType) and isinstance(wanted, spark.ArrayType):
        element = fitted(given.elementType, wanted.elementType, f"{path}.element")
        return spark.ArrayType(element, wanted.containsNull)
    if isinstance(given, spark.MapType) and isinstance(wanted, spark.MapType):
        value = fitted(given.valueType, wanted.valueType, f"{path}.value")
        return spark.MapType(given.keyType, value, wanted.valueContainsNull)
    if not _is_same_kind(given, wanted):
        raise OptionError(
            f"column {path}" if path else "all columns",
            given.simpleString(),
            f"{wanted.simpleString()} in the schema: cast it before the write",
        )
    return given


def _struct(given: spark.StructType, wanted: spark.StructType, path: str) -> spark.StructType:
    made = spark.StructType()
    for field in given:
        inner = below(path, field.name)
        if field.name not in wanted.names:
            raise OptionError(
                f"column {inner}",
                field.dataType.simpleString(),
                f"one of the fields of the schema: {', '.join(wanted.names)}",
            )
        there = wanted[field.name]
        made.add(field.name, fitted(field.dataType, there.dataType, inner), there.nullable)
    for there in wanted:
        if not there.nullable and there.name not in given.names:
            raise OptionError(
                f"column {below(path, there.name)}", None, "add it, the schema requires it"
            )
    return made


def _is_same_kind(given: spark.DataType, wanted: spark.DataType) -> bool:
    if isinstance(given, spark.NullType):  # whether null may be there is looked at in the task
        return True
    if isinstance(wanted, spark.FractionalType):
        return isinstance(given, spark.NumericType)
    if isinstance(wanted, spark.IntegralType):
        is_whole = isinstance(given, spark.DecimalType) and given.scale == 0
        return is_whole or isinstance(given, spark.IntegralType)
    if isinstance(wanted, spark.StringType):
        return isinstance(given, _TEXTS)
    is_text = isinstance(given, spark.StringType) and isinstance(wanted, _TEXTS)
    return is_text or type(given) is type(wanted)
