"""Columns of Spark values to JSON texts, as Spark's `to_json` writes them with its defaults.

Each column becomes a column of texts, and Arrow joins them row by row. The bytes are the bytes of
Spark on Java 19 or later. Java 17 writes more digits than necessary for some floats and doubles,
such as 9.999999999999999E22 for 1.0E23.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark

from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.binary import list_offsets, offsets_from
from txnlog_spark.errors import OptionError
from txnlog_spark.formats.columns import below, shown
from txnlog_spark.formats.decoded import Encode, on_present
from txnlog_spark.formats.json.texts import escape, escaped, float_texts
from txnlog_spark.formats.json.times import Zone, date_texts, session_zone, timestamp_texts
from txnlog_spark.formats.time_zone import zone_of_column

_TEXTS = (
    spark.StringType,
    spark.BinaryType,
    spark.DateType,
    spark.TimestampType,
    spark.TimestampNTZType,
)


@dataclass(frozen=True, slots=True)
class _Write:
    """Writes values without null: their texts, and the text before and after each.

    `required` is the column's name if null is an error, "" if null is allowed.
    """

    texts: Encode
    before: str = ""
    after: str = ""
    required: str = ""

    def whole(self, array: pa.Array) -> pa.Array:
        """Return the texts of values with the text before and after each."""
        made = self.texts(array)
        if self.before or self.after:
            made = _join(self.before, made, self.after)
        return made

    def checked(self, array: pa.Array) -> pa.Array:
        """Return the array. OptionError if it has null and may not have it."""
        if self.required and array.null_count:
            what = f"{array.null_count} values are" if array.null_count > 1 else "1 value is"
            raise OptionError(
                f"column {self.required}",
                None,
                f"{what} null, which the schema does not allow: fill or leave out the rows",
            )
        return array


def json_encoder(type_: spark.DataType, time_zone: str | None, column: str = "value") -> Encode:
    """Encode arrays of a struct, array or map, without null, as binary arrays of JSON texts.

    Without `time_zone` it is the session's, which timestamps have in Arrow's type. `column` is
    where the values are, "" where the fields of a struct are the columns. OptionError names a
    column with a type that JSON does not have, and a zone that is refused. The encoder raises it
    for null where the type has none.
    """
    if not isinstance(type_, (spark.StructType, spark.ArrayType, spark.MapType)):
        raise OptionError(
            f"column {column}", type_.simpleString(), "a struct, array or map is written as JSON"
        )
    write = cache(lambda zone: _writer(type_, session_zone(zone), column))
    write(time_zone or "UTC")

    def encode(array: pa.Array) -> pa.Array:
        zone = time_zone or zone_of_column(array.type) or "UTC"
        return write(zone).whole(array).cast(pa.binary())

    return encode


def _join(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _writer(type_: spark.DataType, zone: Zone, path: str) -> _Write:
    if isinstance(type_, spark.StructType):
        return _struct(type_, zone, path)
    if isinstance(type_, spark.ArrayType):
        element = _child(type_.elementType, zone, f"{path}.element", type_.containsNull)
        return _Write(partial(_list, element), "[", "]")
    if isinstance(type_, spark.MapType):
        keys = _Write(_key(type_.keyType, path), '"', '":')
        value = _child(type_.valueType, zone, f"{path}.value", type_.valueContainsNull)
        return _Write(partial(_map, keys, value), "{", "}")
    if isinstance(type_, spark.NullType):
        return _Write(lambda array: array.cast(pa.string()))
    quoted: dict[type[spark.DataType], Encode] = {
        spark.StringType: escape,
        spark.BinaryType: _base64,
        spark.DateType: lambda array: date_texts(array, path),
        spark.TimestampType: lambda array: timestamp_texts(array, zone, path),
        spark.TimestampNTZType: lambda array: timestamp_texts(array, None, path),
    }
    if type(type_) in quoted:
        return _Write(quoted[type(type_)], '"', '"')
    if isinstance(type_, (spark.FloatType, spark.DoubleType)):
        return _Write(_finite)
    return _Write(_plain(type_, path, "this type"))


def _child(type_: spark.DataType, zone: Zone, path: str, is_nullable: bool) -> _Write:
    return replace(_writer(type_, zone, path), required="" if is_nullable else path)


def _plain(type_: spark.DataType, path: str, what: str) -> Encode:
    """Return the encoder of a type that Arrow writes as Java does."""
    if not isinstance(type_, (spark.IntegralType, spark.BooleanType, spark.DecimalType)):
        raise OptionError(
            f"column {path}",
            type_.simpleString(),
            f"{what} is not written as JSON: cast or drop it",
        )
    return lambda array: array.cast(pa.string())


def _finite(array: pa.Array) -> pa.Array:
    """Write numbers; a number that is not finite is a string in JSON."""
    texts = float_texts(array)
    finite = pc.is_finite(array)
    if finite.false_count:
        return pc.if_else(finite, texts, _join('"', texts, '"'))
    return texts


def _key(type_: spark.DataType, path: str) -> Encode:
    if isinstance(type_, spark.StringType):
        return escape
    return _plain(type_, path, "a map with keys of this type")


# Nested types ---------------------------------------------------------------------------------


def _struct(type_: spark.StructType, zone: Zone, path: str) -> _Write:
    if not type_.fields:
        return _Write(lambda array: pa.repeat("", len(array)), "{", "}")
    names = [f'"{escaped(name)}":' for name in type_.names]
    writes = [_child(f.dataType, zone, below(path, f.name), f.nullable) for f in type_]
    return _Write(partial(_members, names, writes))


def _members(names: list[str], writes: list[_Write], array: pa.Array) -> pa.Array:
    """Write the members of each row; a null member is left out with its comma."""
    parts: list[Any] = ["{"]
    # Whether a row has a member already: an array of booleans until all rows have one.
    some: Any = pa.scalar(False)
    for at, (name, write) in enumerate(zip(names, writes, strict=True)):
        column = write.checked(array.field(at))
        comma = pc.if_else(some, ",", "")
        if column.null_count:
            texts = on_present(write.texts)(column)
            parts.append(_join(comma, name + write.before, texts, write.after).fill_null(""))
            some = pc.or_(some, column.is_valid())
        else:
            parts.extend([comma, name + write.before, write.texts(column), write.after])
            some = pa.scalar(True)
    return _join(*_merged([*parts, "}"]))


def _merged(parts: list[Any]) -> list[Any]:
    """Return the parts, with constants that follow each other as one."""
    made: list[Any] = [""]
    for part in parts:
        if isinstance(part, pa.Scalar):
            part = part.as_py()
        if isinstance(part, str) and isinstance(made[-1], str):
            made[-1] += part
        else:
            made.append(part)
    return made


def _list(element: _Write, array: pa.Array) -> pa.Array:
    items = on_present(element.whole)(element.checked(shown(array, array.values)))
    return _joined(items.fill_null("null"), np.diff(list_offsets(array)))


def _map(keys: _Write, items: _Write, array: pa.Array) -> pa.Array:
    names, present = keys.texts(shown(array, array.keys)), shown(array, array.items)
    values = on_present(items.whole)(items.checked(present)).fill_null("null")
    members = _join(keys.before, names, keys.after, values)
    return _joined(members, np.diff(list_offsets(array)))


def _joined(texts: pa.Array, counts: np.ndarray[Any, Any]) -> pa.Array:
    """Return `counts` texts in each row, with commas between them."""
    lists = pa.ListArray.from_arrays(pa.array(offsets_from(counts)), texts)
    return pc.binary_join(lists, ",")


def _base64(array: pa.Array) -> pa.Array:
    made = [binascii.b2a_base64(value, newline=False) for value in array.to_pylist()]
    return pa.array(made, pa.binary()).view(pa.string())


# Columns for the JSON of a schema -------------------------------------------------------------


def fitted(given: spark.DataType, wanted: spark.DataType, path: str) -> spark.DataType:
    """Return `given`, with null refused where `wanted` refuses it, for `json_encoder`.

    A type fits a type of the schema if the JSON of both is of the same kind. Strings, dates, times
    and binary are texts in JSON, and fit each other. Contents of texts and values of numbers are
    not checked.

    `wanted` is the type of a schema; `path` is the column, "" where the fields of a struct are the
    columns. OptionError names a column that has no place in the schema, or that the schema needs.
    """
    if isinstance(given, spark.StructType) and isinstance(wanted, spark.StructType):
        return _fitted_struct(given, wanted, path)
    if isinstance(given, spark.StructType) and isinstance(wanted, spark.MapType):
        others = spark.StructType(
            [spark.StructField(name, wanted.valueType) for name in given.names]
        )
        return _fitted_struct(given, others, path)
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


def _fitted_struct(
    given: spark.StructType, wanted: spark.StructType, path: str
) -> spark.StructType:
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
