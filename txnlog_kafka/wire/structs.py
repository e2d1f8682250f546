"""Classes of messages and of the structs in them, made from their definitions.

A struct has a slot for each field of any version. A field that was not set, or that the decoded
version does not have, reads as the definition's default. The version of a struct is not known
before it is encoded.
"""

from __future__ import annotations

import functools
from typing import Any

from txnlog_kafka.wire import schemas
from txnlog_kafka.wire.schema import Schema, Struct, read_schema


class StructValue:
    """Value of a struct. Raises AttributeError if it is made with a field that it does not have."""

    __slots__ = ()
    STRUCT: Struct
    """Fields of the struct."""
    DEFAULTS: dict[str, Any]

    def __init__(self, **fields: Any) -> None:
        for name in fields:
            setattr(self, name, fields[name])

    def __getattr__(self, name: str) -> Any:
        # Called for a slot that is empty alone.
        try:
            default = type(self).DEFAULTS[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}") from None
        return [] if default == [] else default

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, n) == getattr(other, n) for n in type(self).DEFAULTS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self).DEFAULTS)
        return f"{type(self).__name__}({fields})"


class MessageValue(StructValue):
    """Value of a whole message."""

    __slots__ = ()
    SCHEMA: Schema
    API_KEY: int | None


@functools.cache
def message_class(name: str, package: str = schemas.__name__) -> Any:
    """Return the class of the definition `name`.json, of Kafka's own or in a package. The class of
    a struct in the message is a member with the struct's name.

    Raises FileNotFoundError.
    """
    schema = read_schema(name, package)
    made = _class_of(schema.struct, MessageValue)
    made.SCHEMA, made.API_KEY = schema, schema.api_key
    return made


def _class_of(struct: Struct, base: Any) -> Any:
    members: dict[str, Any] = {
        "__slots__": tuple(field.name for field in struct.fields),
        "STRUCT": struct,
        "DEFAULTS": {field.name: field.default for field in struct.fields},
    }
    for field in struct.fields:
        if field.struct is not None:
            members[field.kind] = _class_of(field.struct, StructValue)
    return type(struct.name, (base,), members)
