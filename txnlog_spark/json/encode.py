"""Columns of Spark values to JSON texts, as Spark's `to_json` writes them with its defaults.

Column by column: each becomes a column of texts, and Arrow joins them row by row. The bytes are
those of Spark on Java 19 or later. Java 17 writes more digits than it takes for some floats and
doubles, such as 9.999999999999999E22 for 1.0E23.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark

from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.binary import binary_parts, list_offsets
from txnlog_spark.codec.decoded import on_present
from txnlog_spark.errors import OptionError
from txnlog_spark.json.number_texts import float_texts
from txnlog_spark.json.string_escapes import escape
from txnlog_spark.json.text import escaped
from txnlog_spark.json.time_texts import date_texts, timestamp_texts
from txnlog_spark.json.zones import Zone, session_zone

Encode = Callable[[pa.Array], pa.Array]
"""Texts of an array without null."""


@dataclass(frozen=True, slots=True)
class _Write:
    """Writes values without null: their texts, and what is before and after each of them.

    `required` is the column's name where null is an error, "" where it may be there.
    """

    texts: Encode
    before: str = ""
    after: str = ""
    required: str = ""

    def whole(self, array: pa.Array) -> pa.Array:
        """The texts with what is around them."""
        made = self.texts(array)
        if self.before or self.after:
            made = _join(self.before, made, self.after)
        return made

    def checked(self, array: pa.Array) -> pa.Array:
        """The array, which may have null; OptionError where it has and may not."""
        if self.required and array.null_count:
            what = f"{array.null_count} values are" if array.null_count > 1 else "1 value is"
            raise OptionError(
                f"column {self.required}",
                None,
                f"{what} null, which the schema does not allow: fill or leave out the rows",
            )
        return array


def json_encoder(type_: spark.DataType, time_zone: str, column: str = "value") -> Encode:
    """Encodes arrays of a struct, array or map, without null, as binary arrays of JSON texts.

    `time_zone` is the session's; `column` is where the values are, "" where the fields of a struct
    are the columns. OptionError where JSON has no such type, naming the column, or Spark no such
    zone, and of what is returned where there is null below that the type does not allow.
    """
    zone = session_zone(time_zone)
    if not isinstance(type_, (spark.StructType, spark.ArrayType, spark.MapType)):
        raise OptionError(
            f"column {column}", type_.simpleString(), "a struct, array or map is written as JSON"
        )
    write = _writer(type_, zone, column)
    return lambda array: write.whole(array).cast(pa.binary())


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
        spark.DateType: date_texts,
        spark.TimestampType: lambda array: timestamp_texts(array, zone),
        spark.TimestampNTZType: lambda array: timestamp_texts(array, None),
    }
    if type(type_) in quoted:
        return _Write(quoted[type(type_)], '"', '"')
    if isinstance(type_, (spark.FloatType, spark.DoubleType)):
        return _Write(_finite)
    return _Write(_plain(type_, path, "this type"))


def _child(type_: spark.DataType, zone: Zone, path: str, is_nullable: bool) -> _Write:
    return replace(_writer(type_, zone, path), required="" if is_nullable else path)


def _plain(type_: spark.DataType, path: str, what: str) -> Encode:
    """What Arrow writes as Java does."""
    if not isinstance(type_, (spark.IntegralType, spark.BooleanType, spark.DecimalType)):
        raise OptionError(
            f"column {path}",
            type_.simpleString(),
            f"{what} is not written as JSON: cast or drop it",
        )
    return lambda array: array.cast(pa.string())


def _finite(array: pa.Array) -> pa.Array:
    """Numbers; one that is not finite is a string in JSON."""
    texts = float_texts(array)
    finite = pc.is_finite(array)
    if finite.false_count:
        return pc.if_else(finite, texts, _join('"', texts, '"'))
    return texts


def _key(type_: spark.DataType, path: str) -> Encode:
    """Keys of maps: Spark writes its own value of a date or timestamp, which is a number."""
    if isinstance(type_, spark.StringType):
        return escape
    if isinstance(type_, spark.DateType):
        return lambda array: array.view(pa.int32()).cast(pa.string())
    if isinstance(type_, (spark.TimestampType, spark.TimestampNTZType)):
        return lambda array: array.view(pa.int64()).cast(pa.string())
    if isinstance(type_, (spark.FloatType, spark.DoubleType)):
        return float_texts
    return _plain(type_, path, "a map with keys of this type")


# Nested types ---------------------------------------------------------------------------------


def _struct(type_: spark.StructType, zone: Zone, path: str) -> _Write:
    if not type_.fields:
        return _Write(lambda array: pa.repeat("", len(array)), "{", "}")
    names = [f'"{escaped(name)}":' for name in type_.names]
    writes = [
        _child(f.dataType, zone, f"{path}.{f.name}" if path else f.name, f.nullable) for f in type_
    ]
    return _Write(partial(_members, names, writes))


def _members(names: list[str], writes: list[_Write], array: pa.Array) -> pa.Array:
    """The members of each row; those that are null are left out, and so is their comma."""
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
    """Constants that follow each other as one."""
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
    items = on_present(element.whole)(element.checked(array.flatten()))
    return _joined(items.fill_null("null"), pc.list_value_length(array).to_numpy())


def _map(keys: _Write, items: _Write, array: pa.Array) -> pa.Array:
    offsets = list_offsets(array)
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    names = keys.texts(array.keys.slice(first, count))
    present = items.checked(array.items.slice(first, count))
    values = on_present(items.whole)(present).fill_null("null")
    return _joined(_join(keys.before, names, keys.after, values), np.diff(offsets))


def _joined(texts: pa.Array, counts: np.ndarray[Any, Any]) -> pa.Array:
    """So many texts a row, with commas between them."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), texts), ",")


def _base64(array: pa.Array) -> pa.Array:
    """All values in one go, each filled up to whole groups of three bytes."""
    sizes = pc.binary_length(array).to_numpy()
    missing = -sizes % 3
    if missing.any():
        zeros = pa.array([b"", b"\0", b"\0\0"]).take(pa.array(missing))
        array = pc.binary_join_element_wise(array, zeros, b"")
    offsets, data = binary_parts(array)
    encoded = binascii.b2a_base64(data[offsets[0] : offsets[-1]].tobytes(), newline=False)
    texts = np.frombuffer(encoded, np.uint8).copy()
    bounds = (offsets - offsets[0]) // 3 * 4
    ends = bounds[1:]
    texts[ends[missing > 0] - 1] = ord("=")
    texts[ends[missing > 1] - 2] = ord("=")
    buffers = [None, pa.py_buffer(bounds.astype(np.int32).tobytes()), pa.py_buffer(texts.tobytes())]
    return pa.Array.from_buffers(pa.string(), len(array), buffers)
