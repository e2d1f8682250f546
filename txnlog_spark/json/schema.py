"""JSON Schemas as Spark types: of the drafts 4 to 2020-12, what Confluent's registry holds.

A schema says what a value may be, a Spark type what it is; so a schema has to say it in the end.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, NamedTuple
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
_ONE_OF = ("oneOf", "anyOf")

Found = tuple[spark.DataType | None, bool]
"""A type, none where only null is allowed, and whether null is allowed too."""


def json_schema_type(text: str) -> spark.DataType:
    """The Spark type of a JSON Schema. JsonSchemaError says where in it there is none."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise JsonSchemaError("#", f"the schema is not JSON: {error}") from None
    made, _ = _Schema(schema).type_of(_Part(schema, "#"))
    if made is None:
        raise JsonSchemaError("#", "only null is allowed")
    return made


class _Part(NamedTuple):
    """A part of a schema, where it is, and the references that led to it."""

    node: Any
    pointer: str
    references: tuple[str, ...] = ()

    def below(self, node: Any, *path: str | int) -> _Part:
        """A part of this one."""
        names = (str(each).replace("~", "~0").replace("/", "~1") for each in path)
        return _Part(node, "/".join((self.pointer, *names)), self.references)

    def listed(self, word: str) -> list[_Part]:
        """The schemas of a word that has a list of them; [] without the word."""
        nodes = self.node.get(word, [])
        if not isinstance(nodes, list):
            raise JsonSchemaError(f"{self.pointer}/{word}", "a list of schemas is wanted")
        return [self.below(node, word, at) for at, node in enumerate(nodes)]


class _Schema:
    """A whole schema, to which references lead back."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def type_of(self, *parts: _Part) -> Found:
        """The type of a value that is of each of these parts of the schema."""
        whole = [each for part in parts for each in self._together(part)]
        typed = [each for each in whole if _names(each)]
        if not typed:
            return self._one_of(whole)
        kinds = list(dict.fromkeys(_kind(each) for each in typed))
        if len(kinds) > 1:
            raise _several(whole, [kind or "null" for kind in kinds])
        is_nullable = all(_allows_null(each) for each in typed)
        return self._of_kind(kinds[0], whole) if kinds[0] else None, is_nullable

    def _together(self, part: _Part) -> list[_Part]:
        """The part, what it refers to and its allOf: a value is of each of them."""
        if not isinstance(part.node, dict):
            raise JsonSchemaError(part.pointer, "any value is allowed, or none")
        others = part.listed("allOf")
        if "$ref" in part.node:
            others.insert(0, self._referenced(part))
        return [part, *(each for other in others for each in self._together(other))]

    def _of_kind(self, kind: str, whole: list[_Part]) -> spark.DataType:
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

    def _object(self, whole: list[_Part]) -> spark.DataType:
        """A struct where properties are named, else a map of the others."""
        properties: dict[str, list[_Part]] = {}
        for part in whole:
            for name, node in (part.node.get("properties") or {}).items():
                properties.setdefault(name, []).append(part.below(node, "properties", name))
        others = [(each, each.node.get("additionalProperties")) for each in whole]
        typed = [each.below(o, "additionalProperties") for each, o in others if isinstance(o, dict)]
        if not properties and typed:
            made, is_nullable = self._present(*typed)
            return spark.MapType(spark.StringType(), made, is_nullable)
        if not properties and not any(each is False for _, each in others):
            problem = "an object with neither properties nor a type of others"
            raise JsonSchemaError(whole[0].pointer, problem)
        self._refuse_more(whole, properties)
        # In draft 3 it was a word of each property.
        lists = [each.node.get("required") for each in whole]
        required = [name for each in lists if isinstance(each, list) for name in each]
        struct = spark.StructType()
        for name, parts in properties.items():
            made, is_nullable = self._present(*parts)
            struct.add(name, made, is_nullable or name not in required)
        return struct

    def _refuse_more(self, whole: list[_Part], properties: Collection[str]) -> None:
        """oneOf and anyOf beside a type say more of its values, and may not give them fields."""
        for part in whole:
            for word in _ONE_OF:
                branches = [low for each in part.listed(word) for low in self._together(each)]
                names = [n for each in branches for n in each.node.get("properties") or {}]
                more = [name for name in dict.fromkeys(names) if name not in properties]
                if more:
                    problem = f"properties of some values alone: {', '.join(more)}"
                    raise JsonSchemaError(f"{part.pointer}/{word}", problem)

    def _array(self, whole: list[_Part]) -> spark.DataType:
        items = [(each, each.node["items"]) for each in whole if "items" in each.node]
        by_place = any("prefixItems" in each.node for each in whole)
        if by_place or any(isinstance(node, list) for _, node in items):
            raise JsonSchemaError(
                whole[0].pointer, "an array whose items have a type by their place"
            )
        if not items:
            raise JsonSchemaError(whole[0].pointer, "an array whose items have no type")
        return spark.ArrayType(*self._present(*(each.below(node, "items") for each, node in items)))

    def _present(self, *parts: _Part) -> tuple[spark.DataType, bool]:
        made, is_nullable = self.type_of(*parts)
        if made is None:
            raise JsonSchemaError(parts[0].pointer, "only null is allowed")
        return made, is_nullable

    def _one_of(self, whole: list[_Part]) -> Found:
        """One type, and null or not, where nothing but oneOf or anyOf says it."""
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

    def _chosen(self, part: _Part, word: str) -> Found:
        found = [self.type_of(each) for each in part.listed(word)]
        types = [made for made, _ in found if made is not None]
        if len(types) > 1:
            shown = ", ".join(each.simpleString() for each in types)
            problem = f"several types are allowed: {shown}"
            raise JsonSchemaError(f"{part.pointer}/{word}", problem)
        return types[0] if types else None, any(is_nullable for _, is_nullable in found)

    def _referenced(self, part: _Part) -> _Part:
        reference, pointer = part.node["$ref"], part.pointer
        if not isinstance(reference, str) or not (reference == "#" or reference[:2] == "#/"):
            raise JsonSchemaError(pointer, f"{reference!r} is not a reference into this schema")
        if reference in part.references or reference == "#":
            raise JsonSchemaError(pointer, f"{reference} contains itself, which no Spark type does")
        node = self._root
        for each in unquote(reference[2:]).split("/"):
            name = each.replace("~1", "/").replace("~0", "~")
            node = _below(node, name)
            if node is None:
                raise JsonSchemaError(pointer, f"{reference} leads nowhere")
        return _Part(node, reference, (*part.references, reference))


def _several(whole: list[_Part], types: list[str]) -> JsonSchemaError:
    shown = ", ".join(types)
    return JsonSchemaError(
        whole[0].pointer, f"allOf, or what is beside $ref, has several types: {shown}"
    )


def _names(part: _Part) -> list[str]:
    """The names of the types that are allowed; [] where the part itself says none."""
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


def _allows_null(part: _Part) -> bool:
    return "null" in _names(part) or None in part.node.get("enum", ())


def _kind(part: _Part) -> str:
    """The one type that is allowed beside null, "" where there is none."""
    present = [name for name in _names(part) if name != "null"]
    if set(present) == {"integer", "number"}:
        return "number"
    if len(present) > 1:
        raise JsonSchemaError(part.pointer, f"several types are allowed: {', '.join(present)}")
    return present[0] if present else ""


def _scalar(kind: str, part: _Part) -> spark.DataType:
    """The type that the part gives a value of this kind."""
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


def _below(node: Any, name: str) -> Any:
    if isinstance(node, dict):
        return node.get(name)
    if isinstance(node, list) and name.isdecimal() and int(name) < len(node):
        return node[int(name)]
    return None


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
