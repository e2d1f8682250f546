"""JSON Schemas as Spark types, of the drafts 4 to 2020-12.

A schema may allow several types for a value. A Spark type is one type, so a schema that does not
decide for one is refused.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import types as spark

from txnlog_spark.errors import JsonSchemaError
from txnlog_spark.formats.json.schema_words import Part, check_fields, referenced
from txnlog_spark.formats.types import Unreadable

_INTEGERS: dict[str, type[spark.DataType]] = {
    "int8": spark.ByteType,
    "int16": spark.ShortType,
    "int32": spark.IntegerType,
}
_STRINGS: dict[str, type[spark.DataType]] = {
    "date": spark.DateType,
    "date-time": spark.TimestampType,
}
_CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_DECIMAL_DIGITS_MAX = 38
_ONE_OF = ("oneOf", "anyOf")

Found = tuple[spark.DataType | None, bool]
"""A type, None if only null is allowed, and whether null is allowed too."""


def json_schema_type(text: str, *, of_write: bool = False, lenient: bool = False) -> spark.DataType:
    """Return the Spark type of a JSON Schema. JsonSchemaError names the place that has no type.

    For a read, the type has all fields that the schema names. A write (`of_write`) refuses a column
    without a field in the type, so no value is lost. `lenient`: a field without a type, or with a
    type that lacks fields, is `Unreadable`.
    """
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise JsonSchemaError("#", f"the schema is not JSON: {error}") from None
    made, _ = _Schema(schema, lenient).type_of(Part(schema, "#"))
    if made is None:
        raise JsonSchemaError("#", "only null is allowed")
    if not of_write:
        try:
            check_fields(schema, Part(schema, "#"), made)
        except JsonSchemaError as error:
            if not lenient:
                raise
            return Unreadable(error, made)
    return made


class _Schema:
    """A whole schema, where references are looked up."""

    def __init__(self, root: Any, lenient: bool) -> None:
        self._root = root
        self._lenient = lenient

    def type_of(self, *parts: Part) -> Found:
        """Return the type of a value that fits each of these parts of the schema."""
        whole = [each for part in parts for each in self._together(part)]
        typed = [each for each in whole if _names(each)]
        if not typed:
            return self._one_of(whole)
        kinds = list(dict.fromkeys(_kind(each) for each in typed))
        if len(kinds) > 1:
            raise _several(whole, [kind or "null" for kind in kinds])
        is_nullable = all(_allows_null(each) for each in typed)
        return self._of_kind(kinds[0], whole) if kinds[0] else None, is_nullable

    def _together(self, part: Part) -> list[Part]:
        """Return the part, its $ref and its allOf: a value fits each of them."""
        if not isinstance(part.node, dict):
            raise JsonSchemaError(part.pointer, "any value is allowed, or none")
        others = part.listed("allOf")
        if "$ref" in part.node:
            others.insert(0, referenced(self._root, part))
        return [part, *(each for other in others for each in self._together(other))]

    def _of_kind(self, kind: str, whole: list[Part]) -> spark.DataType:
        if kind == "object":
            return self._object(whole)
        if kind == "array":
            return self._array(whole)
        plain = _scalar(kind, whole[0].below({}))
        types = list(dict.fromkeys(_scalar(kind, each) for each in whole))
        narrow = [each for each in types if each != plain]
        if len(narrow) > 1:
            raise _several(whole, [each.simpleString() for each in narrow])
        return narrow[0] if narrow else plain

    def _object(self, whole: list[Part]) -> spark.DataType:
        """Return a struct if properties are named, else a map of all other properties."""
        properties: dict[str, list[Part]] = {}
        for part in whole:
            for name, each in part.named("properties").items():
                properties.setdefault(name, []).append(each)
        others = [] if properties else [part for part in map(_others, whole) if part]
        if others:
            return spark.MapType(spark.StringType(), *self._present(*others))
        if not properties and not any(e.node.get("additionalProperties") is False for e in whole):
            problem = "an object with neither properties nor a type of others"
            raise JsonSchemaError(whole[0].pointer, problem)
        # In draft 3 it was a word of each property.
        lists = [each.node.get("required") for each in whole]
        required = [name for each in lists if isinstance(each, list) for name in each]
        struct = spark.StructType()
        for name, parts in properties.items():
            made, is_nullable = self._field(parts)
            struct.add(name, made, is_nullable or name not in required)
        return struct

    def _field(self, parts: list[Part]) -> tuple[spark.DataType, bool]:
        if not self._lenient:
            return self._present(*parts)
        inner = None
        try:
            inner, is_nullable = self._present(*parts)
            for part in parts:
                check_fields(self._root, part, inner)
        except JsonSchemaError as error:
            return Unreadable(error, inner), True
        return inner, is_nullable

    def _array(self, whole: list[Part]) -> spark.DataType:
        items = [(each, each.node["items"]) for each in whole if "items" in each.node]
        by_place = any("prefixItems" in each.node for each in whole)
        if by_place or any(isinstance(node, list) for _, node in items):
            raise JsonSchemaError(
                whole[0].pointer, "an array whose items have a type by their place"
            )
        if not items:
            raise JsonSchemaError(whole[0].pointer, "an array whose items have no type")
        return spark.ArrayType(*self._present(*(each.below(node, "items") for each, node in items)))

    def _present(self, *parts: Part) -> tuple[spark.DataType, bool]:
        made, is_nullable = self.type_of(*parts)
        if made is None:
            raise JsonSchemaError(parts[0].pointer, "only null is allowed")
        return made, is_nullable

    def _one_of(self, whole: list[Part]) -> Found:
        """Return the type that oneOf or anyOf chooses, and whether null is allowed."""
        choices = [(part, word) for part in whole for word in _ONE_OF if word in part.node]
        if not choices:
            raise JsonSchemaError(whole[0].pointer, "no type is given")
        made = [self._chosen(part, word) for part, word in choices]
        types = [type_ for type_, _ in made]
        if any(type_ != types[0] for type_ in types):
            raise _several(
                whole, ["null" if each is None else each.simpleString() for each in types]
            )
        return types[0], all(is_nullable for _, is_nullable in made)

    def _chosen(self, part: Part, word: str) -> Found:
        found = [self.type_of(each) for each in part.listed(word)]
        types = [made for made, _ in found if made is not None]
        if len(types) > 1:
            shown = ", ".join(each.simpleString() for each in types)
            problem = f"several types are allowed: {shown}"
            raise JsonSchemaError(f"{part.pointer}/{word}", problem)
        return types[0] if types else None, any(is_nullable for _, is_nullable in found)


def _several(whole: list[Part], types: list[str]) -> JsonSchemaError:
    shown = ", ".join(types)
    return JsonSchemaError(
        whole[0].pointer, f"allOf, or what is beside $ref, has several types: {shown}"
    )


def _others(part: Part) -> Part | None:
    """Return the schema of fields without a name: of a pattern, or of all others."""
    made = [each for each in part.named("patternProperties").values() if each.node is not False]
    others = part.node.get("additionalProperties")
    # Beside patterns {} is what is true without the word: nothing is said of others.
    if isinstance(others, dict) and (others or not made):
        made.append(part.below(others, "additionalProperties"))
    if len(made) > 1:
        raise JsonSchemaError(part.pointer, "fields without a name have several schemas")
    return made[0] if made else None


def _names(part: Part) -> list[str]:
    """Return the names of the types that are allowed; [] if the part itself names no type."""
    names = part.node.get("type")
    if names is None:
        values = part.node.get("enum", [part.node["const"]] if "const" in part.node else [])
        names = list(dict.fromkeys(_name_of(value) for value in values))
    if names == [] and "properties" in part.node:
        names = "object"
    if isinstance(names, str):
        names = [names]
    if not isinstance(names, list):
        raise JsonSchemaError(part.pointer, "a type is a name or a list of names")
    return [str(name) for name in names]


def _allows_null(part: Part) -> bool:
    return "null" in _names(part) or None in part.node.get("enum", ())


def _kind(part: Part) -> str:
    """Return the one type that is allowed beside null, "" if only null is allowed."""
    present = [name for name in _names(part) if name != "null"]
    if set(present) == {"integer", "number"}:
        return "number"
    if len(present) > 1:
        raise JsonSchemaError(part.pointer, f"several types are allowed: {', '.join(present)}")
    return present[0] if present else ""


def _scalar(kind: str, part: Part) -> spark.DataType:
    """Return the type that the part gives a value of this kind."""
    node, hint = part.node, part.node.get("connect.type")
    if kind == "boolean":
        return spark.BooleanType()
    if kind == "integer":
        return _INTEGERS.get(str(hint), spark.LongType)()
    if kind == "number":
        if node.get("title") == _CONNECT_DECIMAL:
            return _decimal(node, part.pointer)
        return spark.FloatType() if hint == "float32" else spark.DoubleType()
    if kind != "string":
        raise JsonSchemaError(part.pointer, f"there is no type {kind!r}")
    if hint == "bytes" or node.get("contentEncoding") == "base64":
        return spark.BinaryType()
    return _STRINGS.get(str(node.get("format")), spark.StringType)()


def _name_of(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def _decimal(node: dict[str, Any], pointer: str) -> spark.DataType:
    """Return the decimal that Kafka Connect writes with `decimal.format=NUMERIC`."""
    parameters = node.get("connect.parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    try:
        scale = int(parameters.get("scale", 0))
        precision = int(parameters.get("connect.decimal.precision", _DECIMAL_DIGITS_MAX))
    except (TypeError, ValueError):
        raise JsonSchemaError(pointer, "the scale of a decimal is a number") from None
    if not 0 <= scale <= precision <= _DECIMAL_DIGITS_MAX:
        raise JsonSchemaError(pointer, f"Spark has no decimal({precision},{scale})")
    return spark.DecimalType(precision, scale)
