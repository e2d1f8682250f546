"""Avro schemas as values: parsed from JSON, with names resolved. Invalid schemas are refused.

Rules are those of the Avro 1.12 specification. As there, and as in Avro's Java library, a logical
type that is not valid on its type (a decimal too wide for its fixed, a date on a long) is ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any

from txnlog_spark.formats.errors import AvroSchemaError

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_LOGICAL_ON = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "decimal": ("bytes", "fixed"),
}
NO_DEFAULT = object()


@dataclass(eq=False)
class Avro:
    """A type in a schema. Attributes that do not belong to its `kind` have their defaults."""

    kind: str
    name: str = ""
    """Full name of a record, an enum or a fixed."""
    aliases: tuple[str, ...] = ()
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    fields: list[AvroField] = field(default_factory=list)
    branches: list[Avro] = field(default_factory=list)
    items: Any = None
    """The type of an array's items or of a map's values."""
    catalyst_type: str = ""
    """Spark type that Spark wrote into the schema if the Avro type does not tell it."""

    @property
    def non_null(self) -> list[Avro]:
        """Branches of a union without null."""
        return [each for each in self.branches if each.kind != "null"]

    @property
    def nullable(self) -> bool:
        """True if null is a value of the type."""
        return self.kind == "null" or self.null_branch is not None

    @property
    def null_branch(self) -> int | None:
        """Number of the branch of a union that is null."""
        return next((at for at, each in enumerate(self.branches) if each.kind == "null"), None)

    @property
    def widened(self) -> str:
        """ "long" for a union of int and long, "double" for float and double, else ""."""
        kinds = sorted(each.kind for each in self.non_null)
        return {"int long": "long", "double float": "double"}.get(" ".join(kinds), "")

    @property
    def branch_name(self) -> str:
        """Name that differs between the branches of a union."""
        return self.name or self.kind

    @property
    def described(self) -> str:
        """Name with the logical type, for errors."""
        if not self.logical:
            return self.branch_name
        numbers = f"({self.precision},{self.scale})" if self.logical == "decimal" else ""
        return f"{self.branch_name} ({self.logical}{numbers})"


@dataclass(frozen=True, eq=False)
class AvroField:
    """A field of a record. `default` is JSON, or NO_DEFAULT."""

    name: str
    type: Avro
    default: Any = NO_DEFAULT
    aliases: tuple[str, ...] = ()


_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|/\*.*?\*/|//[^\r\n]*', re.DOTALL)
"""A string, as it is, or a comment."""


@lru_cache(maxsize=256)
def parse_avro(text: str) -> Avro:
    """Return the schema of this JSON. AvroSchemaError says what is wrong."""
    try:
        return _Parser().parse(_json_of(text), "")
    except json.JSONDecodeError as error:
        # A bare type name is what Avro's Java library takes too.
        if text.strip() in PRIMITIVES:
            return Avro(text.strip())
        raise AvroSchemaError(f"an Avro schema is not valid JSON: {error}") from None
    except RecursionError:
        raise AvroSchemaError("an Avro schema is nested too deeply") from None


def _json_of(text: str) -> Any:
    """Parse JSON that may have comments, as Avro's Java library does."""
    bare = _COMMENT.sub(lambda found: found[1] or " " * len(found[0]), text)
    bare = bare if bare == text else bare[: len(bare.rstrip())] + text[len(bare.rstrip()) :]
    return json.loads(bare)


class _Parser:
    def __init__(self) -> None:
        self.named: dict[str, Avro] = {}

    def parse(self, node: Any, namespace: str) -> Avro:
        if isinstance(node, str):
            return self._reference(node, namespace)
        if isinstance(node, list):
            return self._union(node, namespace)
        if not isinstance(node, dict) or "type" not in node:
            raise AvroSchemaError(f"an Avro schema has a type in this place, not {node!r}")
        kind = node["type"]
        if isinstance(kind, (dict, list)):
            return self.parse(kind, namespace)
        if kind == "array":
            return Avro("array", items=self._part(node, "items", namespace))
        if kind == "map":
            return Avro("map", items=self._part(node, "values", namespace))
        if kind in ("record", "error", "enum", "fixed"):
            return self._named(node, kind, namespace)
        made = self._reference(kind, namespace)
        if made.kind in PRIMITIVES:
            _set_logical(made, node)
        return made

    def _part(self, node: dict[str, Any], key: str, namespace: str) -> Avro:
        if key not in node:
            raise AvroSchemaError(f"an Avro {node['type']} has no {key!r}: {node!r}")
        return self.parse(node[key], namespace)

    def _reference(self, name: Any, namespace: str) -> Avro:
        if name in PRIMITIVES:
            return Avro(name)
        full = _full_name(name, namespace) if isinstance(name, str) else ""
        found = self.named.get(full) or self.named.get(str(name))
        if found is None:
            raise AvroSchemaError(f"an Avro schema names the type {name!r}, which is not defined")
        return found

    def _union(self, nodes: list[Any], namespace: str) -> Avro:
        branches = [self.parse(node, namespace) for node in nodes]
        names = [each.branch_name for each in branches]
        twice = {name for name in names if names.count(name) > 1}
        if twice or "union" in names:
            what = f"{min(twice)} twice" if twice else "a union"
            raise AvroSchemaError(f"an Avro union contains {what}: {nodes!r}")
        return Avro("union", branches=branches)

    def _named(self, node: dict[str, Any], kind: str, namespace: str) -> Avro:
        full = _full_name(node.get("name"), node.get("namespace", namespace))
        if full in self.named:
            raise AvroSchemaError(f"an Avro schema defines {full!r} twice")
        inner = full.rpartition(".")[0]
        made = Avro("record" if kind == "error" else kind, full)
        made.aliases = tuple(_full_name(each, inner) for each in node.get("aliases", ()))
        self.named[full] = made
        if kind == "fixed":
            size = node.get("size")
            if type(size) is not int or size < 0:
                raise AvroSchemaError(
                    f"the size of {full} in an Avro schema must be a whole number, not {size!r}"
                )
            made.size = size
            _set_logical(made, node)
        elif kind == "enum":
            self._set_symbols(made, node)
        else:
            made.fields.extend(self._fields(node, full, inner))
        return made

    def _set_symbols(self, made: Avro, node: dict[str, Any]) -> None:
        symbols = node.get("symbols")
        if not isinstance(symbols, list) or len(set(map(str, symbols))) != len(symbols):
            raise AvroSchemaError(f"the Avro enum {made.name} needs a list of different symbols")
        made.symbols = tuple(map(str, symbols))
        made.default_symbol = node.get("default")

    def _fields(self, node: dict[str, Any], full: str, namespace: str) -> Iterable[AvroField]:
        fields = node.get("fields")
        if not isinstance(fields, list):
            raise AvroSchemaError(f"the Avro record {full} has no list of fields")
        seen = set()
        for each in fields:
            name = each.get("name") if isinstance(each, dict) else None
            if not isinstance(name, str) or not _NAME.match(name) or name in seen:
                raise AvroSchemaError(
                    f"a field of the Avro record {full} has no valid name of its own: {each!r}"
                )
            seen.add(name)
            if "type" not in each:
                raise AvroSchemaError(f"the field {name} of the Avro record {full} has no type")
            made = self.parse(each["type"], namespace)
            aliases = tuple(each.get("aliases", ()))
            yield AvroField(name, made, each.get("default", NO_DEFAULT), aliases)


def _full_name(name: Any, namespace: Any) -> str:
    if not isinstance(name, str) or not all(map(_NAME.match, name.split("."))):
        raise AvroSchemaError(f"{name!r} is not a valid Avro name")
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _set_logical(made: Avro, node: dict[str, Any]) -> None:
    made.catalyst_type = str(node.get("spark.sql.catalyst.type", ""))
    logical = node.get("logicalType")
    if not isinstance(logical, str) or made.kind not in _LOGICAL_ON.get(logical, ()):
        return
    if logical == "decimal":
        precision, scale = node.get("precision"), node.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int):
            return
        widest = decimal_digits(made.size) if made.kind == "fixed" else precision
        if not (0 < precision <= widest and 0 <= scale <= precision):
            return
        made.precision, made.scale = precision, scale
    made.logical = logical


def decimal_digits(size: int) -> int:
    """Return the number of decimal digits that any signed integer of so many bytes can hold."""
    return len(str(2 ** (8 * size - 1) - 1)) - 1 if size else 0


def decimal_bytes(precision: int) -> int:
    """Return the fewest bytes whose signed integers hold this many decimal digits."""
    return next(size for size in count(1) if decimal_digits(size) >= precision)
