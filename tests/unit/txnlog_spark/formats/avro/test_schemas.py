"""Validity of Avro schemas, and pairs of writer's and reader's schemas that can be resolved."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type
from support.spark.avro_cases import encoded

from txnlog_spark.formats.avro.decode import avro_decoder, null_fields
from txnlog_spark.formats.avro.encode import avro_encoder
from txnlog_spark.formats.avro.schema import Avro, decimal_bytes, decimal_digits, parse_avro
from txnlog_spark.formats.avro.types import TypeOptions, avro_json, spark_type
from txnlog_spark.formats.errors import AvroSchemaError, MalformedAvro


def record(*fields: tuple[str, Any] | dict[str, Any], **more: Any) -> dict[str, Any]:
    made = [
        each if isinstance(each, dict) else {"name": each[0], "type": each[1]} for each in fields
    ]
    return {"type": "record", "name": "R", "fields": made} | more


def read_as(writer: Any, reader: Any, values: list[Any]) -> list[Any]:
    """Values of one schema, read as another."""
    node = parse_avro(json.dumps(reader))
    type_ = to_arrow_type(spark_type(node, TypeOptions()), timezone="UTC")
    decoder = avro_decoder(parse_avro(json.dumps(writer)), node, type_, -1)
    found = decoder(pa.array(encoded(values, writer), pa.binary()))
    if found.first_problem is not None:
        raise MalformedAvro(*found.first_problem)
    return found.values.to_pylist()


BARE = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'


@pytest.mark.parametrize(
    "text",
    [
        f"/* licence\n * of it */\n{BARE}",
        f"// one line\n{BARE}",
        f"// one line of an old Macintosh\r{BARE}",
        BARE.replace('"name"', '/* "x": */ "name"'),
        BARE.replace(', "fields"', ', // the rest\n "fields"'),
        f"/**/{BARE}  \n",
    ],
)
def test_comments_are_taken_where_avros_java_library_takes_them(text: str) -> None:
    assert parse_avro(text).name == "R"
    assert [field.name for field in parse_avro(text).fields] == ["a"]


def test_what_looks_like_a_comment_in_a_string_is_none() -> None:
    enum = {"type": "enum", "name": "E", "doc": 'http://x /* y */ \\" // z', "symbols": ["A"]}
    assert parse_avro(json.dumps(record(("a", enum)))).fields[0].type.symbols == ("A",)


@pytest.mark.parametrize(
    "text", [f"{BARE} // x", f"{BARE} /* x */", f"/* x {BARE}", f"# x\n{BARE}"]
)
def test_a_comment_behind_a_schema_is_refused_as_in_java(text: str) -> None:
    with pytest.raises(AvroSchemaError, match="not valid JSON"):
        parse_avro(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON"),
        ("[]]", "not valid JSON"),
        ('"whole"', "'whole', which is not defined"),
        ("7", "has a type in this place"),
        ('{"items":"int"}', "has a type in this place"),
        ('{"type":"array"}', "no 'items'"),
        ('["int","int"]', "int twice"),
        ('["int",["null","string"]]', "a union"),
        ('{"type":"fixed","name":"F"}', "size of F .* whole number"),
        ('{"type":"fixed","name":"F","size":true}', "whole number"),
        ('{"type":"enum","name":"E","symbols":["A","A"]}', "different symbols"),
        ('{"type":"enum","symbols":["A"]}', "None is not a valid Avro name"),
        ('{"type":"record","name":"a b","fields":[]}', "'a b' is not a valid Avro name"),
        ('{"type":"record","name":"R"}', "no list of fields"),
        (json.dumps(record(("a", "int"), ("a", "int"))), "no valid name of its own"),
        (json.dumps(record({"name": "a"})), "the field a .* has no type"),
        (json.dumps(record(("a", record()))), "'R' twice"),
        ("[" * 100_000, "too deeply"),
    ],
)
def test_what_is_no_schema(text: str, said: str) -> None:
    with pytest.raises(AvroSchemaError, match=said):
        parse_avro(text)


def test_a_bare_name_is_a_schema_and_names_are_found_in_their_namespace() -> None:
    assert parse_avro(" string ").kind == "string"
    inner = {"type": "fixed", "name": "F", "size": 2}
    node = parse_avro(json.dumps(record(("a", inner), ("b", "F"), ("c", "x.F"), namespace="x")))
    assert [field.type.name for field in node.fields] == ["x.F"] * 3


def test_how_many_digits_a_number_of_bytes_holds() -> None:
    assert [decimal_digits(size) for size in (0, 1, 2, 4, 8, 16)] == [0, 2, 4, 9, 18, 38]
    assert [decimal_bytes(digits) for digits in (1, 2, 3, 9, 10, 18, 19, 38)] == [
        1, 1, 2, 4, 5, 8, 9, 16,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "long", "logicalType": "timestamp-nanos"}, "timestamp-nanos"),
        ({"type": "long", "logicalType": "local-timestamp-nanos"}, "local-timestamp-nanos"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39}, "39 digits .* 38"),
        (
            {"type": "int", "spark.sql.catalyst.type": "interval year to month"},
            "interval year to month",
        ),
    ],
)
def test_types_that_are_not_converted_are_refused(schema: Any, said: str) -> None:
    with pytest.raises(AvroSchemaError, match=said):
        spark_type(parse_avro(json.dumps(schema)), TypeOptions())
    with pytest.raises(AvroSchemaError, match="interval"):
        avro_json(spark.DayTimeIntervalType(), True)
    with pytest.raises(AvroSchemaError, match="map<int,int>"):
        avro_json(spark.MapType(spark.IntegerType(), spark.IntegerType()), True)


def test_names_of_union_members_that_clash_are_refused() -> None:
    union = ["string", record(name="a.String"), "null"]
    with pytest.raises(AvroSchemaError, match="have the same name"):
        spark_type(parse_avro(json.dumps(union)), TypeOptions(stable_union_names=True))


@pytest.mark.parametrize(
    ("writer", "reader", "values", "read"),
    [
        ("int", "long", [1], [1]),
        ("int", ["null", "double"], [1], [1.0]),
        ("long", "float", [2**53 + 1], [float(2**53)]),
        (
            ["null", "int"], ["string", "null", "long"],
            [None, 3], [None, {"member0": None, "member1": 3}],
        ),
        (["int", "string"], "string", ["a"], ["a"]),
        (["null", "int"], "int", [4], [4]),
        (["null", "int"], ["null", "string"], [None], [None]),
        ("bytes", "string", [b"a"], ["a"]),
        ("string", {"type": "bytes", "logicalType": "decimal", "precision": 3}, ["\x01"], [1]),
        (["int", "long"], "double", [1, 2**40], [1.0, 2.0**40]),
        ("null", ["null", "int"], [None], [None]),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_written_as_one_type_is_read_as_another(
    writer: Any, reader: Any, values: list[Any], read: list[Any]
) -> None:
    assert read_as(writer, reader, values) == read


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ("long", "int"),
        ("string", "int"),
        ("null", "int"),
        (["null"], "string"),
        (["string", "bytes"], ["null", "int"]),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}),
        (record(), record(("a", "int"))),
        (record(), record({"name": "a", "type": "int", "default": "x"})),
        (record(), record({"name": "a", "type": "int", "default": None})),
        (record(), record({"name": "a", "type": record(("b", "int"), name="S"), "default": {}})),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_refused_before_any_value(writer: Any, reader: Any) -> None:
    with pytest.raises(AvroSchemaError):
        read_as(writer, reader, [])


@pytest.mark.parametrize(
    ("writer", "reader", "value", "said"),
    [
        (["int", "string"], "string", 1, "a branch of the writer's union"),
        (["null", "int"], "int", None, "null where the reader's schema has no null"),
        (["null", "string"], ["null"], "a", "null alone"),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "E", "symbols": ["A"]},
            "B",
            "a symbol of E",
        ),
        (
            "bytes",
            {"type": "bytes", "logicalType": "decimal", "precision": 2},
            b"\x64",
            "precision",
        ),
        ("bytes", {"type": "bytes", "logicalType": "decimal", "precision": 2}, b"", "no bytes"),
        (
            "bytes",
            {"type": "bytes", "logicalType": "decimal", "precision": 38},
            b"\x01" + bytes(16),
            "more than 16 bytes",
        ),
        ("long", {"type": "long", "logicalType": "timestamp-millis"}, 2**62, "overflow"),
    ],
)
def test_a_value_that_the_reader_has_no_place_for_is_named(
    writer: Any, reader: Any, value: Any, said: str
) -> None:
    with pytest.raises(MalformedAvro, match=rf"row 0 of an Arrow batch: .*{said}"):
        read_as(writer, reader, [value])


def test_decimals_of_any_length_and_sign() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 38}
    numbers = [0, 1, -1, 127, 128, -128, -129, 10**37, -(10**37)]
    written = [n.to_bytes(size, "big", signed=True) for n in numbers for size in (16, 20)]
    assert read_as("bytes", decimal, written) == [n for n in numbers for _ in range(2)]


def test_a_malformed_struct_becomes_one_of_nulls_and_an_absent_one_stays_null() -> None:
    type_ = pa.struct([("a", pa.int32())])
    made = pa.array([{"a": 1}, None, None], type_)
    absent = pa.array([False, False, True])
    assert null_fields(made, absent).to_pylist() == [{"a": 1}, {"a": None}, None]
    assert null_fields(pa.array([1, None]), pa.array([False, False])).to_pylist() == [1, None]


def test_a_union_knows_what_it_is_widened_to() -> None:
    assert parse_avro('["int","null","long"]').widened == "long"
    assert parse_avro('["double","float"]').widened == "double"
    assert parse_avro('["int","double"]').widened == Avro("int").widened == ""


@pytest.mark.parametrize(
    ("type_", "node", "said"),
    [
        (
            pa.decimal128(12, 2),
            {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
            "the column d of type decimal128(12, 2) cannot be written as Avro bytes "
            "(decimal(10,2))",
        ),
        (
            pa.string(),
            {"type": "int", "logicalType": "date"},
            "the column d of type string cannot be written as Avro int (date)",
        ),
        (pa.string(), "int", "the column d of type string cannot be written as Avro int"),
    ],
    ids=["decimal", "date", "int"],
)
def test_a_column_that_does_not_fit_is_told_the_whole_type_that_is_wanted(
    type_: pa.DataType, node: Any, said: str
) -> None:
    with pytest.raises(AvroSchemaError) as caught:
        avro_encoder(parse_avro(json.dumps(node)), type_, "d")
    assert caught.value.text.endswith(said)
