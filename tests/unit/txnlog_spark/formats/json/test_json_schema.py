"""JSON Schemas, of the shapes that Confluent's registry holds, as Spark types."""

from __future__ import annotations

import json
from typing import Any

import pytest

from txnlog_spark.errors import JsonSchemaError
from txnlog_spark.formats.json.schema import json_schema_type


def ddl(schema: Any) -> str:
    return json_schema_type(json.dumps(schema)).simpleString()


def field(schema: Any) -> str:
    made = json_schema_type(json.dumps({"type": "object", "properties": {"a": schema}}))
    return made["a"].dataType.simpleString()


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "email"}, "string"),
        ({"type": "string", "connect.type": "bytes"}, "binary"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "integer"}, "bigint"),
        ({"type": "integer", "connect.type": "int8"}, "tinyint"),
        ({"type": "integer", "connect.type": "int16"}, "smallint"),
        ({"type": "integer", "connect.type": "int32"}, "int"),
        ({"type": "integer", "connect.type": "int64"}, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": "number", "connect.type": "float32"}, "float"),
        (
            {
                "type": "number",
                "title": "org.apache.kafka.connect.data.Decimal",
                "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
            },
            "decimal(10,2)",
        ),
        ({"type": ["null", "integer"]}, "bigint"),
        ({"type": ["integer", "number"]}, "double"),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, "string"),
        ({"anyOf": [{"type": "number"}, {"type": "null"}], "default": None}, "double"),
        ({"allOf": [{"type": "string"}]}, "string"),
        ({"enum": ["a", "b", None]}, "string"),
        ({"const": 5}, "bigint"),
        ({"type": "array", "items": {"type": "integer"}}, "array<bigint>"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "map<string,double>"),
        ({"type": "object", "additionalProperties": False}, "struct<>"),
        ({"type": "object", "patternProperties": {"^x": {"type": "number"}}}, "map<string,double>"),
        (
            {
                "type": "object",
                "patternProperties": {"^x": {"type": "string"}, "^_": False},
                "additionalProperties": False,
            },
            "map<string,string>",
        ),
        (
            {
                "type": "object",
                "additionalProperties": {"type": "string", "maxLength": 3},
                "propertyNames": {"enum": ["x", "y"]},
                "required": ["x"],
            },
            "map<string,string>",
        ),
        ({"properties": {"x": {"type": "string"}}}, "struct<x:string>"),
    ],
)
def test_the_type_of_a_schema(schema, type_):
    assert field(schema) == type_


def test_what_may_be_null_or_missing_is_nullable():
    made = json_schema_type(
        json.dumps(
            {
                "type": "object",
                "required": ["a", "b"],
                "properties": {
                    "a": {"type": "string"},
                    "b": {"oneOf": [{"type": "null"}, {"type": "string"}]},
                    "c": {"type": "string"},
                    "d": {"type": "array", "items": {"type": ["null", "string"]}},
                    "e": {"type": "array", "items": {"type": "string"}},
                    "f": {"type": "object", "additionalProperties": {"enum": ["x", None]}},
                },
            }
        )
    )
    assert [each.nullable for each in made][:3] == [False, True, True]
    assert made["d"].dataType.containsNull
    assert not made["e"].dataType.containsNull
    assert made["f"].dataType.valueContainsNull


def test_references_lead_to_definitions():
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "a": {"$ref": "#/definitions/point"},
            "b": {"type": "array", "items": {"$ref": "#/$defs/a~1b%20c"}},
            "c": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/point"}]},
        },
        "definitions": {"point": {"type": "object", "properties": {"x": {"type": "number"}}}},
        "$defs": {"a/b c": {"type": "boolean"}},
    }
    assert ddl(schema) == "struct<a:struct<x:double>,b:array<boolean>,c:struct<x:double>>"


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


INTEGER, STRING, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
A, B = an_object(a=INTEGER), an_object(b=STRING)
HELD = {"definitions": {"A": A, "B": B, "day": STRING | {"format": "date"}}}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/definitions/{name}"}


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        (A | {"allOf": [B]}, "struct<a:bigint,b:string>"),
        (A | {"allOf": [{"properties": {"b": STRING}}]}, "struct<a:bigint,b:string>"),
        (
            {"allOf": [ref("A"), ref("B"), an_object(c=INTEGER)]},
            "struct<a:bigint,b:string,c:bigint>",
        ),
        (ref("A") | {"properties": {"b": STRING}}, "struct<b:string,a:bigint>"),
        (ref("A") | {"description": "what A is", "default": None}, "struct<a:bigint>"),
        ({"allOf": [{"allOf": [ref("A")]}, {"allOf": [ref("B")]}]}, "struct<a:bigint,b:string>"),
        ({"allOf": [an_object(x=A), an_object(x=B)]}, "struct<x:struct<a:bigint,b:string>>"),
        (
            {"allOf": [{"type": "array", "items": A}, {"items": B}]},
            "array<struct<a:bigint,b:string>>",
        ),
        (ref("day") | {"type": "string", "maxLength": 10}, "date"),
        ({"allOf": [STRING, {"format": "date"}]}, "date"),
        ({"type": "object", "allOf": [{"additionalProperties": INTEGER}]}, "map<string,bigint>"),
        (
            A | {"oneOf": [{"required": ["a"]}, {"properties": {"a": {"const": 1}}}]},
            "struct<a:bigint>",
        ),
        (ref("A") | {"anyOf": [{"required": ["a"]}, {"minProperties": 1}]}, "struct<a:bigint>"),
        ({"allOf": [{"oneOf": [NULL, ref("A")]}]}, "struct<a:bigint>"),
    ],
)  # fmt: skip
def test_what_is_beside_a_reference_and_in_all_of_is_put_together(schema, type_):
    made = json_schema_type(json.dumps(an_object(x=schema) | HELD))
    assert made["x"].dataType.simpleString() == type_


def test_what_is_required_or_null_in_any_part_is_so_together():
    both = {"allOf": [ref("A"), ref("B"), {"required": ["b"]}]}
    made = json_schema_type(json.dumps(both | HELD))
    assert [each.nullable for each in made] == [True, False]
    chosen = {"allOf": [{"oneOf": [NULL, STRING]}, {"anyOf": [STRING]}]}
    made = json_schema_type(json.dumps(an_object(a=chosen) | {"required": ["a"]}))
    assert [each.nullable for each in made] == [False]
    nullable = {"type": ["null", "string"]}
    parts = [an_object(a=nullable, b=nullable), an_object(a=nullable, b=STRING)]
    made = json_schema_type(json.dumps({"allOf": parts, "required": ["a", "b"]}))
    assert [each.nullable for each in made] == [True, False]


@pytest.mark.parametrize(
    ("schema", "pointer", "problem"),
    [
        ({"allOf": [A, STRING]}, "#/properties/x", "allOf, or what is beside $ref, has"),
        (ref("A") | {"type": "array"}, "#/properties/x", "has several types: array, object"),
        ({"allOf": [A, an_object(a=STRING)]}, "#/properties/x/allOf/0/properties/a", "string"),
        (
            {"allOf": [STRING | {"format": "date"}, STRING | {"format": "date-time"}]},
            "#/properties/x", "has several types: date, timestamp",
        ),
        (
            {"allOf": [{"oneOf": [NULL, A]}, {"oneOf": [NULL, B]}]},
            "#/properties/x", "has several types: struct<a:bigint>, struct<b:string>",
        ),
        ({"allOf": [{"oneOf": [NULL]}, {"oneOf": [A]}]}, "#/properties/x", "null, struct<"),
        ({"allOf": [NULL, A]}, "#/properties/x", "has several types: null, object"),
        ({"allOf": A}, "#/properties/x/allOf", "a list of schemas is wanted"),
        ({"allOf": [{"required": ["a"]}]}, "#/properties/x", "no type is given"),
        (
            A | {"oneOf": [B, ref("A")]},
            "#/properties/x/oneOf/0/properties/b", "the field b is not in the properties of all",
        ),
        (
            {"properties": {"a": INTEGER}, "anyOf": [ref("B")]},
            "#/definitions/B/properties/b", "the field b is not in the properties of all",
        ),
        ({"type": {"a": 1}}, "#/properties/x", "a type is a name or a list of names"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_and_no_field_is_lost(schema, pointer, problem):
    with pytest.raises(JsonSchemaError) as caught:
        json_schema_type(json.dumps(an_object(x=schema) | HELD))
    assert caught.value.pointer == pointer
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("schema", "pointer", "problem"),
    [
        (True, "#/properties/a", "any value"),
        ({}, "#/properties/a", "no type is given"),
        ({"type": "object"}, "#/properties/a", "neither properties"),
        ({"type": "array"}, "#/properties/a", "no type"),
        ({"type": "array", "items": [{"type": "string"}]}, "#/properties/a", "by their place"),
        ({"type": ["string", "integer"]}, "#/properties/a", "string, integer"),
        ({"type": "null"}, "#/properties/a", "only null"),
        ({"type": "any"}, "#/properties/a", "no type 'any'"),
        (
            {"type": "object", "patternProperties": {"x": {}}},
            "#/properties/a/patternProperties/x",
            "no type is given",
        ),
        (
            {
                "type": "object",
                "patternProperties": {"^x": {"type": "string"}, "^y": {"type": "number"}},
            },
            "#/properties/a",
            "fields without a name have several schemas",
        ),
        ({"properties": ["a"]}, "#/properties/a/properties", "an object of schemas is wanted"),
        (
            {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            "#/properties/a/oneOf",
            "string, bigint",
        ),
        ({"oneOf": [{"type": "null"}, {}]}, "#/properties/a/oneOf/1", "no type is given"),
        ({"$ref": "other.json"}, "#/properties/a", "not a reference into this schema"),
        ({"$ref": "#/definitions/none"}, "#/properties/a", "leads nowhere"),
        ({"$ref": "#"}, "#/properties/a", "contains itself"),
        (
            {"type": "object", "properties": {"x/y": {"type": "array"}}},
            "#/properties/a/properties/x~1y",
            "no type",
        ),
        (
            {
                "type": "number",
                "title": "org.apache.kafka.connect.data.Decimal",
                "connect.parameters": {"scale": "40"},
            },
            "#/properties/a",
            "decimal(38,40)",
        ),
    ],
)
def test_what_has_no_spark_type_is_named_by_its_pointer(schema, pointer, problem):
    with pytest.raises(JsonSchemaError) as caught:
        field(schema)
    assert caught.value.pointer == pointer
    assert problem in str(caught.value)


def test_a_definition_that_contains_itself_is_refused():
    node = {"type": "object", "properties": {"next": {"$ref": "#/definitions/node"}}}
    with pytest.raises(JsonSchemaError, match="contains itself"):
        ddl({"$ref": "#/definitions/node", "definitions": {"node": node}})


@pytest.mark.parametrize("text", ["", "{", "nothing"])
def test_a_text_that_is_no_schema_is_refused(text):
    with pytest.raises(JsonSchemaError, match="not JSON"):
        json_schema_type(text)
