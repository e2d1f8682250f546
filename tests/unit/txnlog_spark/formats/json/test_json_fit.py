"""Columns that fit a JSON schema, and refusals that name the column."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DataType, LongType, NullType, StructType

from txnlog_spark.errors import OptionError
from txnlog_spark.formats.ddl import parse_ddl
from txnlog_spark.formats.write_formats import write_formats
from txnlog_spark.options.declared import Use
from txnlog_spark.options.parse import parse_options

ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["null", "string"]},
        "n": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "required": ["a"],
        },
        "tags": {"type": "array", "items": {"type": "string"}},
        "counts": {"type": "object", "additionalProperties": {"type": "number"}},
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"q": {"type": "integer"}}},
        },
    },
    "required": ["id", "note"],
}


def writer(schema: Any, type_: DataType, side: str = "value") -> Any:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    given = {f"{side}.format": "json", f"{side}.schema": text, "path": "p", "topic": "t"}
    return write_formats(parse_options(given, Use.WRITE_BATCH))[side].writer(type_, "t")


def refused(schema: Any, ddl: str, side: str = "value") -> str:
    with pytest.raises(OptionError) as caught:
        writer(schema, parse_ddl(ddl), side)
    assert f"option column {side}" in caught.value.text
    return caught.value.text.replace(f"column {side}.", "column ")


def a(**schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


INTEGER, NUMBER, TEXT = a(type="integer"), a(type="number"), a(type="string")
DAY, AT = a(type="string", format="date"), a(type="string", format="date-time")
DATA = a(type="string", contentEncoding="base64")
FLAG = a(type="boolean")


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (INTEGER, "tinyint smallint int bigint decimal(20,0)"),
        (a(type="integer", **{"connect.type": "int8"}), "bigint"),
        (NUMBER, "tinyint bigint float double decimal(9,2) decimal(20,0)"),
        (TEXT, "string binary date timestamp timestamp_ntz"),
        (DAY, "date string"),
        (AT, "timestamp string"),
        (DATA, "binary string"),
        (FLAG, "boolean"),
        (a(type="array", items={"type": "integer"}), "array<int>"),
        (
            a(type="object", additionalProperties={"type": "number"}),
            "map<string,int> map<bigint,double> struct<x:int,y:float>",
        ),
        (
            a(type="object", properties={"x": {"type": "integer"}, "y": {"type": "string"}}),
            "struct<x:int> struct<y:date,x:int>",
        ),
        ("a bigint, b timestamp_ntz", "tinyint"),
    ],
)
def test_a_column_fits_whose_json_is_of_the_kind_that_the_schema_gives(
    schema: Any, types: str
) -> None:
    for type_ in types.split():
        writer(schema, parse_ddl(f"a {type_}"))


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (INTEGER, "string boolean float double decimal(9,2) array<int> date"),
        (NUMBER, "string boolean timestamp binary"),
        (TEXT, "int boolean array<string> struct<x:string>"),
        (DAY, "int timestamp binary"),
        (AT, "date timestamp_ntz bigint"),
        (DATA, "date array<int>"),
        (FLAG, "int string"),
        (a(type="array", items={"type": "integer"}), "int map<string,int>"),
        (a(type="object", additionalProperties={"type": "number"}), "array<double> string"),
        (a(type="object", properties={"x": {"type": "integer"}}), "map<string,int> int"),
        ("a bigint", "string"),
    ],
)
def test_a_column_of_another_kind_is_refused_by_name_when_the_query_plans(
    schema: Any, types: str
) -> None:
    for type_ in types.split():
        said = refused(schema, f"a {type_}")
        assert said.startswith(f"[TXNLOG_OPTION] option column a='{type_}': ")
        assert said.endswith("in the schema: cast it before the write")


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("id int, note string, extra int", "column extra='int': one of the fields of the schema"),
        ("id int, note string, n struct<a:int,c:int>", "column n.c='int': one of the fields of"),
        ("id int, note string, n struct<a:string>", "column n.a='string': bigint in the schema"),
        ("id int, note string, n struct<b:string>", "column n.a: add it, the schema requires it"),
        ("note string", "column id: add it, the schema requires it"),
        ("id int, tags array<int>", "column tags.element='int': string in the schema"),
        ("id int, counts map<string,string>", "column counts.value='string': double in the"),
        ("id int, counts struct<x:string>", "column counts.x='string': double in the schema"),
        ("id int, lines array<struct<q:string>>", "column lines.element.q='string': bigint"),
        ("array<int>", "column value='array<int>': struct<id:bigint,"),
    ],
)  # fmt: skip
def test_what_is_nested_is_named_by_its_path(ddl: str, said: str) -> None:
    assert f"option {said}" in refused(ORDER, ddl)


def test_a_column_of_nulls_alone_fits_where_null_does() -> None:
    never, empty = StructType().add("a", NullType()), StructType().add("a", ArrayType(NullType()))
    assert writer(INTEGER, never).encode(pa.array([{"a": None}])).to_pylist() == [b"{}"]
    lists = writer(a(type="array", items={"type": "integer"}), empty)
    array = pa.array([{"a": []}], pa.struct([("a", pa.list_(pa.null()))]))
    assert lists.encode(array).to_pylist() == [b'{"a":[]}']
    with pytest.raises(OptionError, match=r"column value\.a: 1 value is null"):
        writer(INTEGER | {"required": ["a"]}, never).encode(pa.array([{"a": None}]))


def test_a_key_that_does_not_fit_is_named_as_the_key() -> None:
    said = refused({"type": "array", "items": {"type": "integer"}}, "a int", "key")
    assert "option column key='struct<a:int>': array<bigint> in the schema" in said


def test_additional_properties_that_the_schema_allows_are_refused_as_well() -> None:
    for allowed in (True, {"type": "integer"}):
        assert "column b='int': one of" in refused(
            INTEGER | {"additionalProperties": allowed}, "a int, b int"
        )


ROW = {"id": 1, "note": "n", "n": {"a": 1, "b": "b"}, "tags": ["t"], "counts": [("k", 1.0)]}
ROW_DDL = "id int, note string, n struct<a:int,b:string>, tags array<string>,"
ROW_DDL += "counts map<string,double>"
ROW_TYPE = pa.struct(
    [
        ("id", pa.int32()),
        ("note", pa.string()),
        ("n", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.float64())),
    ]
)


def encoded(schema: Any, row: dict[str, Any]) -> str:
    whole = pa.array([ROW, row], ROW_TYPE)
    return writer(schema, parse_ddl(ROW_DDL)).encode(whole)[1].as_py().decode()


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"id": None}, "id"),
        ({"n": {"a": None, "b": "x"}}, "n.a"),
        ({"tags": ["x", None]}, "tags.element"),
        ({"counts": [("k", None)]}, "counts.value"),
    ],
)
def test_null_is_refused_in_its_task_where_the_schema_wants_a_value(
    given: dict[str, Any], path: str
) -> None:
    with pytest.raises(OptionError) as caught:
        encoded(ORDER, ROW | given)
    assert f"option column value.{path}: 1 value is null, which the schema does not allow" in str(
        caught.value
    )
    ddl = "id int, note string, n struct<a:int,b:string>, tags array<string>,"
    assert encoded(f"{ddl} counts map<string,double>", ROW | given), "DDL requires nothing"


def test_null_is_left_out_where_the_schema_does_not_want_a_value() -> None:
    row = {"id": 1, "note": None, "n": {"a": 1, "b": None}, "tags": None, "counts": []}
    assert encoded(ORDER, row) == '{"id":1,"n":{"a":1},"counts":{}}'
    assert encoded(ORDER, row | {"n": None}) == '{"id":1,"counts":{}}'


def test_without_a_schema_null_is_left_out_whatever_the_columns_type_says() -> None:
    given = parse_options({"value.format": "json", "path": "p", "topic": "t"}, Use.WRITE_BATCH)
    made = write_formats(given)["value"].writer(StructType().add("a", LongType(), False), "t")
    assert made.encode(pa.array([{"a": None}, {"a": 1}])).to_pylist() == [b"{}", b'{"a":1}']
