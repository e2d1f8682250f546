"""Decodes JSON texts one at a time: those that `decode` cannot read together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark

from txnlog_spark.codec.binary import validity
from txnlog_spark.codec.decoded import Decode, Decoded
from txnlog_spark.codec.types import arrow_type
from txnlog_spark.json.numbers import base64_of, float32_of, unscaled
from txnlog_spark.json.plain import plain_reader
from txnlog_spark.json.text import java_string, java_text
from txnlog_spark.json.times import date_of, timestamp_ntz_of, timestamp_of
from txnlog_spark.json.values import (
    NOT_FINITE,
    Convert,
    Cursor,
    MalformedJson,
    read_array,
    read_map,
    read_struct,
)
from txnlog_spark.json.zones import Zone

_RANGES: dict[type[spark.DataType], tuple[int, int]] = {
    # Jackson gives a byte for what fits into eight bits with or without a sign.
    spark.ByteType: (-(2**7), 2**8 - 1),
    spark.ShortType: (-(2**15), 2**15 - 1),
    spark.IntegerType: (-(2**31), 2**31 - 1),
    spark.LongType: (-(2**63), 2**63 - 1),
}


def one_by_one(type_: spark.DataType, zone: Zone) -> Decode:
    """Decodes texts one at a time. ValueError names a type that is not read, and its field."""
    read = step_by_step(type_, zone)
    plain = plain_reader(type_, zone)
    arrow = arrow_type(type_)

    def decode(values: pa.Array) -> Decoded:
        rows: list[Any] = []
        problems: list[str | None] = []
        for value in values.to_pylist():
            text = java_text(value)
            row, problem = None, None
            try:
                row = plain(text)
            except (ValueError, RecursionError):
                try:
                    row = read(Cursor(text))
                except MalformedJson as error:
                    problem = str(error)
            rows.append(row)
            problems.append(problem)
        made = column(rows, type_, arrow)
        if any(problems):
            return Decoded(made, pa.array(problems, pa.string()))
        return Decoded(made)

    return decode


def step_by_step(type_: spark.DataType, zone: Zone) -> Callable[[Cursor], Any]:
    """Reads the text of a cursor, whatever it is: MalformedJson says why it is malformed.

    ValueError as of `one_by_one`.
    """
    if not isinstance(type_, (spark.StructType, spark.ArrayType, spark.MapType)):
        raise ValueError(
            f"a JSON value is read as a struct, an array or a map, not as {type_.simpleString()}"
        )
    convert = _converter(type_, zone, "")
    opening = "[" if isinstance(type_, spark.ArrayType) else "{"
    alone = None
    if isinstance(type_, spark.ArrayType) and isinstance(type_.elementType, spark.StructType):
        alone = _converter(type_.elementType, zone, "")

    def read(cursor: Cursor) -> Any:
        cursor.blanks()
        if cursor.at == len(cursor.text):
            return None
        found = cursor.peek()
        if found == "{" and alone:
            return [alone(cursor, 1)]
        if found != opening:
            cursor.skip(1)
            raise MalformedJson(f"the text is not a JSON {_NAMES[opening]}")
        return convert(cursor, 1)

    return read


_NAMES = {"{": "object", "[": "array"}


def _converter(type_: spark.DataType, zone: Zone, path: str) -> Convert:
    where = f"the field {path}" if path else "the value"
    if isinstance(type_, spark.StructType):
        places = {field.name: at for at, field in enumerate(type_.fields)}
        fields = [_converter(field.dataType, zone, _below(path, field.name)) for field in type_]
        return _nested("{", where, partial(read_struct, places=places, fields=fields))
    if isinstance(type_, spark.ArrayType):
        element = _converter(type_.elementType, zone, _below(path, "element"))
        return _nested("[", where, partial(read_array, element=element))
    if isinstance(type_, spark.MapType):
        if type(type_.keyType) is not spark.StringType:
            raise ValueError(
                f"{where} is read from JSON as a map with string keys, not as "
                f"{type_.simpleString()}"
            )
        value = _converter(type_.valueType, zone, _below(path, "value"))
        return _nested("{", where, partial(read_map, value=value))
    if type(type_) is spark.StringType:
        return _string
    return _atomic(type_, zone, where)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _nested(opening: str, where: str, read: Convert) -> Convert:
    def convert(cursor: Cursor, depth: int) -> Any:
        if cursor.peek() == opening:
            return read(cursor, depth)
        if cursor.skip(depth) == "null":
            return None
        raise MalformedJson(f"{where} is not a JSON {_NAMES[opening]}")

    return convert


def _string(cursor: Cursor, depth: int) -> str | None:
    """A string column takes any value: another than a string as the text that Jackson writes."""
    if cursor.peek() in "\"'":
        return java_string(cursor.string())
    made = cursor.skip(depth)
    return None if made == "null" else made


def _atomic(type_: spark.DataType, zone: Zone, where: str) -> Convert:
    read = _reader(type_, zone, where)

    def convert(cursor: Cursor, depth: int) -> Any:
        start = cursor.at
        try:
            return read(cursor)
        except ValueError:
            cursor.at = start
            found = cursor.skip(depth)
        if found == "null":
            return None
        shown = found if len(found) <= 100 else f"{found[:100]}..."
        raise MalformedJson(f"{where} is {shown}, which is not a value of {type_.simpleString()}")

    return convert


def _reader(type_: spark.DataType, zone: Zone, where: str) -> Callable[[Cursor], Any]:
    """Reads the value at a cursor; ValueError, then, where it is none of the type."""
    if type(type_) in _RANGES:
        low, high = _RANGES[type(type_)]
        wrapped = 2**8 if type(type_) is spark.ByteType else 0
        return lambda cursor: _integer(cursor, low, high, wrapped)
    if isinstance(type_, spark.DecimalType):
        precision, scale = type_.precision, type_.scale
        return lambda cursor: _decimal(cursor, precision, scale)
    simple: dict[type[spark.DataType], Callable[[Cursor], Any]] = {
        spark.BooleanType: _boolean,
        spark.DoubleType: lambda cursor: _float(cursor, float),
        spark.FloatType: lambda cursor: _float(cursor, float32_of),
        spark.BinaryType: _base64,
        spark.DateType: lambda cursor: date_of(_text(cursor)),
        spark.TimestampType: lambda cursor: _timestamp(cursor, zone),
        spark.TimestampNTZType: lambda cursor: timestamp_ntz_of(_text(cursor)),
    }
    if type(type_) not in simple:
        raise ValueError(f"{where} is not read from JSON as {type_.simpleString()}")
    return simple[type(type_)]


def _boolean(cursor: Cursor) -> bool:
    found = cursor.literal()
    if found not in ("true", "false"):
        raise ValueError(found)
    return found == "true"


def _integer(cursor: Cursor, low: int, high: int, wrapped: int = 0) -> int:
    if cursor.peek() not in "-0123456789":
        raise ValueError("no number")
    found = cursor.number()
    if found[2] is not None or found[3] is not None:
        raise ValueError(found[0])
    made = int(found[0])
    if not low <= made <= high:
        raise ValueError(found[0])
    return made - wrapped if wrapped and made >= wrapped // 2 else made


def _float(cursor: Cursor, of_text: Callable[[str], float]) -> float:
    if cursor.peek() in "\"'":
        found = cursor.string()
        if found not in NOT_FINITE:
            raise ValueError(found)
        return NOT_FINITE[found]
    literal = cursor.literal()
    if literal:
        if literal not in NOT_FINITE:
            raise ValueError(literal)
        return NOT_FINITE[literal]
    if cursor.peek() not in "-0123456789":
        raise ValueError("no number")
    number = cursor.number()
    # An integer has no negative zero.
    return 0.0 if number[0] == "-0" else of_text(number[0])


def _text(cursor: Cursor) -> str:
    if cursor.peek() not in "\"'":
        raise ValueError("no string")
    found = cursor.string()
    if not found:
        raise ValueError("empty")
    return found


def _timestamp(cursor: Cursor, zone: Zone) -> int:
    """A text, or whole seconds since 1970, of which Spark keeps 64 bits of microseconds."""
    if cursor.peek() in "\"'":
        return timestamp_of(_text(cursor), zone)
    micros = _integer(cursor, -(2**63), 2**63 - 1) * 1_000_000
    return (micros + 2**63) % 2**64 - 2**63


def _base64(cursor: Cursor) -> bytes:
    """Blanks and control characters may be between the groups, and need no escape."""
    if cursor.peek() not in "\"'":
        raise ValueError("no string")
    return base64_of(cursor.string(controls=True))


def _decimal(cursor: Cursor, precision: int, scale: int) -> int:
    """The unscaled value, rounded half up."""
    if cursor.peek() in "\"'":
        text = _text(cursor).replace(",", "")
    elif cursor.peek() in "-0123456789":
        text = cursor.number()[0]
    else:
        raise ValueError("no number")
    return unscaled(text, precision, scale)


# Columns --------------------------------------------------------------------------------------


def column(values: list[Any], type_: spark.DataType, arrow: pa.DataType) -> pa.Array:
    """The Arrow array of Spark values, where a struct is a tuple and a map a list of pairs."""
    absent = [value is None for value in values]
    mask = pa.array(absent, pa.bool_()) if any(absent) else None
    if isinstance(type_, spark.StructType):
        return _structs(values, type_, arrow, mask)
    if isinstance(type_, (spark.ArrayType, spark.MapType)):
        present = [value or () for value in values]
        offsets = pa.array([0, *accumulate(map(len, present))], pa.int32())
        items = list(chain.from_iterable(present))
        if isinstance(type_, spark.ArrayType):
            elements = column(items, type_.elementType, arrow.value_type)
            return pa.ListArray.from_arrays(offsets, elements, arrow, mask=mask)
        keys = column([key for key, _ in items], type_.keyType, arrow.key_type)
        below = column([value for _, value in items], type_.valueType, arrow.item_type)
        return _maps(offsets, keys, below, arrow, mask)
    if isinstance(type_, spark.DateType):
        return pa.array(values, pa.int32()).view(arrow)
    if isinstance(type_, (spark.TimestampType, spark.TimestampNTZType)):
        return pa.array(values, pa.int64()).view(arrow)
    if isinstance(type_, spark.DecimalType):
        return _decimals(values, arrow, mask)
    return pa.array(values, arrow)


def _structs(
    values: list[Any], type_: spark.StructType, arrow: pa.DataType, mask: pa.Array | None
) -> pa.Array:
    if not type_.fields:
        valid = [value is not None for value in values]
        return pa.array([() if each else None for each in valid], arrow)
    nothing = (None,) * len(type_.fields)
    empty = [()] * len(nothing)
    below = zip(*(value or nothing for value in values), strict=True) if values else empty
    children = [
        column(list(each), field.dataType, arrow.field(at).type)
        for at, (each, field) in enumerate(zip(below, type_.fields, strict=True))
    ]
    return pa.StructArray.from_arrays(children, fields=list(arrow), mask=mask)


def _maps(
    offsets: pa.Array, keys: pa.Array, items: pa.Array, arrow: pa.DataType, mask: pa.Array | None
) -> pa.Array:
    entries = pa.StructArray.from_arrays([keys, items], fields=[arrow.key_field, arrow.item_field])
    buffers = [_validity(mask), pa.py_buffer(offsets.to_numpy())]
    return pa.Array.from_buffers(arrow, len(offsets) - 1, buffers, children=[entries])


def _decimals(values: list[Any], arrow: pa.DataType, mask: pa.Array | None) -> pa.Array:
    data = b"".join((value or 0).to_bytes(16, "little", signed=True) for value in values)
    return pa.Array.from_buffers(arrow, len(values), [_validity(mask), pa.py_buffer(data)])


def _validity(mask: pa.Array | None) -> Any:
    return None if mask is None else validity(~mask.to_numpy(zero_copy_only=False))
