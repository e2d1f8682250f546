"""Requests of any API and version with every field filled, from their own definitions."""

from __future__ import annotations

import random
import uuid
from typing import Any

from txnlog_kafka.wire.messages import APIS, Api
from txnlog_kafka.wire.schema import Field

TEXTS = ("", "t", "orders", "__consumer_offsets", "no-such", "x" * 300, "ä/\u0000..", "g", "txn")
NUMBERS = (0, 1, -1, 2, -2, 7, 127, -128)
WIDE = {
    "int16": (32767, -32768),
    "int32": (2**31 - 1, -(2**31)),
    "int64": (2**63 - 1, -(2**63)),
    "uint16": (65535,),
    "uint32": (2**32 - 1,),
}
BYTES = (b"", b"\x00", b"\xff" * 61, bytes(range(100)))


def field_value(holder: Any, field: Field, version: int, rng: random.Random) -> Any:
    """A value of a field that its type can encode; hostile as often as plain."""
    if field.is_null_allowed(version) and rng.random() < 0.2:
        return None
    if not field.is_array:
        return one_value(holder, field, version, rng)
    count = rng.choice((0, 1, 1, 2))
    return [one_value(holder, field, version, rng) for _ in range(count)]


def one_value(holder: Any, field: Field, version: int, rng: random.Random) -> Any:
    """The value of a plain field, or one element of an array."""
    if field.struct is not None:
        return fill(getattr(holder, field.kind), version, rng)
    return scalar(field.kind, rng)


def scalar(kind: str, rng: random.Random) -> Any:
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "string":
        return rng.choice(TEXTS)
    if kind in ("bytes", "records"):
        return rng.choice(BYTES)
    if kind == "uuid":
        return uuid.UUID(int=rng.choice((0, 1, rng.getrandbits(128))))
    if kind == "float64":
        return rng.choice((0.0, 1.5))
    numbers = [n for n in NUMBERS + WIDE.get(kind, ()) if n >= 0 or kind[0] != "u"]
    return rng.choice(numbers)


def fill(message_class: Any, version: int, rng: random.Random) -> Any:
    """A message or nested struct with every field of the version set."""
    values = {
        field.name: field_value(message_class, field, version, rng)
        for field in message_class.STRUCT.fields
        if field.versions[0] <= version <= field.versions[1]
    }
    return message_class(**values)


def any_request(rng: random.Random, api: Api | None = None) -> tuple[Any, int]:
    """A request of some API, and the version it is to be sent at."""
    chosen = api or rng.choice(list(APIS.values()))
    version = rng.randint(chosen.version_min, chosen.version_max)
    return fill(chosen.request, version, rng), version
