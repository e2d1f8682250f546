"""Parts of a JSON Schema, and words that name fields of an object or apply schemas to them.

The type of a schema has the fields of `properties`, or is a map. Other words may name further
fields: of some values (`then`), by a pattern, or deep inside another schema. A field that the type
does not have would be lost in silence, so the word that names it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from urllib.parse import unquote

from pyspark.sql import types as spark

from txnlog_spark.errors import JsonSchemaError

# Parts ----------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A part of a schema, its pointer, and the references that led to it."""

    node: Any
    pointer: str
    references: tuple[str, ...] = ()

    def below(self, node: Any, *path: str | int) -> Part:
        """Return a part of this one."""
        names = (str(each).replace("~", "~0").replace("/", "~1") for each in path)
        return Part(node, "/".join((self.pointer, *names)), self.references)

    def listed(self, word: str) -> list[Part]:
        """Return the schemas of a word that has a list of them; [] without the word."""
        nodes = self.node.get(word, [])
        if not isinstance(nodes, list):
            raise JsonSchemaError(f"{self.pointer}/{word}", "a list of schemas is wanted")
        return [self.below(node, word, at) for at, node in enumerate(nodes)]

    def named(self, word: str) -> dict[str, Part]:
        """Return the schemas of a word that has one for each name; {} without the word."""
        nodes = self.node.get(word) or {}
        if not isinstance(nodes, dict):
            raise JsonSchemaError(f"{self.pointer}/{word}", "an object of schemas is wanted")
        return {name: self.below(node, word, name) for name, node in nodes.items()}


def referenced(root: Any, part: Part) -> Part:
    """Return what the `$ref` of the part leads to. JsonSchemaError where it leads nowhere."""
    reference, pointer = part.node["$ref"], part.pointer
    if not isinstance(reference, str) or not (reference == "#" or reference[:2] == "#/"):
        raise JsonSchemaError(pointer, f"{reference!r} is not a reference into this schema")
    if reference in part.references or reference == "#":
        raise JsonSchemaError(pointer, f"{reference} contains itself, which no Spark type does")
    node = root
    for each in unquote(reference[2:]).split("/"):
        name = each.replace("~1", "/").replace("~0", "~")
        node = _below(node, name)
        if node is None:
            raise JsonSchemaError(pointer, f"{reference} leads nowhere")
    return Part(node, reference, (*part.references, reference))


def _below(node: Any, name: str) -> Any:
    if isinstance(node, dict):
        return node.get(name)
    if isinstance(node, list) and name.isdecimal() and int(name) < len(node):
        return node[int(name)]
    return None


# Words ----------------------------------------------------------------------------------------


def check_fields(root: Any, part: Part, type_: spark.DataType) -> None:
    """Raise JsonSchemaError with the pointer of a word that names a field which the type lacks.

    `part` is the part of the schema `root` whose values have the type. References are looked up
    from `root`.
    """
    if isinstance(part.node, dict):  # true and false name no field
        for word in part.node:
            if word in WORDS:
                WORDS[word](root, part, word, type_)


_LISTING = {"enum", "const", "$ref", "allOf", "anyOf", "oneOf"}
"""Words of a schema of names that may list names."""

Look = Callable[[Any, Part, str, spark.DataType], None]


def _parts(part: Part, word: str) -> Iterable[Part]:
    """Return the schema of a word, or its list of schemas."""
    if isinstance(part.node[word], list):
        return part.listed(word)
    return [part.below(part.node[word], word)]


def _same_value(root: Any, part: Part, word: str, type_: spark.DataType) -> None:
    for each in _parts(part, word):
        check_fields(root, each, type_)


def _reference(root: Any, part: Part, word: str, type_: spark.DataType) -> None:
    del word
    check_fields(root, referenced(root, part), type_)


def _names(root: Any, part: Part, word: str, type_: spark.DataType) -> None:
    del root
    names = part.node[word]
    if isinstance(names, list):  # in draft 3 a boolean of each property
        _require_fields(names, part.below(names, word), type_)


def _property_names(root: Any, part: Part, word: str, type_: spark.DataType) -> None:
    """Take a schema of names that lists none, such as a pattern."""
    node = part.node[word]
    if isinstance(type_, spark.StructType) and isinstance(node, dict) and node.keys() & _LISTING:
        _refused(root, part, word, type_)


def _require_fields(names: Iterable[Any], part: Part, type_: spark.DataType) -> None:
    if isinstance(type_, spark.StructType):
        for name in names:
            if name not in type_.names:
                raise JsonSchemaError(
                    part.pointer, f"the field {name} is not in the properties of all values"
                )


def _properties(root: Any, part: Part, word: str, type_: spark.DataType) -> None:
    for name, each in part.named(word).items():
        _require_fields([name], each, type_)
        if isinstance(type_, spark.StructType):
            check_fields(root, each, type_[name].dataType)
        elif isinstance(type_, spark.MapType):
            check_fields(root, each, type_.valueType)


def _other_properties(root: Any, part: Part, word: str, type_: spark.DataType) -> None:
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
            check_fields(root, each, type_.valueType)


def _items(root: Any, part: Part, word: str, type_: spark.DataType) -> None:
    if isinstance(type_, spark.ArrayType):
        for each in _parts(part, word):
            check_fields(root, each, type_.elementType)


def _values(root: Any, part: Part, word: str, type_: spark.DataType) -> None:
    """Take values without fields."""
    values = part.node[word] if word == "enum" else [part.node[word]]
    if any(isinstance(value, (dict, list)) for value in values):
        _refused(root, part, word, type_)


def _refused(root: Any, part: Part, word: str, type_: spark.DataType) -> None:
    del root, type_
    raise JsonSchemaError(
        f"{part.pointer}/{word}", f"a schema with {word} that may name fields is not read"
    )


def _held(root: Any, part: Part, word: str, type_: spark.DataType) -> None:
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
