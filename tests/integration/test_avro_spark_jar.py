"""`txnlog_spark.avro` against Spark's own avro jar: the same types, the same values, both ways.

The jar is asked on one day of the week.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import types as spark
from support.harness.availability import available
from support.spark.avro_cases import NODE, RECORD, SCHEMAS, encoded, orders
from support.spark.spark_avro_peer import Refused, SparkAvro, spark_avro_jar

from txnlog_spark.avro import from_avro, to_avro
from txnlog_spark.formats.avro.schema import parse_avro
from txnlog_spark.formats.avro.types import TypeOptions, avro_json, spark_type
from txnlog_spark.formats.errors import AvroSchemaError

pytestmark = pytest.mark.slow

ROWS = 120


@pytest.fixture(
    scope="module",
    params=[pytest.param(spark_avro_jar, marks=pytest.mark.weekly(day=2), id="jar")],
)
def jar(request) -> Iterator[SparkAvro]:
    started = SparkAvro(available(request.param))
    yield started
    started.stop()


@pytest.fixture
def decode(connector_spark):
    """Type and values that our `from_avro` gives, as the peer answers."""

    def decoded(values: list[bytes | None], schema: str, options: dict[str, str]) -> Any:
        frame = connector_spark.createDataFrame([(value,) for value in values], "value binary")
        made = frame.select(from_avro("value", schema, options).alias("made"))
        return made.schema["made"].dataType.json(), [row.made for row in made.collect()]

    return decoded


@pytest.fixture
def encode(connector_spark):
    """The values that our `to_avro` gives."""

    def made(values: list[Any], type_: spark.DataType, schema: str) -> list[bytes | None]:
        columns = spark.StructType().add("value", type_)
        frame = connector_spark.createDataFrame([(value,) for value in values], columns)
        rows = frame.select(to_avro("value", schema).alias("made")).collect()
        return [None if row.made is None else bytes(row.made) for row in rows]

    return made


# Types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:50])
def test_the_spark_type_of_a_schema(jar, schema):
    text = json.dumps(schema)
    ours = spark_type(parse_avro(text), TypeOptions())
    assert ours.jsonValue() == json.loads(jar.ask("sql_type", text, False, "", -1))


UNION = [
    "null",
    "int",
    "string",
    {"type": "record", "name": "shop.Sale", "fields": [{"name": "x", "type": "int"}]},
    {"type": "enum", "name": "Kind", "symbols": ["A"]},
    {"type": "map", "values": "int"},
]


@pytest.mark.parametrize("prefix", ["member_", ""])
def test_stable_names_of_the_members_of_a_union(jar, prefix):
    text = json.dumps(UNION)
    ours = spark_type(parse_avro(text), TypeOptions(-1, True, prefix))
    assert ours.jsonValue() == json.loads(jar.ask("sql_type", text, True, prefix, -1))


@pytest.mark.parametrize("depth", [-1, 0, 1, 2, 3])
def test_a_record_that_contains_itself(jar, depth):
    text = json.dumps(NODE)
    theirs = jar.ask("sql_type", text, False, "", depth)
    if isinstance(theirs, Refused):
        with pytest.raises(AvroSchemaError, match="recursiveFieldMaxDepth"):
            spark_type(parse_avro(text), TypeOptions(depth))
    else:
        ours = spark_type(parse_avro(text), TypeOptions(depth))
        assert ours.jsonValue() == json.loads(theirs)


SPARK_TYPES = (
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary",
    "date", "timestamp", "timestamp_ntz", "void", "time(6)", "decimal(1,0)", "decimal(18,2)",
    "decimal(38,18)", "array<decimal(9,3)>", "map<string,array<struct<a:decimal(2,1)>>>",
    "struct<a:struct<a:struct<b:decimal(4,2)>>,b:array<struct<c:int>>,n:void>",
)  # fmt: skip


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("ddl", SPARK_TYPES)
def test_the_schema_of_a_spark_type(jar, connector_spark, ddl, nullable):
    type_ = connector_spark.createDataFrame([], f"value {ddl}").schema["value"].dataType
    theirs = jar.ask("avro_type", type_, nullable)
    assert json.loads(avro_json(type_, nullable)) == json.loads(theirs)


# Values ---------------------------------------------------------------------------------------


def test_each_value_that_the_jar_reads_is_read_the_same(jar, decode):
    schema = json.dumps(RECORD)
    values = [*encoded(orders(ROWS), RECORD), None]
    assert decode(values, schema, {}) == jar.ask("decode", values, schema, {})


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ("int", [0, -1, 2**31 - 1, -(2**31)]),
        ("long", [0, 2**63 - 1, -(2**63)]),
        ("double", [0.0, -1.5, float("inf"), 1e308]),
        ("string", ["", "ß", "x" * 1000]),
        # Of a union that is the whole value, the jar reads no null and writes nothing.
        ({"type": "array", "items": ["string", "null", "int"]}, [["a", None, 3], []]),
        ({"type": "array", "items": ["null", "int"]}, [[], [1, None], [None]]),
        ({"type": "map", "values": {"type": "map", "values": "int"}}, [{}, {"a": {"b": 1}}]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, ["A", "B"]),
        ({"type": "long", "logicalType": "time-micros"}, [0, 86_399_999_999]),
        ({"type": "fixed", "name": "F", "size": 2}, [b"ab", b"\0\xff"]),
        ({"type": "record", "name": "Empty", "fields": []}, [{}, {}]),
    ],
    ids=str,
)
def test_a_schema_that_is_not_a_record(jar, decode, encode, schema, values):
    text, written = json.dumps(schema), encoded(values, schema)
    theirs = jar.ask("decode", written, text, {})
    assert decode(written, text, {}) == theirs
    type_ = spark.StructType.fromJson({"type": "struct", "fields": []})
    type_ = type_.add("made", spark._parse_datatype_json_string(theirs[0]))["made"].dataType
    assert encode(theirs[1], type_, text) == jar.ask("encode", theirs[1], type_, text)


def test_recursion_down_to_the_depth_that_is_asked_for(jar, decode):
    leaf = {"id": 3, "next": None, "kids": []}
    tree = {"id": 1, "next": {"id": 2, "next": leaf, "kids": [leaf]}, "kids": [leaf, leaf]}
    written, options = encoded([tree, leaf], NODE), {"recursiveFieldMaxDepth": "2"}
    assert decode(written, json.dumps(NODE), options) == jar.ask(
        "decode", written, json.dumps(NODE), options
    )


def evolved() -> dict[str, Any]:
    """RECORD later on: fields added, dropped, renamed, in another order, and wider."""
    fields = {field["name"]: dict(field) for field in json.loads(json.dumps(RECORD))["fields"]}
    fields["small"]["type"] = "double"
    fields["id"]["type"] = ["null", "long"]
    fields["raw"]["type"] = "string"
    fields["colour"]["type"] |= {"symbols": ["BLUE", "GREEN"], "default": "GREEN"}
    fields["memo"] = fields.pop("note") | {"name": "memo", "aliases": ["note"]}
    fields["new"] = {"name": "new", "type": "string", "default": "nö"}
    fields["none"] = {"name": "none", "type": ["null", "int"], "default": None}
    fields["list"] = {"name": "list", "type": {"type": "array", "items": "int"}, "default": [1, 2]}
    fields["map"] = {
        "name": "map",
        "type": {"type": "map", "values": "bytes"},
        "default": {"k": "\xff"},
    }
    inner = {
        "type": "record",
        "name": "In",
        "fields": [{"name": "x", "type": "long", "default": 5}],
    }
    fields["inner"] = {"name": "inner", "type": inner, "default": {}}
    del fields["price"], fields["grid"]
    return RECORD | {"fields": [fields.pop("new"), *fields.values()]}


def test_values_are_read_as_an_evolved_schema_has_them(jar, decode):
    written, options = encoded(orders(ROWS), RECORD), {"avroSchema": json.dumps(evolved())}
    theirs = jar.ask("decode", written, json.dumps(RECORD), options)
    assert not isinstance(theirs, Refused), theirs
    assert decode(written, json.dumps(RECORD), options) == theirs


def test_what_is_malformed_is_null_as_the_jar_has_it(jar, decode):
    chosen = random.Random(5)
    written: list[bytes | None] = [*encoded(orders(ROWS), RECORD), None]
    for at in range(0, ROWS, 3):
        value = written[at]
        written[at] = value[: chosen.randrange(len(value))]
    options = {"mode": "PERMISSIVE"}
    theirs = jar.ask("decode", written, json.dumps(RECORD), options)
    assert decode(written, json.dumps(RECORD), options) == theirs
    assert decode([b"\x80", b"\x02a"], '"string"', options)[1] == [None, "a"]


def test_a_column_that_is_read_and_written_is_read_the_same_again(decode, encode):
    schema = json.dumps(RECORD)
    read = decode([*encoded(orders(ROWS), RECORD), None], schema, {})
    written = encode(read[1], spark._parse_datatype_json_string(read[0]), schema)
    assert len(set(written)) > ROWS
    assert decode(written, schema, {}) == read


def test_failfast_says_which_row_and_what_to_do(decode):
    written = encoded(orders(4), RECORD)
    written[2] = written[2][:20]
    with pytest.raises(PySparkException, match=r"row \d+ of an Arrow batch: 20 bytes .*PERMISSIVE"):
        decode(written, json.dumps(RECORD), {})


COLUMNS = (
    "id bigint, small int, tiny tinyint, price decimal(20,4), big decimal(38,6), weight float,"
    "ratio double, note string, raw binary, open boolean, day date, at timestamp,"
    "local timestamp_ntz, tags array<string>, grid array<array<int>>, counts map<string,bigint>,"
    "pair struct<left:int>, pairs array<struct<left:int,right:struct<deep:decimal(9,2)>>>"
)


def spark_rows() -> list[Any]:
    """Values of COLUMNS, with null in every place."""
    rows: list[Any] = [None, (None,) * 18]
    for n in range(40):
        sign = -1 if n % 2 else 1
        full = (
            sign << (n % 60), sign * n, sign * n % 100, Decimal(sign * 7**n % 10**15).scaleb(-4),
            Decimal(sign * 10**n % 10**27).scaleb(-6), n / 8, n / 3, "é" * n, bytes(n), n % 2 == 0,
            date(1900 + n * 5, 1, 31), datetime(1960 + n, 1, 1, 0, 0, 0, n, UTC),
            datetime(1960 + n, 1, 1, 0, 0, 0, n), ["a", None][: n % 3], [[1, None], None, []],
            {"k": n} if n % 2 else {}, (n,), [(n, (Decimal(n),)), None, (None, None)][: n % 4],
        )  # fmt: skip
        rows.append(tuple(None if (n + at) % 5 == 0 else v for at, v in enumerate(full)))
    return rows


def test_a_column_is_written_byte_for_byte_as_the_jar_writes_it(jar, encode):
    rows, type_ = spark_rows(), spark.StructType.fromDDL(COLUMNS)
    assert encode(rows, type_, "") == jar.ask("encode", rows, type_, "")


def test_a_column_is_written_with_a_given_schema_as_the_jar_writes_it(jar, decode, encode):
    type_json, values = decode(encoded(orders(ROWS), RECORD), json.dumps(RECORD), {})
    type_ = spark._parse_datatype_json_string(type_json)
    ours = encode(values, type_, json.dumps(RECORD))
    theirs = jar.ask("encode", values, type_, json.dumps(RECORD))
    assert len(ours) == len(theirs) == ROWS
    for mine, other, order in zip(ours, theirs, orders(ROWS), strict=True):
        # Java writes a map's entries in the order of its hash table.
        if len(order["counts"]) < 2:
            assert mine == other
    assert jar.ask("decode", ours, json.dumps(RECORD), {}) == (type_json, values)


@pytest.mark.parametrize(
    ("ddl", "schema"),
    [
        ("int", '"long"'),
        ("string", '"bytes"'),
        ("decimal(5,2)", '{"type":"bytes","logicalType":"decimal","precision":6,"scale":2}'),
        ("struct<a:int>", '{"type":"record","name":"R","fields":[{"name":"b","type":"int"}]}'),
        (
            "struct<a:int,b:int>",
            '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}',
        ),
    ],
)
def test_both_refuse_a_schema_that_the_column_does_not_fit(jar, encode, ddl, schema):
    type_ = spark.StructType.fromDDL(f"value {ddl}")["value"].dataType
    value = {"int": 1, "string": "a", "decimal(5,2)": Decimal(1)}.get(ddl, (1, 2)[: ddl.count(":")])
    assert isinstance(jar.ask("encode", [value], type_, schema), Refused)
    with pytest.raises(PySparkException, match=r"TXNLOG_AVRO\.SCHEMA"):
        encode([value], type_, schema)


def test_a_column_that_is_not_binary_is_refused(connector_spark):
    frame = connector_spark.createDataFrame([("a",)], "value string")
    with pytest.raises(PySparkException, match="takes a binary column, not one of string"):
        frame.select(from_avro("value", '"string"')).collect()


def test_both_refuse_null_and_symbols_that_the_schema_lacks(jar, encode):
    field = {"name": "a", "type": {"type": "enum", "name": "E", "symbols": ["X"]}}
    schema = json.dumps({"type": "record", "name": "R", "fields": [field]})
    type_ = spark.StructType.fromDDL("a string")
    for value, said in (((None,), "is null"), (("Y",), "not a symbol")):
        assert isinstance(jar.ask("encode", [value], type_, schema), Refused)
        with pytest.raises(PySparkException, match=f"the column a .*{said}"):
            encode([value], type_, schema)
