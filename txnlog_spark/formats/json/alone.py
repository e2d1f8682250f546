"""JSON texts that Arrow's reader does not take together, each read by Python's parser.

What this module reads has the value that Spark's `from_json` gives it. What it refuses is malformed
with a reason, also where Spark would go on: quotes that are single, dates and times that are not in
ISO 8601, base64 with blanks, bytes that are not UTF-8, one object for an array of structs.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark

from txnlog_spark.formats.columns import below, field_at
from txnlog_spark.formats.decoded import Decode, MalformedText, decode_each
from txnlog_spark.formats.json.texts import escaped_ascii, java_double, java_string
from txnlog_spark.formats.json.times import Zone, date_of, timestamp_of
from txnlog_spark.formats.types import arrow_type

_BLANKS = " \t\r\n"
_SHOWN_MAX = 100
_DIGITS_MAX = 4000
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_NOT_FINITE = {name: float(name) for name in ("NaN", "Infinity", "-Infinity")}
_RANGES: dict[type[spark.DataType], int] = {
    spark.ByteType: 2**7,
    spark.ShortType: 2**15,
    spark.IntegerType: 2**31,
    spark.LongType: 2**63,
}

Convert = Callable[[Any], Any]
"""Makes a Spark value of a parsed value. ValueError if it is not a value of the type."""


class _Fraction(str):
    """The text of a number with a fraction or an exponent."""

    __slots__ = ()


def one_by_one(type_: spark.DataType, zone: Zone) -> Decode:
    """Decode texts one at a time. ValueError names a type that is not read, and its field."""
    if not isinstance(type_, (spark.StructType, spark.ArrayType, spark.MapType)):
        raise ValueError(
            f"a JSON value is read as a struct, an array or a map, not as {type_.simpleString()}"
        )
    convert = _converter(type_, zone, "")

    def read(text: str) -> Any:
        text = text.lstrip(_BLANKS)
        try:
            # Like Spark, what follows the first value is not looked at.
            return convert(_parsed(text)) if text else None
        except json.JSONDecodeError as error:
            problem = f"it is not JSON: {error.msg} at character {error.pos + 1}"
        except RecursionError:
            problem = "it is nested too deeply"
        raise MalformedText(problem)

    return partial(decode_each, read=read, type_=arrow_type(type_))


# Parsing --------------------------------------------------------------------------------------


_SHORT = json.JSONDecoder(object_pairs_hook=tuple, parse_float=_Fraction)
_LONG = json.JSONDecoder(
    object_pairs_hook=tuple,
    parse_float=_Fraction,
    parse_int=lambda text: int(text) if len(text) <= _DIGITS_MAX else _Fraction(text),
)
"""Parser for long texts: Python makes no integer of so many digits."""


def _parsed(text: str) -> Any:
    """Return objects as tuples of names and values, and fractions as texts."""
    return (_SHORT if len(text) <= _DIGITS_MAX else _LONG).raw_decode(text)[0]


def _rendered(value: Any) -> str:
    """Return the JSON text of a parsed value, as Jackson writes it again."""
    if type(value) is tuple:
        members = (f'"{escaped_ascii(name)}":{_rendered(inner)}' for name, inner in value)
        return f"{{{','.join(members)}}}"
    if type(value) is list:
        return f"[{','.join(map(_rendered, value))}]"
    if type(value) is str:
        return f'"{escaped_ascii(value)}"'
    if isinstance(value, (float, _Fraction)):
        made = java_double(float(value))
        return made if made[-1].isdigit() else f'"{made}"'
    return str(value) if type(value) is int else json.dumps(value)


# Types ----------------------------------------------------------------------------------------


def _converter(type_: spark.DataType, zone: Zone, path: str) -> Convert:
    if isinstance(type_, spark.StructType):
        return _struct(type_, zone, path)
    if isinstance(type_, spark.ArrayType):
        element = _or_null(_converter(type_.elementType, zone, below(path, "element")))
        return _nested(list, "array", path, lambda value: [element(each) for each in value])
    if isinstance(type_, spark.MapType):
        if type(type_.keyType) is not spark.StringType:
            raise ValueError(
                f"{field_at(path)} is read from JSON as a map with string keys, not as "
                f"{type_.simpleString()}"
            )
        item = _or_null(_converter(type_.valueType, zone, below(path, "value")))
        return _nested(
            tuple,
            "object",
            path,
            lambda value: [(java_string(name), item(inner)) for name, inner in value],
        )
    return _leaf(type_, zone, path)


def _struct(type_: spark.StructType, zone: Zone, path: str) -> Convert:
    if len(set(type_.names)) < len(type_.names):
        raise ValueError(f"{field_at(path)} has two fields of the same name")
    fields = {
        field.name: _or_null(_converter(field.dataType, zone, below(path, field.name)))
        for field in type_
    }

    def convert(value: Any) -> dict[str, Any]:
        return {name: fields[name](inner) for name, inner in value if name in fields}

    return _nested(tuple, "object", path, convert)


def _nested(kind: type, name: str, path: str, convert: Convert) -> Convert:
    def checked(value: Any) -> Any:
        if type(value) is not kind:
            raise MalformedText(f"{field_at(path)} is not a JSON {name}")
        return convert(value)

    return checked


def _or_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _leaf(type_: spark.DataType, zone: Zone, path: str) -> Convert:
    if isinstance(type_, spark.DecimalType):
        context = Context(prec=type_.precision, rounding=ROUND_HALF_UP)
        last = Decimal(1).scaleb(-type_.scale)
        read: Convert = lambda value: _decimal(value, last, context)  # noqa: E731
    elif type(type_) in _RANGES:
        limit = _RANGES[type(type_)]
        read = lambda value: _integer(value, limit)  # noqa: E731
    elif type(type_) is spark.StringType:
        # A string takes any value, as the text that Jackson writes of it.
        return lambda value: java_string(value if type(value) is str else _rendered(value))
    else:
        simple: dict[type[spark.DataType], Convert] = {
            spark.BooleanType: lambda value: _of(bool, value),
            spark.DoubleType: lambda value: float(_number(value)),
            spark.FloatType: lambda value: _float32(_number(value)),
            spark.BinaryType: lambda value: binascii.a2b_base64(_of(str, value), strict_mode=True),
            spark.DateType: lambda value: date_of(_of(str, value)),
            spark.TimestampType: lambda value: _timestamp(value, zone),
            spark.TimestampNTZType: lambda value: timestamp_of(_of(str, value), None),
        }
        if type(type_) not in simple:
            raise ValueError(f"{field_at(path)} is not read from JSON as {type_.simpleString()}")
        read = simple[type(type_)]

    def convert(value: Any) -> Any:
        try:
            return read(value)
        except (ValueError, InvalidOperation):
            shown = _rendered(value)
        shown = shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}..."
        raise MalformedText(
            f"{field_at(path)} is {shown}, which is not a value of {type_.simpleString()}"
        )

    return convert


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"no {kind.__name__}")
    return value


def _integer(value: Any, limit: int) -> int:
    whole: int = _of(int, value)
    if not -limit <= whole < limit:
        raise ValueError("beyond the range")
    return whole


def _number(value: Any) -> str | float:
    """Return the text of a number, or a number that is not finite."""
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if type(value) is float:
        return value
    return _digits(value)


def _float32(number: str | float) -> float:
    """Return the nearest number of 32 bits; a double rounded again could be the one beside it."""
    made: float = pa.scalar(str(number)).cast(pa.float32()).as_py()
    return made


def _digits(value: Any) -> str:
    if type(value) is not int and type(value) is not _Fraction:
        raise ValueError("no number")
    return str(value)


def _decimal(value: Any, last: Decimal, context: Context) -> Decimal:
    """Return the number rounded half up to the last digit of the type."""
    text = value.replace(",", "") if type(value) is str else _digits(value)
    if not _DECIMAL.fullmatch(text):
        raise ValueError("no decimal")
    return Decimal(text).quantize(last, context=context)


def _timestamp(value: Any, zone: Zone) -> int:
    """Return the instant of a text, or of whole seconds since 1970."""
    if type(value) is int:
        return _integer(value, 2**63 // 1_000_000) * 1_000_000
    return timestamp_of(_of(str, value), zone)
