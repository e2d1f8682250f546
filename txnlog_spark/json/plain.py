"""Reads JSON texts that are plainly right by Python's own parser, which is several times as fast.

It knows no other JSON than Jackson does but for the length and depth, which are looked at first. A
ValueError says only that the text is to be looked at step by step (`values`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import types as spark

from txnlog_spark.json.numbers import base64_of, float32_of, unscaled
from txnlog_spark.json.text import java_string
from txnlog_spark.json.times import date_of, timestamp_ntz_of, timestamp_of
from txnlog_spark.json.values import NAME_MAX, NESTING_MAX, NUMBER_MAX
from txnlog_spark.json.zones import Zone

Convert = Callable[[Any], Any]
"""Makes a Spark value of what Python's parser gives, which is not null."""

_DEPTH_SAFE = min(NESTING_MAX, 300)
"""So deep does Python's parser go whatever has called it."""
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_LONG_NUMBER = re.compile(rf"[0-9.eE+-]{{{NUMBER_MAX}}}")


class _Fraction(str):
    """The text of a number with a fraction or an exponent."""

    __slots__ = ()


def plain_reader(type_: spark.DataType, zone: Zone) -> Callable[[str], Any]:
    """Reads a whole text as this type; ValueError where it has to be read step by step."""
    convert = _converter(type_, zone)
    parse = json.JSONDecoder(object_pairs_hook=tuple, parse_float=_Fraction).decode

    def read(text: str) -> Any:
        if len(text) > NUMBER_MAX:
            _check_limits(text)
        return convert(parse(text))

    return read


def _check_limits(text: str) -> None:
    nested = text.count("[") + text.count("{")
    if len(text) > NAME_MAX or nested > _DEPTH_SAFE or _LONG_NUMBER.search(text):
        raise ValueError("long")


def _of(value: Any, convert: Convert) -> Any:
    return None if value is None else convert(value)


def _converter(type_: spark.DataType, zone: Zone) -> Convert:
    if isinstance(type_, spark.StructType):
        places = {field.name: at for at, field in enumerate(type_.fields)}
        return partial(_struct, places, [_converter(field.dataType, zone) for field in type_])
    if isinstance(type_, spark.ArrayType):
        return partial(_array, _converter(type_.elementType, zone))
    if isinstance(type_, spark.MapType):
        return partial(_map, _converter(type_.valueType, zone))
    if isinstance(type_, spark.DecimalType):
        precision, scale = type_.precision, type_.scale
        return lambda value: unscaled(_digits(value), precision, scale)
    if isinstance(type_, spark.IntegralType):
        bits = _BITS[type_.simpleString()]
        return partial(_integer, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    simple: dict[type[spark.DataType], Convert] = {
        spark.BooleanType: _boolean,
        spark.DoubleType: _double,
        spark.FloatType: lambda value: float32_of(_number(value)),
        spark.StringType: lambda value: java_string(_string(value)),
        spark.BinaryType: lambda value: base64_of(_string(value)),
        spark.DateType: lambda value: date_of(_string(value)),
        spark.TimestampType: lambda value: timestamp_of(_string(value), zone),
        spark.TimestampNTZType: lambda value: timestamp_ntz_of(_string(value)),
    }
    return simple[type(type_)]


def _struct(places: dict[str, int], fields: list[Convert], value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise ValueError("no object")
    made: list[Any] = [None] * len(fields)
    for name, below in value:
        place = places.get(name)
        if place is not None:
            made[place] = _of(below, fields[place])
    return tuple(made)


def _array(element: Convert, value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError("no array")
    return [_of(below, element) for below in value]


def _map(convert: Convert, value: Any) -> list[tuple[str, Any]]:
    if type(value) is not tuple:
        raise ValueError("no object")
    return [(java_string(name), _of(below, convert)) for name, below in value]


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("no boolean")
    return value


def _integer(low: int, high: int, value: Any) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError("no integer")
    return value


def _double(value: Any) -> float:
    """Python's parser gives NaN and Infinity as floats, all other numbers as texts or integers."""
    if type(value) is float:
        return value
    return float(_number(value))


def _number(value: Any) -> str:
    if type(value) is _Fraction:
        return value
    if type(value) is not int:
        raise ValueError("no number")
    return str(value)


def _digits(value: Any) -> str:
    if type(value) is str and value:
        return value.replace(",", "")
    return _number(value)


def _string(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("no string")
    return value
