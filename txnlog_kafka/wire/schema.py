"""Fields of a message: a definition, read from Kafka's own format of definitions.

A definition is JSON: names, types, versions, nullability, tags and defaults, as Kafka's
`clients/src/main/resources/common/message` has them; see its README for the meaning of each key.
`txnlog_kafka.wire.schemas` has the definitions of Kafka's requests and answers, derived from the
published kafka-clients; other packages have definitions of their own beside their code.
"""

from __future__ import annotations

import functools
import json
import pkgutil
import re
import uuid
from dataclasses import dataclass
from typing import Any

Versions = tuple[int, int]
"""First and last version, inclusive."""

NEVER: Versions = (0, -1)
_LAST = 32_767
_SCALARS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
}
"""Types of a fixed size that is a number, by their format in `struct`."""


def parse_versions(text: str | None) -> Versions:
    """Return the versions in "3+", "1-4", "2", "none" or an empty text."""
    if text is None or text in ("none", ""):
        return NEVER
    first, dash, last = text.partition("-")
    if text.endswith("+"):
        return int(text[:-1]), _LAST
    return int(first), int(last if dash else first)


def _is_in(version: int, versions: Versions) -> bool:
    return versions[0] <= version <= versions[1]


@dataclass(frozen=True, slots=True)
class Field:
    """Member of a struct."""

    name: str
    """Name in Python: `ThrottleTimeMs` is `throttle_time_ms`."""
    kind: str
    """Type, for an array the type of its elements; for a struct its name."""
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    default: Any
    """Value in a version that does not have the field, and of a field that was not set."""
    struct: Struct | None
    """Members, if `kind` is a struct."""

    @property
    def format(self) -> str | None:
        """Format in `struct` of one value; None for a type without a fixed size, and for an id."""
        return _SCALARS.get(self.kind)

    def is_null_allowed(self, version: int) -> bool:
        """Return True if null may be written."""
        return _is_in(version, self.nullable)


@dataclass(frozen=True, slots=True)
class Struct:
    """Members in their order on the wire."""

    name: str
    fields: tuple[Field, ...]

    def untagged(self, version: int) -> list[Field]:
        """Return the fields that a version always has."""
        return [
            each for each in self.fields
            if _is_in(version, each.versions) and not _is_in(version, each.tagged)
        ]  # fmt: skip

    def tagged(self, version: int) -> dict[int, Field]:
        """Return the fields, by tag, that a version writes only if they differ from the default."""
        return {
            each.tag: each for each in self.fields
            if each.tag is not None and _is_in(version, each.versions)
            and _is_in(version, each.tagged)
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Schema:
    """Message: a request, an answer, or a record's key or value."""

    name: str
    api_key: int | None
    versions: Versions
    flexible: Versions
    """Versions with compact lengths and tagged fields (KIP-482)."""
    struct: Struct

    def is_flexible(self, version: int) -> bool:
        """Return True if this version has compact lengths and tagged fields."""
        return _is_in(version, self.flexible)


@functools.cache
def read_schema(name: str, package: str) -> Schema:
    """Read the definition `name`.json in a package. Raises FileNotFoundError."""
    data = pkgutil.get_data(package, f"{name}.json")
    if data is None:
        raise FileNotFoundError(f"package {package} cannot be read")
    return schema_of(json.loads(data))


def schema_of(definition: dict[str, Any]) -> Schema:
    """Return the schema of a definition. Raises KeyError and ValueError for an invalid one."""
    common = {each["name"]: each["fields"] for each in definition.get("commonStructs", ())}
    return Schema(
        name=definition["name"],
        api_key=definition.get("apiKey"),
        versions=parse_versions(definition["validVersions"]),
        flexible=parse_versions(definition["flexibleVersions"]),
        struct=_struct(definition["name"], definition["fields"], common),
    )


def _struct(name: str, fields: list[dict[str, Any]], common: dict[str, Any]) -> Struct:
    return Struct(name, tuple(_field(each, common) for each in fields))


def _field(defined: dict[str, Any], common: dict[str, Any]) -> Field:
    kind = defined["type"].removeprefix("[]")
    members = defined.get("fields", common.get(kind))
    is_array = kind != defined["type"]
    tag = defined.get("tag")
    return Field(
        name=re.sub(r"(?<!^)(?=[A-Z])", "_", defined["name"]).lower(),
        kind=kind,
        is_array=is_array,
        versions=parse_versions(defined["versions"]),
        nullable=parse_versions(defined.get("nullableVersions")),
        tag=tag,
        tagged=parse_versions(defined.get("taggedVersions")),
        default=_default(defined.get("default", ""), kind, is_array, members is not None),
        struct=None if members is None else _struct(kind, members, common),
    )


def _default(given: Any, kind: str, is_array: bool, is_struct: bool) -> Any:
    """Return the default. Kafka writes "null", "false", "-1" and "0x7fffffff" as strings, and 0 as
    ""."""
    if given == "null" or kind == "uuid":
        return uuid.UUID(given) if given not in ("", "null") else None
    if is_array:
        return []
    if is_struct:
        return None
    if kind == "bool":
        return str(given).lower() == "true"
    if kind == "float64":
        return float(given or 0)
    if kind in _SCALARS:
        return int(given, 0) if isinstance(given, str) and given else int(given or 0)
    return given if kind == "string" else b""
