"""Fields that `value.fields` leaves out need no Spark type; a field that it names does."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from support.spark.protobuf_cases import FileOfMessages

from txnlog_spark.errors import OptionError, TxnLogError
from txnlog_spark.formats.read_formats import ReadFormat, read_formats
from txnlog_spark.options.declared import Use
from txnlog_spark.options.parse import parse_options


def value_format(name: str, schema: str, fields: str | None, **more: str) -> ReadFormat:
    options = {"path": "p", "subscribe": "t", "value.format": name, "value.schema": schema}
    if fields is not None:
        options["value.fields"] = fields
    made = read_formats(parse_options(options | more, Use.READ_BATCH)).value
    assert made is not None
    return made


def type_of(name: str, schema: str, fields: str | None, **more: str) -> str:
    return value_format(name, schema, fields, **more).reader.type.simpleString()


# JSON Schema ----------------------------------------------------------------------------------

ID = {"type": "integer"}


def json_object(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties}


NO_TYPE = {
    "free object": {"type": "object"},
    "any value": {},
    "true": True,
    "array without items": {"type": "array"},
    "array by places": {"type": "array", "prefixItems": [ID, {"type": "string"}]},
    "several types": {"type": ["integer", "string"]},
    "one of two": {"oneOf": [ID, {"type": "string"}]},
    "only null": {"type": "null"},
    "itself": {"$ref": "#"},
    "nowhere": {"$ref": "#/none"},
    "names by a pattern": json_object(a=ID) | {"patternProperties": {"^x": ID}},
    "some values' names": json_object(a=ID) | {"then": {"properties": {"b": ID}}},
    "list of free objects": {"type": "array", "items": {"type": "object"}},
    "map of free objects": {"type": "object", "additionalProperties": {"type": "object"}},
}


@pytest.mark.parametrize("node", NO_TYPE.values(), ids=NO_TYPE)
def test_a_json_field_without_a_type_can_be_left_out_and_nothing_else(node: object) -> None:
    schema = json.dumps(json_object(id=ID, x=node))
    assert type_of("json", schema, "id") == "struct<id:bigint>"
    for fields in (None, "x", "id,x"):
        with pytest.raises(TxnLogError, match=r"#/properties/x|#: "):
            type_of("json", schema, fields)


@pytest.mark.parametrize("node", NO_TYPE.values(), ids=NO_TYPE)
def test_a_json_field_without_a_type_can_be_left_out_at_depth(node: object) -> None:
    inner = json_object(id=ID, x=node)
    schema = json.dumps(
        json_object(
            c=inner,
            l={"type": "array", "items": inner},
            m={"type": "object", "additionalProperties": inner},
        )
    )
    found = type_of("json", schema, "c.id,l.id,m.id")
    one = "struct<id:bigint>"
    assert found == f"struct<c:{one},l:array<{one}>,m:map<string,{one}>>"
    for fields in ("c", "l", "m", "c.x", "l.x", "m.x", "c.id,l"):
        with pytest.raises(TxnLogError, match=r"properties/x|#: "):
            type_of("json", schema, fields)


@pytest.mark.parametrize(
    "word",
    [
        {"additionalProperties": ID},
        {"patternProperties": {"^x": ID}},
        {"if": {"properties": {"b": ID}}},
        {"required": ["b"]},
    ],
)
def test_words_that_name_further_fields_are_in_the_way_of_the_whole_alone(
    word: dict[str, object],
) -> None:
    root = json_object(id=ID, n={"type": "string"}) | word
    assert type_of("json", json.dumps(root), "id") == "struct<id:bigint>"
    held = json.dumps(json_object(c=root, id=ID))
    assert type_of("json", held, "c.id") == "struct<c:struct<id:bigint>>"
    for schema, fields in ((json.dumps(root), None), (held, "c"), (held, None)):
        with pytest.raises(TxnLogError, match=next(iter(word))):
            type_of("json", schema, fields)


def test_a_path_into_a_field_without_a_type_has_that_fields_error() -> None:
    schema = json.dumps(json_object(id=ID, x={"type": "object"}))
    with pytest.raises(TxnLogError, match=r"#/properties/x: an object with neither"):
        type_of("json", schema, "x.y")
    with pytest.raises(OptionError, match="a field of id, x"):
        type_of("json", schema, "y")


def test_values_are_read_beside_a_field_that_has_no_type() -> None:
    schema = json.dumps(json_object(id=ID, x={"type": "object"}))
    values = [b'{"x": {"y": [1, {"z": null}]}, "id": 7}', b'{"id": 8}']
    found = value_format("json", schema, "id").decode(pa.array(values, pa.binary()))
    assert found.values.to_pylist() == [{"id": 7}, {"id": 8}]
    assert found.problems is None


# Avro -----------------------------------------------------------------------------------------


def record(name: str, **fields: object) -> dict[str, object]:
    made = [{"name": field, "type": type_} for field, type_ in fields.items()]
    return {"type": "record", "name": name, "fields": made}


NANOS = {"type": "long", "logicalType": "timestamp-nanos"}
AVRO_WITHOUT_TYPE = {
    "timestamp-nanos": NANOS,
    "local-timestamp-nanos": {"type": "long", "logicalType": "local-timestamp-nanos"},
    "null or nanos": ["null", NANOS],
    "list of nanos": {"type": "array", "items": NANOS},
    "map of nanos": {"type": "map", "values": NANOS},
    "wide decimal": {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2},
    "interval": {"type": "long", "spark.sql.catalyst.type": "interval day"},
    "itself": ["null", "R"],
    "union with nanos": ["string", NANOS],
}


@pytest.mark.parametrize("node", AVRO_WITHOUT_TYPE.values(), ids=AVRO_WITHOUT_TYPE)
def test_an_avro_field_without_a_type_can_be_left_out_and_nothing_else(node: object) -> None:
    schema = json.dumps(record("R", x=node, id="long"))
    assert type_of("avro", schema, "id") == "struct<id:bigint>"
    for fields in (None, "x", "id,x"):
        with pytest.raises(TxnLogError, match="TXNLOG_AVRO"):
            type_of("avro", schema, fields)
    inner = json.dumps(record("O", r=["null", record("R", x=node, id="long")]))
    assert type_of("avro", inner, "r.id") == "struct<r:struct<id:bigint>>"
    with pytest.raises(TxnLogError, match="TXNLOG_AVRO"):
        type_of("avro", inner, "r")


def test_avro_values_are_read_beside_a_field_that_has_no_type() -> None:
    schema = json.dumps(record("R", x=["null", "R"], at=NANOS, id="long"))
    values = [b"\x00\x02\x0e", b"\x02\x00\x04\x06\x06\x10"]  # the second holds another R
    found = value_format("avro", schema, "id").decode(pa.array(values, pa.binary()))
    assert found.values.to_pylist() == [{"id": 7}, {"id": 8}]
    assert found.problems is None


# Protobuf -------------------------------------------------------------------------------------


def test_a_protobuf_field_that_contains_itself_can_be_left_out(tmp_path: Path) -> None:
    file = FileOfMessages("proto3")
    file.message("Node", "int32 id = 1", "Node next = 2", "repeated Edge edges = 3")
    file.message("Edge", "map<string,Node> to = 1", "int32 cost = 2")
    path = tmp_path / "nodes.desc"
    path.write_bytes(file.descriptor_set())
    name = {"value.message.name": "Node"}
    assert type_of("protobuf", str(path), "id", **name) == "struct<id:int>"
    found = type_of("protobuf", str(path), "edges.cost", **name)
    assert found == "struct<edges:array<struct<cost:int>>>"
    for fields in (None, "next", "edges", "next.id", "edges.to"):
        with pytest.raises(TxnLogError, match="contain itself"):
            type_of("protobuf", str(path), fields, **name)
    read = value_format("protobuf", str(path), "id", **name)
    values = pa.array([b"\x08\x07", b"\x08\x08\x12\x02\x08\x09"], pa.binary())
    assert read.decode(values).values.to_pylist() == [{"id": 7}, {"id": 8}]
