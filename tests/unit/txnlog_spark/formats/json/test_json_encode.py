"""JSON texts as Spark 4.3's `to_json` writes them: its answers, written down."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from txnlog_spark.errors import OptionError
from txnlog_spark.formats.json.encode import json_encoder

ZONE = "America/New_York"
LONG, STRING = spark.LongType(), spark.StringType()


def structs(**fields: Any) -> Any:
    made = spark.StructType()
    for name, type_ in fields.items():
        made.add(name, type_)
    return made


def encoded(type_: Any, array: Any, zone: str = ZONE) -> list[str]:
    made = json_encoder(type_, zone)(array)
    made.validate(full=True)
    assert made.type == pa.binary()
    return [text.decode() for text in made.to_pylist()]


def members(type_: Any, values: Any) -> list[str]:
    """The text of each value as the field `a`, without what is around it."""
    array = pa.StructArray.from_arrays([values], ["a"])
    texts = encoded(structs(a=type_), array)
    # Among others, of which every second is missing, they are the same.
    sparse = values.take(pa.array([at for row in range(len(values)) for at in (row, None)]))
    again = encoded(structs(a=type_), pa.StructArray.from_arrays([sparse], ["a"]))
    assert again[::2] == texts
    assert set(again[1::2]) == ({"{}"} if texts else set())
    return [text.removeprefix('{"a":').removesuffix("}") for text in texts]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"), (1e7, "1.0E7"), (12345678.5, "1.23456785E7"), (1e-3, "0.001"),
        (9.99e-4, "9.99E-4"), (float("nan"), '"NaN"'), (float("inf"), '"Infinity"'),
        (float("-inf"), '"-Infinity"'), (-0.0, "-0.0"), (0.0, "0.0"), (4.9e-324, "4.9E-324"),
        (1e22, "1.0E22"), (5e-310, "5.0E-310"),
        (2.2250738585072014e-308, "2.2250738585072014E-308"),
        (9007199254740992.0, "9.007199254740992E15"),
        (1.7976931348623157e308, "1.7976931348623157E308"), (-123.25, "-123.25"), (1e-5, "1.0E-5"),
        (1.5e-6, "1.5E-6"), (-12345678901234567.0, "-1.2345678901234568E16"), (1e15, "1.0E15"),
        (9999999.0, "9999999.0"), (123456789012345.6, "1.234567890123456E14"),
    ],
)  # fmt: skip
def test_doubles(value, text):
    assert members(spark.DoubleType(), pa.array([value])) == [text]


def test_the_shortest_text_of_a_double_is_written():
    assert members(spark.DoubleType(), pa.array([1e23, 2e23])) == ["1.0E23", "2.0E23"]


def test_floats():
    values = [0.1, 1e10, float("nan"), 1.4e-45, 16777216.0, 3.4028235e38, 33554432.0, 0.00012]
    assert members(spark.FloatType(), pa.array(values, pa.float32())) == [
        "0.1",
        "1.0E10",
        '"NaN"',
        "1.4E-45",
        "1.6777216E7",
        "3.4028235E38",
        "3.3554432E7",
        "1.2E-4",
    ]


@pytest.mark.parametrize(
    ("precision", "scale", "value", "text"),
    [
        (38, 18, "0", "0E-18"),
        (38, 18, "0.0000001", "1.00000000000E-7"),
        (10, 9, "0.000000123", "1.23E-7"),
        (10, 3, "123.450", "123.450"),
        (10, 7, "-0.0000012", "-0.0000012"),
        (10, 2, "0", "0.00"),
        (10, 6, "0", "0.000000"),
        (38, 0, "12345678901234567890", "12345678901234567890"),
    ],
)
def test_decimals(precision, scale, value, text):
    array = pa.array([Decimal(value)]).cast(pa.decimal128(precision, scale))
    assert members(spark.DecimalType(precision, scale), array) == [text]


@pytest.mark.parametrize(
    ("micros", "text", "local"),
    [
        (1577934245123999, "2020-01-01T22:04:05.123-05:00", "2020-01-02T03:04:05.123"),
        (-1, "1969-12-31T18:59:59.999-05:00", "1969-12-31T23:59:59.999"),
        (-62135596800000000, "0000-12-31T19:03:58.000-04:56:02", "0001-01-01T00:00:00.000"),
        (253402300799999999, "9999-12-31T18:59:59.999-05:00", "9999-12-31T23:59:59.999"),
        (-2717651038000000, "1883-11-18T12:00:00.000-04:56:02", "1883-11-18T16:56:02.000"),
    ],
)
def test_timestamps(micros, text, local):
    array = pa.array([micros])
    found = members(spark.TimestampType(), array.view(pa.timestamp("us", "UTC")))
    assert found == [f'"{text}"']
    assert members(spark.TimestampNTZType(), array.view(pa.timestamp("us"))) == [f'"{local}"']


def test_offsets_of_different_length():
    hours = [h * 3_600_000_000 + 1_577_836_800_000_000 for h in (0, 24 * 182)]
    array = pa.StructArray.from_arrays([pa.array(hours).view(pa.timestamp("us", "UTC"))], ["a"])
    assert encoded(structs(a=spark.TimestampType()), array, "Europe/London") == [
        '{"a":"2020-01-01T00:00:00.000Z"}',
        '{"a":"2020-07-01T01:00:00.000+01:00"}',
    ]


def test_dates():
    days = pa.array([18263, -719528, 2932896, -719162], pa.int32())
    assert members(spark.DateType(), days.view(pa.date32())) == [
        '"2020-01-02"',
        '"0000-01-01"',
        '"9999-12-31"',
        '"0001-01-01"',
    ]


@pytest.mark.parametrize(
    ("type_", "numbers"),
    [
        (spark.DateType(), [2_932_897, -719_529, 2**31 - 1, -(2**31)]),
        (spark.TimestampType(), [253_402_318_800_000_000, -62_167_219_200_000_001, 2**63 - 1]),
        (spark.TimestampNTZType(), [253_402_300_800_000_000, -62_167_219_200_000_001, -(2**63)]),
    ],
    ids=str,
)
def test_a_year_without_four_digits_is_refused_by_its_column(type_, numbers):
    arrow = {spark.DateType(): pa.date32(), spark.TimestampType(): pa.timestamp("us", "UTC")}
    for number in numbers:
        whole = pa.array([0, number], pa.int32() if type_ == spark.DateType() else pa.int64())
        column = whole.view(arrow.get(type_, pa.timestamp("us")))
        array = pa.StructArray.from_arrays([column], ["a"])
        with pytest.raises(OptionError, match="column a: 1 values are not of the years 0000 to"):
            json_encoder(structs(a=type_), ZONE, "")(array)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            'a"b\\c\n\t\b\f\r\x01\x1f\x7f/\u2028é😀',
            '"a\\"b\\\\c\\n\\t\\b\\f\\r\\u0001\\u001F\x7f/\u2028é😀"',
        ),
        ("", '""'),
        ("plain", '"plain"'),
        ('"', '"\\""'),
    ],
)
def test_strings(value, text):
    assert members(STRING, pa.array(["before", value, "after"])) == ['"before"', text, '"after"']


def test_a_string_that_is_no_utf8_has_replacement_characters():
    raw = pa.array([b"a\xffb\xed\xa0\x80", b"c"]).view(pa.string())
    assert members(STRING, raw) == ['"a\ufffdb\ufffd"', '"c"']


def test_binary_is_base64():
    values = pa.array([b"\0\xff\x10", b"", b"\1", b"ab", b"hello"])
    assert members(spark.BinaryType(), values) == ['"AP8Q"', '""', '"AQ=="', '"YWI="', '"aGVsbG8="']
    assert members(spark.BinaryType(), values.slice(2)) == ['"AQ=="', '"YWI="', '"aGVsbG8="']


@pytest.mark.parametrize(
    ("rows", "texts"),
    [
        (
            [(1, "x", 2), (None, "x", 2), (None, None, 2), (None, None, None), (1, None, None)],
            ['{"a":1,"b":"x","c":2}', '{"b":"x","c":2}', '{"c":2}', "{}", '{"a":1}'],
        ),
        ([(None, "x", None), (None, "y", 1)], ['{"b":"x"}', '{"b":"y","c":1}']),
        ([(None, None, 1), (2, None, 3)], ['{"c":1}', '{"a":2,"c":3}']),
        ([(None, None, None)], ["{}"]),
        ([], []),
    ],
)
def test_null_fields_are_left_out_with_their_commas(rows, texts):
    fields = [("a", pa.int64()), ("b", pa.string()), ("c", pa.int64())]
    made = [dict(zip("abc", row, strict=True)) for row in rows]
    assert encoded(structs(a=LONG, b=STRING, c=LONG), pa.array(made, pa.struct(fields))) == texts


def test_null_stays_in_arrays_and_maps():
    below = structs(x=LONG)
    array = pa.array(
        [[{"x": 1}, None, {"x": None}], [], [None]], pa.list_(pa.struct([("x", "i8")]))
    )
    array = array.cast(pa.list_(pa.struct([("x", pa.int64())])))
    assert encoded(spark.ArrayType(below), array) == ['[{"x":1},null,{}]', "[]", "[null]"]
    assert encoded(spark.ArrayType(below), array.slice(2)) == ["[null]"]
    maps = pa.array([[("a", 1), ('q"', None)], [], [("b", 2)]], pa.map_(pa.string(), pa.int64()))
    texts = ['{"a":1,"q\\"":null}', "{}", '{"b":2}']
    assert encoded(spark.MapType(STRING, LONG), maps) == texts
    assert encoded(spark.MapType(STRING, LONG), maps.slice(1)) == texts[1:]
    assert members(spark.MapType(STRING, LONG), maps) == texts
    assert members(spark.ArrayType(below), array) == ['[{"x":1},null,{}]', "[]", "[null]"]


def test_keys_of_maps_are_the_texts_of_their_values():
    keys = {
        spark.IntegerType(): (pa.array([1], pa.int32()), "1"),
        spark.BooleanType(): (pa.array([True]), "true"),
        spark.DecimalType(18, 18): (pa.array([Decimal(0)], pa.decimal128(18, 18)), "0E-18"),
    }
    for type_, (key, text) in keys.items():
        array = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), key, pa.array([1]))
        assert encoded(spark.MapType(type_, LONG), array) == [f'{{"{text}":1}}']


def test_names_are_escaped_and_types_without_fields_are_empty():
    array = pa.StructArray.from_arrays([pa.array([1])], ['a"\né'])
    assert encoded(structs(**{'a"\né': LONG}), array) == ['{"a\\"\\né":1}']
    assert encoded(spark.StructType(), pa.array([{}], pa.struct([]))) == ["{}"]
    nothing = pa.StructArray.from_arrays([pa.nulls(1), pa.array([1])], ["n", "a"])
    assert encoded(structs(n=spark.NullType(), a=LONG), nothing) == ['{"a":1}']


INTERVAL = spark.DayTimeIntervalType()


@pytest.mark.parametrize(
    ("type_", "column", "said"),
    [
        (LONG, "key", "column key='bigint': a struct, array or map is written as JSON"),
        (structs(a=INTERVAL), "value", "column value.a='interval day to second': this type"),
        (structs(a=INTERVAL), "", "column a='interval day to second': this type is not written"),
        (structs(a=spark.VariantType()), "", "column a='variant'"),
        (structs(a=spark.ArrayType(structs(b=INTERVAL))), "", "column a.element.b='interval"),
        (structs(a=spark.MapType(spark.BinaryType(), LONG)), "", "column a='binary': a map with k"),
        (structs(a=spark.MapType(spark.DateType(), LONG)), "", "column a='date': a map with keys"),
        (structs(a=spark.MapType(spark.TimestampType(), LONG)), "", "column a='timestamp': a map"),
        (structs(a=spark.MapType(spark.DoubleType(), LONG)), "", "column a='double': a map with k"),
        (
            structs(a=spark.MapType(structs(q=LONG), LONG)),
            "",
            "column a='struct<q:bigint>': a map with keys of this type is not written as JSON",
        ),
    ],
    ids=str,
)
def test_a_type_that_is_not_written_as_json_is_refused_with_its_column(type_, column, said):
    with pytest.raises(OptionError) as caught:
        json_encoder(type_, ZONE, column)
    assert said in caught.value.text
