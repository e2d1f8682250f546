"""Words of JSON Schema that name fields of an object or apply schemas to them, of all drafts.

The type of a schema has the fields of `properties`, or is a map. Other words may name further
fields: of some values (`then`), by a pattern, or deep inside another schema. A field that the type
does not have would be lost in silence, so the word that names it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import types as spark

from txnlog_spark.errors import JsonSchemaError
from txnlog_spark.formats.json.schema_parts import Part, referenced


def check_fields(root: Any, part: Part, type_: spark.DataType) -> None:
    """Raise JsonSchemaError with the pointer of a word that names a field which the type lacks.

    `part` is the part of the schema `root` whose values have the type.
    """
    _Check(root).part(part, type_)


class _Check:
    """The check of one schema; references are looked up from its root."""

    def __init__(self, root: Any) -> None:
        self.root = root

    def part(self, part: Part, type_: spark.DataType) -> None:
        """Check each word of a schema whose values have this type."""
        if isinstance(part.node, dict):  # true and false name no field
            for word in part.node:
                if word in WORDS:
                    WORDS[word](self, part, word, type_)


_LISTING = {"enum", "const", "$ref", "allOf", "anyOf", "oneOf"}
"""Words of a schema of names that may list names."""

Look = Callable[[_Check, Part, str, spark.DataType], None]


def _parts(part: Part, word: str) -> Iterable[Part]:
    """Return the schema of a word, or its list of schemas."""
    if isinstance(part.node[word], list):
        return part.listed(word)
    return [part.below(part.node[word], word)]


def _same_value(check: _Check, part: Part, word: str, type_: spark.DataType) -> None:
    for each in _parts(part, word):
        check.part(each, type_)


def _reference(check: _Check, part: Part, word: str, type_: spark.DataType) -> None:
    del word
    check.part(referenced(check.root, part), type_)


def _names(check: _Check, part: Part, word: str, type_: spark.DataType) -> None:
    del check
    names = part.node[word]
    if isinstance(names, list):  # in draft 3 a boolean of each property
        _require_fields(names, part.below(names, word), type_)


def _property_names(check: _Check, part: Part, word: str, type_: spark.DataType) -> None:
    """Take a schema of names that lists none, such as a pattern."""
    node = part.node[word]
    if isinstance(type_, spark.StructType) and isinstance(node, dict) and node.keys() & _LISTING:
        _refused(check, part, word, type_)


def _require_fields(names: Iterable[Any], part: Part, type_: spark.DataType) -> None:
    if isinstance(type_, spark.StructType):
        for name in names:
            if name not in type_.names:
                raise JsonSchemaError(
                    part.pointer, f"the field {name} is not in the properties of all values"
                )


def _properties(check: _Check, part: Part, word: str, type_: spark.DataType) -> None:
    for name, each in part.named(word).items():
        _require_fields([name], each, type_)
        if isinstance(type_, spark.StructType):
            check.part(each, type_[name].dataType)
        elif isinstance(type_, spark.MapType):
            check.part(each, type_.valueType)


def _other_properties(check: _Check, part: Part, word: str, type_: spark.DataType) -> None:
    of_patterns = word == "patternProperties"
    parts = part.named(word).values() if of_patterns else _parts(part, word)
    for each in parts:
        # Without the word, true or {}, any field may be there, and none is named.
        is_open = each.node is False or (each.node in (True, {}) and not of_patterns)
        if isinstance(type_, spark.StructType) and not is_open:
            raise JsonSchemaError(
                f"{part.pointer}/{word}",
                "fields without names beside properties, or of some values",
            )
        if isinstance(type_, spark.MapType):
            check.part(each, type_.valueType)


def _items(check: _Check, part: Part, word: str, type_: spark.DataType) -> None:
    if isinstance(type_, spark.ArrayType):
        for each in _parts(part, word):
            check.part(each, type_.elementType)


def _values(check: _Check, part: Part, word: str, type_: spark.DataType) -> None:
    """Take values without fields."""
    values = part.node[word] if word == "enum" else [part.node[word]]
    if any(isinstance(value, (dict, list)) for value in values):
        _refused(check, part, word, type_)


def _refused(check: _Check, part: Part, word: str, type_: spark.DataType) -> None:
    del check, type_
    raise JsonSchemaError(
        f"{part.pointer}/{word}", f"a schema with {word} that may name fields is not read"
    )


def _held(check: _Check, part: Part, word: str, type_: spark.DataType) -> None:
    """Pass by schemas that apply only through a reference, or to the text in a text."""


WORDS: dict[str, Look] = {
    "properties": _properties,
    "patternProperties": _other_properties,
    "additionalProperties": _other_properties,
    "unevaluatedProperties": _other_properties,
    "propertyNames": _property_names,
    "required": _names,
    "dependentRequired": _refused,
    "dependentSchemas": _refused,
    "dependencies": _refused,
    "allOf": _same_value,
    "anyOf": _same_value,
    "oneOf": _same_value,
    "not": _same_value,
    "if": _same_value,
    "then": _same_value,
    "else": _same_value,
    "$ref": _reference,
    "$dynamicRef": _refused,
    "$recursiveRef": _refused,
    "extends": _refused,
    "items": _items,
    "prefixItems": _items,
    "additionalItems": _items,
    "unevaluatedItems": _items,
    "contains": _items,
    "enum": _values,
    "const": _values,
    "$defs": _held,
    "definitions": _held,
    "contentSchema": _held,
}
"""Words of drafts 3 to 2020-12 that name fields or have schemas."""
