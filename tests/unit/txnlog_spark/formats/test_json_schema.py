"""JSON Schemas, of the shapes that Confluent's registry holds, as Spark types."""

from __future__ import annotations

import json
from typing import Any

import pytest

from txnlog_spark.errors import JsonSchemaError
from txnlog_spark.formats.json_schema import json_schema_type


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
