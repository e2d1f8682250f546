"""JSON Schemas as Spark types: of the drafts 4 to 2020-12, what Confluent's registry holds.

A schema says what a value may be, a Spark type what it is; so a schema has to say it in the end.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from pyspark.sql import types as spark

from txnlog_spark.errors import JsonSchemaError

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

Found = tuple[spark.DataType | None, bool]
"""A type, none where only null is allowed, and whether null is allowed too."""


def json_schema_type(text: str) -> spark.DataType:
    """The Spark type of a JSON Schema. JsonSchemaError says where in it there is none."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise JsonSchemaError("#", f"the schema is not JSON: {error}") from None
    made, _ = _Schema(schema).type_of(schema, "#", ())
    if made is None:
        raise JsonSchemaError("#", "only null is allowed")
    return made


class _Schema:
    """A whole schema, to which references lead back."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def type_of(self, node: Any, pointer: str, open_: tuple[str, ...]) -> Found:
        """The type of a part of the schema; `open_` are the references that led here."""
        if not isinstance(node, dict):
            raise JsonSchemaError(pointer, "any value is allowed, or none")
        if "$ref" in node:
            return self._referenced(node["$ref"], pointer, open_)
        for word in ("oneOf", "anyOf", "allOf"):
            if word in node and "type" not in node:
                return self._one_of(node[word], f"{pointer}/{word}", open_)
        names = self._names(node, pointer)
        present = [name for name in names if name != "null"]
        if not present:
            return None, True
        if set(present) == {"integer", "number"}:
            present = ["number"]
        if len(present) > 1:
            raise JsonSchemaError(pointer, f"several types are allowed: {', '.join(present)}")
        is_nullable = "null" in names or None in node.get("enum", ())
        return self._named(present[0], node, pointer, open_), is_nullable

    def _names(self, node: dict[str, Any], pointer: str) -> list[str]:
        """The names of the types that are allowed."""
        names = node.get("type")
        if names is None:
            values = node.get("enum", [node["const"]] if "const" in node else [])
            names = list(dict.fromkeys(_name_of(value) for value in values))
        if names == [] and "properties" in node:
            names = "object"
        if isinstance(names, str):
            names = [names]
        if not isinstance(names, list) or not names:
            raise JsonSchemaError(pointer, "no type is given")
        return [str(name) for name in names]

    def _named(
        self, name: str, node: dict[str, Any], pointer: str, open_: tuple[str, ...]
    ) -> spark.DataType:
        if name == "object":
            return self._object(node, pointer, open_)
        if name == "array":
            return self._array(node, pointer, open_)
        hint = node.get("connect.type")
        if name == "boolean":
            return spark.BooleanType()
        if name == "integer":
            return _INTEGERS.get(str(hint), spark.LongType)()
        if name == "number":
            if node.get("title") == _CONNECT_DECIMAL:
                return _decimal(node, pointer)
            return spark.FloatType() if hint == "float32" else spark.DoubleType()
        if name != "string":
            raise JsonSchemaError(pointer, f"there is no type {name!r}")
        if hint == "bytes" or node.get("contentEncoding") == "base64":
            return spark.BinaryType()
        return _STRINGS.get(str(node.get("format")), spark.StringType)()

    def _object(self, node: dict[str, Any], pointer: str, open_: tuple[str, ...]) -> spark.DataType:
        """A struct where properties are named, else a map of the others."""
        properties, others = node.get("properties"), node.get("additionalProperties")
        if not properties and isinstance(others, dict):
            below = f"{pointer}/additionalProperties"
            made, is_nullable = self._present(others, below, open_)
            return spark.MapType(spark.StringType(), made, is_nullable)
        if not properties and others is not False:
            raise JsonSchemaError(pointer, "an object with neither properties nor a type of others")
        required = node.get("required", [])
        struct = spark.StructType()
        for name, below in (properties or {}).items():
            path = f"{pointer}/properties/{_escaped(name)}"
            made, is_nullable = self._present(below, path, open_)
            # In draft 3 it was a word of each property.
            is_required = isinstance(required, list) and name in required
            struct.add(name, made, is_nullable or not is_required)
        return struct

    def _array(self, node: dict[str, Any], pointer: str, open_: tuple[str, ...]) -> spark.DataType:
        items = node.get("items")
        if isinstance(items, list) or "prefixItems" in node:
            raise JsonSchemaError(pointer, "an array whose items have a type by their place")
        if items is None:
            raise JsonSchemaError(pointer, "an array whose items have no type")
        return spark.ArrayType(*self._present(items, f"{pointer}/items", open_))

    def _present(
        self, node: Any, pointer: str, open_: tuple[str, ...]
    ) -> tuple[spark.DataType, bool]:
        made, is_nullable = self.type_of(node, pointer, open_)
        if made is None:
            raise JsonSchemaError(pointer, "only null is allowed")
        return made, is_nullable

    def _one_of(self, nodes: Any, pointer: str, open_: tuple[str, ...]) -> Found:
        """One type, and null or not."""
        if not isinstance(nodes, list):
            raise JsonSchemaError(pointer, "a list of schemas is wanted")
        found = [self.type_of(node, f"{pointer}/{at}", open_) for at, node in enumerate(nodes)]
        types = [made for made, _ in found if made is not None]
        if len(types) > 1:
            shown = ", ".join(each.simpleString() for each in types)
            raise JsonSchemaError(pointer, f"several types are allowed: {shown}")
        return types[0] if types else None, any(is_nullable for _, is_nullable in found)

    def _referenced(self, reference: Any, pointer: str, open_: tuple[str, ...]) -> Found:
        if not isinstance(reference, str) or not (reference == "#" or reference[:2] == "#/"):
            raise JsonSchemaError(pointer, f"{reference!r} is not a reference into this schema")
        if reference in open_ or reference == "#":
            raise JsonSchemaError(pointer, f"{reference} contains itself, which no Spark type does")
        node = self._root
        for part in unquote(reference[2:]).split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            node = _below(node, name)
            if node is None:
                raise JsonSchemaError(pointer, f"{reference} leads nowhere")
        return self.type_of(node, reference, (*open_, reference))


def _below(node: Any, name: str) -> Any:
    if isinstance(node, dict):
        return node.get(name)
    if isinstance(node, list) and name.isdecimal() and int(name) < len(node):
        return node[int(name)]
    return None


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _name_of(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


def _decimal(node: dict[str, Any], pointer: str) -> spark.DataType:
    """As Kafka Connect writes decimals with `decimal.format=NUMERIC`."""
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
