"""JSON texts as Spark 4.3's `from_json` reads them: its answers, written down, and the refusals.

A text that `from_json` takes and that is refused here is `REFUSED`: malformed, with a reason.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from txnlog_spark.errors import OptionError
from txnlog_spark.formats.json.decode import json_decoder

BAD = "malformed"
REFUSED = BAD
"""Malformed here, and a value for `from_json`."""
ZONE = "America/New_York"


ATOMIC = {
    "boolean": spark.BooleanType(),
    "tinyint": spark.ByteType(),
    "smallint": spark.ShortType(),
    "int": spark.IntegerType(),
    "bigint": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "string": spark.StringType(),
    "binary": spark.BinaryType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampType(),
    "timestamp_ntz": spark.TimestampNTZType(),
    "decimal(5,2)": spark.DecimalType(5, 2),
    "decimal(38,18)": spark.DecimalType(38, 18),
    "array<int>": spark.ArrayType(spark.IntegerType()),
    "map<string,int>": spark.MapType(spark.StringType(), spark.IntegerType()),
    "struct<>": spark.StructType(),
}


def structs(**fields: Any) -> Any:
    made = spark.StructType()
    for name, type_ in fields.items():
        made.add(name, type_)
    return made


def decoded(type_: Any, *values: bytes, zone: str = ZONE) -> list[Any]:
    """Values, `BAD` where one is malformed: together, and each by itself."""
    decode = json_decoder(type_, zone)
    found = rows(decode(pa.array(values, pa.binary())))
    alone = [rows(decode(pa.array([value], pa.binary())))[0] for value in values]
    assert repr(found) == repr(alone)
    return found


def rows(made: Any) -> list[Any]:
    made.values.validate(full=True)
    found = made.values.to_pylist()
    if made.problems is not None:
        for row, problem in enumerate(made.problems.to_pylist()):
            if problem is not None:
                assert found[row] is None
                found[row] = BAD
    return found


def fields(ddl: str, *texts: str) -> list[Any]:
    """Return the decoded field of this type for each JSON text."""
    type_ = structs(a=ATOMIC[ddl])
    values = [b'{"a":%s}' % text.encode("utf-8", "surrogatepass") for text in texts]
    return [row if row == BAD else row["a"] for row in decoded(type_, *values)]


VALUES: dict[str, dict[str, Any]] = {
    "boolean": {
        "true": True, "false": False, "null": None, '"true"': BAD, "1": BAD, "TRUE": BAD,
        "true1": BAD,
    },
    "tinyint": {
        "127": 127, "128": REFUSED, "-128": -128, "-129": BAD, "255": REFUSED, "256": BAD,
        "1.0": BAD, "-0": 0, '"1"': BAD,
    },
    "smallint": {
        "32767": 32767, "32768": BAD, "-32769": BAD,
    },
    "int": {
        "2147483647": 2147483647, "2147483648": BAD, "-2147483648": -2147483648, "1e2": BAD,
        "01": BAD, "+1": BAD, "0x1": BAD, '""': BAD,
    },
    "bigint": {
        "9223372036854775807": 9223372036854775807, "9223372036854775808": BAD,
    },
    "decimal(5,2)": {
        "1": Decimal("1.00"), "1.005": Decimal("1.01"), "-1.005": Decimal("-1.01"),
        "999.994": Decimal("999.99"), "999.995": BAD, "1e2": Decimal("100.00"),
        "1e-5": Decimal("0.00"), '"1,0"': Decimal("10.00"), '" 1"': BAD, '",1"': Decimal("1.00"),
        '"+1"': Decimal("1.00"), '".5"': Decimal("0.50"), "1e-1000000000": BAD,
        "123456789012345678901234567890": BAD, '"x"': BAD, "NaN": BAD,
    },
    "decimal(38,18)": {
        "123456789012345678901234567890": BAD, "5e-19": Decimal("1E-18"),
        "12345678901234567890.5": Decimal("12345678901234567890.500000000000000000"),
    },
    "binary": {
        '"aGVsbG8="': b"hello", '"aGVsbG8"': BAD, '"aGVsbG9="': b"hello", '"aGVs bG8="': REFUSED,
        '"a GVs"': BAD, '""': b"", "1": BAD, '"-_-_"': BAD, '"aG=="': b"h", '"aG==x"': BAD,
        '"aGVs\x01bG8="': REFUSED,
    },
    "date": {
        '"2020-01-02"': date(2020, 1, 2), '"2020-1-2"': REFUSED, '"2020"': REFUSED,
        '"2020-02-30"': BAD, '"10"': REFUSED, '"-5"': REFUSED, "10": BAD,
        '"2020-01-02T10"': REFUSED, '"2020-01-02GMT"': REFUSED, '" 2020-01-02 "': REFUSED,
        '""': BAD,
    },
}  # fmt: skip
"""Values of texts by the type of their field."""


@pytest.mark.parametrize("ddl", VALUES)
def test_a_field_has_the_value_that_from_json_gives_it(ddl):
    assert fields(ddl, *VALUES[ddl]) == list(VALUES[ddl].values())


def test_a_decimal_may_have_many_digits_in_a_string():
    texts = [f'"0.{"1" * 6000}"', f'"{"0" * 6000}1"', f'"{"1" * 6000}"', '"٣.٥"', '"𝟘"']
    expected = [Decimal("0.11"), Decimal("1.00"), BAD, REFUSED, BAD]
    assert fields("decimal(5,2)", *texts) == expected


def test_a_great_exponent_is_not_given_to_arrow():
    """Whose reader it would crash, also where an escape hides it."""
    texts = ['"1\\u0065-1000000000"', '"1e\\u002d5"', '"1e-99\\u0039999999"', '"\\u0031e77"']
    expected = [BAD, Decimal("0.00"), BAD, BAD]
    assert fields("decimal(5,2)", *texts) == expected


def test_numbers_that_are_not_finite_have_their_names():
    texts = [
        "NaN", '"NaN"', "Infinity", "-INF", "+INF", '"+Infinity"', "1e400",
        "INF", "Inf", "-NaN", '"1.5"', '"INF"', "",
    ]  # fmt: skip
    refused = f"'{REFUSED}'"
    shown = ["nan", "nan", "inf", refused, refused, refused, "inf"] + [f"'{BAD}'"] * 6
    assert [repr(value) for value in fields("double", *texts)] == shown


def test_only_a_fraction_has_a_negative_zero():
    assert [str(value) for value in fields("double", "-0", "-0.0", "0")] == ["0.0", "-0.0", "0.0"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.00000017881393432617187499", 1.0000001192092896),
        ("1.000000178813934326171875", 1.0000002384185791), ("16777217", 16777216.0),
        ("9007199791611905", 9007200328482816.0), ("3.4028235677973366e38", 3.4028234663852886e38),
        ("1e39", float("inf")), ("1e-46", 0.0),
    ],
)  # fmt: skip
def test_a_float_is_the_nearest_one(text, value):
    assert fields("float", text) == [value]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"x"', "x"), ("1", "1"), ("1.10", "1.1"), ("1e5", "100000.0"), ("-0", "0"),
        ("-0.0", "-0.0"), ("1e400", '"Infinity"'), ("NaN", '"NaN"'), ("true", "true"),
        ("null", None), ("[ ]", "[]"),
        ('{"b" : 1 , "c":[1, 2.50 ,"x\\u00e9\\n\\/"]}', '{"b":1,"c":[1,2.5,"xé\\n/"]}'),
        ('"\\ud800"', "?"), ('"\\ud83d\\ude00"', "😀"), ('"\\ude00\\ud83d"', "??"),
        ('{"a":"\\ud800"}', '{"a":"\\uD800"}'),
        ('{"\\u0001":"\\u001f\x7f"}', '{"\\u0001":"\\u001F\x7f"}'), ("'a\"b'", REFUSED),
        ('"\\\'"', REFUSED), ('"a\tb"', BAD), ('"\\x"', BAD), ("[1,]", BAD), ('"\\u0000"', "\0"),
        ("12345678.5", "1.23456785E7"), ("0.0001", "1.0E-4"), ("4.9e-324", "4.9E-324"),
    ],
)  # fmt: skip
def test_a_string_takes_any_value(text, value):
    assert fields("string", text) == [value]


@pytest.mark.parametrize("raw", [b"\xff", b"\xed\xa0\x80", b"\xe2\x82", b"\xed\xa00"])
def test_bytes_that_are_not_utf8_are_refused(raw):
    """Java puts replacement characters for them, and the value would not be the producer's."""
    value = b'{"a":"%s"}' % raw
    assert decoded(structs(a=ATOMIC["string"]), b'{"a":"x"}', value) == [{"a": "x"}, REFUSED]
    made = json_decoder(structs(a=ATOMIC["string"]), ZONE)(pa.array([value]))
    assert made.first_problem[1].startswith("it is not UTF-8: ")


@pytest.mark.parametrize(
    ("text", "micros", "without_zone"),
    [
        ("2020-01-02T03:04:05Z", 1577934245000000, None),
        ("2020-01-02 03:04:05", 1577952245000000, 1577934245000000),
        ("2020-01-02T03:04:05.123456789Z", 1577934245123456, None),
        ("2020-01-02T03:04:05.1", 1577952245100000, 1577934245100000),
        ("2020-01-02T03:04:05+01:00", 1577930645000000, None),
        ("2020-01-02T03:04:05+0100", 1577930645000000, None),
        ("2020-01-02T03:04:05.5+01", 1577930645500000, None),
        ("2020-01-02T03:04", 1577952240000000, 1577934240000000),
        ("2020-01-02", 1577941200000000, 1577923200000000),
        ("2020-01-02T03:04:05+18:00", REFUSED, None),
        ("2020-01-02T03:04:05 Europe/Paris", REFUSED, None),
        ("2020-01-02T03:04:05PST", REFUSED, None),
        ("2020-01-02T03:04:05GMT+01:30:15", REFUSED, None),
        ("2020-01-02T03:04:05+18:01", None, None),
        ("2020-01-02T03:04:05America/new_york", None, None),
        ("2020-01-02GMT", REFUSED, None),
        ("2020-01", REFUSED, REFUSED),
        ("2020-03-08 02:30:00", 1583652600000000, 1583634600000000),
        ("2020-11-01 01:30:00", 1604208600000000, 1604194200000000),
        ("1883-11-18 12:00:00", -2717651038000000, -2717668800000000),
        ("12000-07-01 00:00:00", REFUSED, REFUSED),
        ("-0044-03-15 00:00:00", REFUSED, REFUSED),
        ("0000-12-31 00:00:00", REFUSED, REFUSED),
        ("0001-01-01 00:00:00", -62135579038000000, -62135596800000000),
        ("9999-12-31T23:59:59.999999Z", 253402300799999999, None),
        ("2020-01-02T24:00:00", None, None),
        ("2020-02-30T00:00:00", None, None),
        ("300000-01-01T00:00:00Z", None, None),
    ],
)
def test_timestamps(text, micros, without_zone):
    type_ = structs(a=ATOMIC["timestamp"]), structs(a=ATOMIC["timestamp_ntz"])
    value = pa.array([b'{"a":"%s"}' % text.encode()])
    for each, expected in zip(type_, (micros, without_zone), strict=True):
        made = json_decoder(each, ZONE)(value)
        assert (made.problems is not None) == (expected in (None, REFUSED))
        if made.problems is None:
            assert made.values.field(0).view(pa.int64()).to_pylist() == [expected]


def test_a_number_is_seconds_of_a_timestamp():
    assert fields("timestamp", "1577934245", "-1", "1.5") == [
        datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        BAD,
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"a":1}', {"a": 1}),
        (b"{}", {"a": None}),
        (b"", None),
        (b" \n", None),
        (b"null", BAD),
        (b'[{"a":1}]', BAD),
        (b'{"a":1} x', {"a": 1}),
        (b'{"a":1}{"a":2}', {"a": 1}),
        (b'{"a":1}null{}', {"a": 1}),
        (b'{"a":1}\0', {"a": 1}),
        (b'{"a":1\0}', BAD),
        (b"{'a':1}", REFUSED),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'{"a":"x","a":1}', BAD),
        (b'{"a":1,}', BAD),
        (b"{a:1}", BAD),
        (b'\xef\xbb\xbf{"a":1}', BAD),
        (b"/**/{}", BAD),
        (b'{"z":Inf}', BAD),
        (b'{"z":NaN}', {"a": None}),
        (b'{"a":{"b":1}', BAD),
        (b'{"z":"x}', BAD),
        (b'{"\\u0061":1}', {"a": 1}),
        (b'{"z\\u":"x","a":1}', BAD),
        (b'{"z\\u006":1,"a":1}', BAD),
        (b"{'z\\u':1,'a':1}", BAD),
        (b'{"z":01}', BAD),
        (b'{"z":' + b"[" * 499 + b"]" * 499 + b"}", {"a": None}),
        (b'{"z":[' + b"[]," * 1499 + b"[]]}", {"a": None}),
        (b'{"z":' + b"[" * 1000 + b"]" * 1000 + b"}", BAD),
        (b'{"z":' + b"1" * 1000 + b"}", {"a": None}),
        (b'{"z":' + b"1" * 1001 + b"}", {"a": None}),
        (b'{"z":-' + b"1" * 5000 + b"}", {"a": None}),
        (b'{"a":' + b"1" * 5000 + b"}", BAD),
        (b'{"z":"' + b"1" * 1001 + b'"}', {"a": None}),
        (b'{"z":"' + b"[" * 1001 + b'"}', {"a": None}),
        (b'{"' + b"z" * 50_000 + b'":1}', {"a": None}),
        (b'{"' + b"z" * 50_001 + b'":1}', {"a": None}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_whole_value(value, expected):
    """A value is decoded alike alone and among other values, and does not change them."""
    many = [b'{"a":%d}' % number for number in range(40)]
    found = rows(json_decoder(structs(a=ATOMIC["int"]), ZONE)(pa.array([*many, value, *many])))
    assert found[40] == expected
    assert [row["a"] for row in found[:40]] == [row["a"] for row in found[41:]] == list(range(40))


def test_two_halves_of_a_value_are_no_value():
    type_ = structs(a=ATOMIC["int"], b=structs(c=ATOMIC["int"]))
    assert decoded(type_, b'{"b":{"c":1}', b'{"a":2}}', b'{"a":3}') == [
        BAD,
        {"a": 2, "b": None},
        {"a": 3, "b": None},
    ]


def test_arrays_and_maps_as_whole_values():
    array = spark.ArrayType(structs(b=ATOMIC["int"]))
    assert decoded(
        array, b'[{"b":1},null]', b'{"b":1}', b"[]", b"null", b"", b'[{"b":"x"}]', b"[1"
    ) == [
        [{"b": 1}, None],
        REFUSED,
        [],
        BAD,
        None,
        BAD,
        BAD,
    ]
    values = decoded(ATOMIC["map<string,int>"], b'{"x":1,"x":null}', b"{}", b"[]", b'{"x":"y"}')
    assert values == [[("x", 1), ("x", None)], [], BAD, BAD]
    assert decoded(ATOMIC["array<int>"], b"[1] x", b'[1],"v":[2]', b" [1]", b"[1]}") == [[1]] * 4


def test_nested_values_and_null():
    type_ = structs(a=structs(b=ATOMIC["string"], c=ATOMIC["array<int>"]), e=ATOMIC["struct<>"])
    assert decoded(type_, b'{"a":{"c":[1,null]},"e":{"x":1}}', b'{"a":null}', b'{"a":[]}') == [
        {"a": {"b": None, "c": [1, None]}, "e": {}},
        {"a": None, "e": None},
        BAD,
    ]


def test_null_and_missing_fields_need_not_be_nullable():
    type_ = spark.StructType([spark.StructField("a", ATOMIC["int"], nullable=False)])
    assert decoded(type_, b"{}", b'{"a":null}') == [{"a": None}] * 2


def test_the_type_is_that_of_spark():
    type_ = structs(
        a=ATOMIC["timestamp"], b=spark.ArrayType(ATOMIC["date"], False), c=ATOMIC["map<string,int>"]
    )
    for each in (type_, spark.StructType(type_.fields[:2])):
        made = json_decoder(each, ZONE)(pa.array([b"{}", b"", b"x"]))
        assert made.values.type.equals(to_arrow_type(each, timezone="UTC"), check_metadata=True)


def test_a_problem_names_the_field_and_the_value():
    type_ = structs(a=structs(b=ATOMIC["int"]))
    made = json_decoder(type_, ZONE)(pa.array([b'{"a":{"b":"x"}}', b"{}", b'{"a" 1}']))
    assert made.first_problem == (0, 'the field a.b is "x", which is not a value of int')
    assert made.problems.to_pylist()[1:] == [
        None,
        "it is not JSON: Expecting ':' delimiter at character 6",
    ]


@pytest.mark.parametrize(
    ("type_", "said"),
    [
        (ATOMIC["int"], "as a struct, an array or a map, not as int"),
        (
            structs(a=spark.MapType(ATOMIC["int"], ATOMIC["int"])),
            "the field a is read from JSON as a map with string keys, not as map<int,int>",
        ),
        (structs(a=spark.NullType()), "the field a is not read from JSON as void"),
        (structs(a=structs(b=spark.VariantType())), "the field a.b is not read from JSON as varia"),
        (spark.ArrayType(spark.CalendarIntervalType()), "not read from JSON as interval"),
    ],
    ids=str,
)
def test_a_type_that_is_not_read_from_json_is_refused_with_its_field(type_, said):
    with pytest.raises(ValueError, match=said):
        json_decoder(type_, ZONE)


@pytest.mark.parametrize("name", ["Mars/Base", "PST", "EST", "+19:00", "+1:60", "GMT+0100", ""])
def test_a_zone_without_one_meaning_in_java_and_here_is_refused(name):
    with pytest.raises(OptionError, match="timeZone"):
        json_decoder(structs(a=ATOMIC["int"]), name)


@pytest.mark.parametrize(
    ("name", "hours"),
    [("UTC", 0), ("Z", 0), ("GMT+8", 8), ("UTC-05:30", -5.5), ("+2", 2), ("-18:00", -18)],
)
def test_a_zone_may_be_an_offset(name, hours):
    made = json_decoder(structs(a=ATOMIC["timestamp"]), name)(pa.array([b'{"a":"1970-01-01"}']))
    assert made.values.field(0).view(pa.int64()).to_pylist() == [-hours * 3_600_000_000]


def test_a_name_twice_is_refused():
    type_ = spark.StructType([spark.StructField("a", ATOMIC["int"])] * 2)
    with pytest.raises(ValueError, match="two fields of the same name"):
        json_decoder(type_, ZONE)


def test_nothing_is_decoded_to_nothing():
    assert decoded(structs(a=ATOMIC["int"])) == []
