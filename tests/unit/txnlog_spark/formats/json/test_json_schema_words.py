"""Words of JSON Schema that name fields: each field is in the type, or its word is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from txnlog_spark.errors import JsonSchemaError
from txnlog_spark.formats.json.schema import json_schema_type
from txnlog_spark.formats.json.schema_words import WORDS

Schema = dict[str, Any]


def an_object(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties}


STRING: Schema = {"type": "string"}
LOST = an_object(lost=STRING)
A = an_object(a=STRING)
LIST = {"type": "array", "items": A}
MAP = {"type": "object", "additionalProperties": A}

NAMING: dict[str, list[Schema]] = {
    "properties": [
        LOST,
        LIST | {"items": LOST},
        A | {"then": {"properties": {"a": {}, "lost": {}}}},
    ],
    "patternProperties": [
        A | {"patternProperties": {"^lost": STRING}},
        A | {"patternProperties": {"^lost": True}},
        {"type": "object", "patternProperties": {"^x": LOST}},
        A | {"patternProperties": {"^lost": STRING}, "additionalProperties": False},
        MAP | {"patternProperties": {"^x": LOST}},
    ],
    "additionalProperties": [
        A | {"additionalProperties": STRING},
        {"type": "object", "additionalProperties": LOST},
        MAP | {"anyOf": [{"additionalProperties": LOST}]},
    ],
    "unevaluatedProperties": [
        A | {"unevaluatedProperties": STRING},
        {"type": "object", "unevaluatedProperties": LOST},
        MAP | {"unevaluatedProperties": LOST},
    ],
    "propertyNames": [
        A | {"propertyNames": {"enum": ["a", "lost"]}},
        A | {"propertyNames": {"anyOf": [{"const": "a"}, {"const": "lost"}]}},
        A | {"propertyNames": {"$ref": "#/$defs/names"}},
    ],
    "required": [A | {"required": ["a", "lost"]}, A | {"anyOf": [{"required": ["lost"]}]}],
    "dependentRequired": [
        A | {"dependentRequired": {"a": ["lost"]}},
        A | {"dependentRequired": {"lost": ["a"]}},
    ],
    "dependentSchemas": [
        A | {"dependentSchemas": {"a": LOST}},
        A | {"dependentSchemas": {"lost": True}},
    ],
    "dependencies": [
        A | {"dependencies": {"a": ["lost"]}},
        A | {"dependencies": {"a": {"properties": {"lost": STRING}}}},
        A | {"dependencies": {"lost": ["a"]}},
    ],
    "allOf": [A | {"allOf": [LOST]}, A | {"allOf": [True, {"patternProperties": {"": STRING}}]}],
    "anyOf": [A | {"anyOf": [A, LOST]}, {"anyOf": [{"type": "null"}, LOST]}],
    "oneOf": [A | {"oneOf": [A, LOST]}, {"oneOf": [{"type": "null"}, LOST]}],
    "not": [A | {"not": {"not": LOST}}],
    "if": [A | {"if": {"required": ["lost"]}}],
    "then": [
        A | {"if": {"required": ["a"]}, "then": LOST},
        an_object(x=A) | {"then": {"properties": {"x": {"properties": {"lost": STRING}}}}},
        an_object(x=LIST) | {"then": {"properties": {"x": {"items": LOST}}}},
        an_object(x=MAP) | {"then": {"properties": {"x": {"properties": {"any": LOST}}}}},
    ],
    "else": [A | {"if": {"required": ["a"]}, "else": LOST}],
    "$ref": [{"$ref": "#/$defs/lost"}, A | {"$ref": "#/$defs/lost"}],
    "$dynamicRef": [A | {"$dynamicRef": "#lost"}],
    "$recursiveRef": [A | {"$recursiveRef": "#"}],
    "extends": [A | {"extends": LOST}],
    "items": [
        LIST | {"items": LOST},
        LIST | {"items": [LOST]},
        LIST | {"anyOf": [{"items": [LOST]}]},
    ],
    "prefixItems": [LIST | {"prefixItems": [LOST]}, LIST | {"not": {"prefixItems": [LOST]}}],
    "additionalItems": [LIST | {"additionalItems": LOST}],
    "unevaluatedItems": [LIST | {"unevaluatedItems": LOST}],
    "contains": [LIST | {"contains": LOST}],
    "enum": [A | {"enum": [{"a": "x"}, {"lost": "x"}]}, LIST | {"enum": [[{"lost": 1}]]}],
    "const": [A | {"const": {"lost": "x"}}, MAP | {"const": {"k": {"lost": 1}}}],
}
"""For each word of JSON Schema, schemas in which the word leads to the field `lost`."""

SILENT = {"$defs", "definitions", "contentSchema"}
"""Words whose schemas are ignored: they serve `$ref` alone, or describe the content of a text."""

DEEP: dict[str, Callable[[Schema], Schema]] = {
    "root": lambda schema: schema,
    "field": lambda schema: an_object(x=STRING, y=schema),
    "field of a field": lambda schema: an_object(x=an_object(y=schema)),
    "items": lambda schema: an_object(x={"type": "array", "items": schema}),
    "others": lambda schema: an_object(x={"type": "object", "additionalProperties": schema}),
    "pattern": lambda schema: an_object(x={"type": "object", "patternProperties": {"^k": schema}}),
    "allOf": lambda schema: {"allOf": [an_object(y=STRING), an_object(x={"allOf": [schema]})]},
    "reference": lambda schema: an_object(x={"$ref": "#/$defs/x"}) | {"$defs": {"x": schema}},
    "null or": lambda schema: an_object(x={"anyOf": [{"type": "null"}, schema]}),
    "items of a reference": lambda schema: {
        "type": "array",
        "items": {"$ref": "#/definitions/x"},
        "definitions": {"x": schema},
    },
}
"""Schemas in which another one is, at some depth."""

CASES = [(word, at) for word, schemas in NAMING.items() for at in range(len(schemas))]


def with_definitions(schema: Schema) -> Schema:
    defs = {"lost": LOST, "names": {"enum": ["a", "lost"]}} | schema.get("$defs", {})
    return schema | {"$defs": defs}


def read(schema: Schema) -> str:
    return json_schema_type(json.dumps(with_definitions(schema))).simpleString()


def node_at(whole: Any, pointer: str) -> Any:
    """Return what the pointer leads to, and of a reference what that leads to."""
    schema = whole
    for name in pointer.split("/")[1:]:
        if isinstance(schema, list):
            schema = schema[int(name)]
        elif isinstance(schema, dict):
            schema = schema[name]
    is_reference = isinstance(schema, dict) and schema.keys() == {"$ref"}
    return node_at(whole, schema["$ref"]) if is_reference else schema


@pytest.mark.parametrize("depth", DEEP)
@pytest.mark.parametrize(("word", "at"), CASES)
def test_a_field_comes_out_or_its_word_is_refused_by_its_pointer(
    word: str, at: int, depth: str
) -> None:
    schema = DEEP[depth](NAMING[word][at])
    try:
        assert "lost:string" in read(schema)
    except JsonSchemaError as error:
        # The word is in the pointer, or in what it leads to; a reference leads to the fields.
        refused = f"{error.pointer}: {json.dumps(node_at(with_definitions(schema), error.pointer))}"
        assert word in refused or error.pointer.startswith(("#/$defs/lost", "#/$defs/names"))


def test_each_word_has_a_case() -> None:
    assert NAMING.keys() | SILENT == WORDS.keys()


FIELDS = {"properties", "allOf", "anyOf", "oneOf", "$ref", "items"}
"""Words whose fields are in the type where nothing else is said."""


@pytest.mark.parametrize("word", sorted(FIELDS))
def test_fields_of_the_usual_words_come_out(word: str) -> None:
    found = []
    for schema in NAMING[word]:
        try:
            found.append(read(schema))
        except JsonSchemaError:
            continue
    assert any("lost:string" in each for each in found)


OPEN = [
    {"additionalProperties": True},
    {"additionalProperties": False},
    {"additionalProperties": {}},
    {"unevaluatedProperties": False},
    {"patternProperties": {"^x-": False}},
    {"propertyNames": {"pattern": "^[a-z]+$"}},
    {"required": ["a"]},
    {"if": {"properties": {"a": {"const": "x"}}}, "then": {"required": ["b"]}, "else": False},
    {"not": {"required": ["a", "b"]}},
    {"oneOf": [{"required": ["a"]}, {"properties": {"b": {"maxLength": 3}}}]},
    {"title": "t", "description": "d", "$comment": "c", "default": {"lost": 1}, "x-lost": {"a": 1}},
    {"examples": [{"lost": 1}], "readOnly": True, "deprecated": True, "$id": "https://x/y.json"},
    {"minProperties": 1, "maxProperties": 2, "$anchor": "here", "$vocabulary": {"lost": True}},
]


@pytest.mark.parametrize(
    "word, value",
    [
        ("dependentRequired", {"a": ["b"]}),
        ("dependentSchemas", {"a": {"required": ["b"]}}),
        ("dependencies", {"a": ["b"]}),
        ("propertyNames", {"enum": ["a", "b"]}),
        ("const", {"a": "x"}),
        ("enum", [{"a": "x"}]),
    ],
)
def test_a_word_that_may_name_fields_is_refused_whatever_it_names(word: str, value: Any) -> None:
    with pytest.raises(JsonSchemaError, match=f"a schema with {word} that may name fields"):
        read(an_object(a=STRING, b=STRING) | {word: value})


@pytest.mark.parametrize("depth", DEEP)
@pytest.mark.parametrize("words", OPEN, ids=lambda words: next(iter(words)))
def test_words_that_name_no_further_field_are_taken(words: Schema, depth: str) -> None:
    schema = DEEP[depth](an_object(a=STRING, b=STRING) | words)
    assert "struct<a:string,b:string>" in read(schema)


@pytest.mark.parametrize(("word", "at"), [case for case in CASES if case[0] in ("then", "oneOf")])
def test_a_write_takes_a_schema_with_further_fields_of_some_values(word: str, at: int) -> None:
    made = json_schema_type(json.dumps(NAMING[word][at]), of_write=True)
    assert made.simpleString().startswith("struct<")
