"""Avro schemas, and values of them as fastavro takes them, that the tests of Avro share."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro

RECORD: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "small", "type": "int"},
        {"name": "open", "type": "boolean"},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4},
        },
        {
            "name": "fee",
            "type": {
                "type": "fixed", "name": "Fee", "size": 5,
                "logicalType": "decimal", "precision": 9, "scale": 2,
            },
        },
        {"name": "weight", "type": ["null", "float"]},
        {"name": "ratio", "type": ["double", "null"]},
        {"name": "note", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "digest", "type": {"type": "fixed", "name": "Digest", "size": 3}},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "at_ms", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "local_ms", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "grid", "type": {"type": "array", "items": {"type": "array", "items": "int"}}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "whole", "type": ["int", "long"]},
        {"name": "real", "type": ["null", "float", "double"]},
        {
            "name": "either",
            "type": [
                "null", "string", "long",
                {
                    "type": "record", "name": "Pair",
                    "fields": [{"name": "left", "type": ["null", "int"]}],
                },
            ],
        },
        {"name": "pair", "type": ["null", "Pair"]},
        {"name": "pairs", "type": {"type": "map", "values": {"type": "array", "items": "Pair"}}},
    ],
}  # fmt: skip


def orders(count: int) -> list[dict[str, Any]]:
    """Values of RECORD, with null in every place that has it."""
    return [_order(number) for number in range(count)]


def _order(n: int) -> dict[str, Any]:
    sign = -1 if n % 2 else 1
    stamp = datetime(2024, 2, 29, 12, 30, 1, 234000, UTC) + sign * timedelta(days=n * 300)
    return {
        "id": sign * (1 << (n * 5 % 63)),
        "small": sign * (1 << (n * 3 % 31)),
        "open": n % 3 == 0,
        "price": Decimal(sign * 12345 * 10 ** (n % 10)).scaleb(-4),
        "fee": Decimal(sign * n * 99).scaleb(-2),
        "weight": None if n % 4 == 0 else n / 4,
        "ratio": None if n % 5 == 0 else n / 3,
        "note": None if n % 3 == 1 else "größe " * (n % 30),
        "raw": bytes(range(n % 200)),
        "digest": bytes([n % 256] * 3),
        "colour": ("RED", "BLUE")[n % 2],
        "uuid": f"00000000-0000-0000-0000-{n:012d}",
        "day": date(1970, 1, 1) + timedelta(days=sign * n * 100),
        "at": stamp + timedelta(microseconds=7),
        "at_ms": None if n % 7 == 0 else stamp,
        "local": stamp.replace(tzinfo=None) + timedelta(microseconds=7),
        "local_ms": stamp.replace(tzinfo=None),
        "tags": [None if at % 3 == 2 else f"tag{at}" for at in range(n % 6)],
        "grid": [list(range(at)) for at in range(n % 4)],
        "counts": {f"key{at}": at - 1 for at in range(n % 3)},
        "whole": n if n % 2 else n << 33,
        "real": (None, float(n), n / 7)[n % 3],
        "either": (None, f"text{n}", n, {"left": None}, {"left": n})[n % 5],
        "pair": None if n % 2 else {"left": n},
        "pairs": {"a": [{"left": n}, {"left": None}]} if n % 2 else {},
    }


def encoded(values: list[Any], schema: Any) -> list[bytes]:
    """Return the values as fastavro writes them."""
    parsed = fastavro.parse_schema(
        schema if isinstance(schema, str) else json.loads(json.dumps(schema))
    )
    made = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        made.append(out.getvalue())
    return made


SCHEMAS: tuple[Any, ...] = (
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
    RECORD,
    ["null"],
    ["int"],
    ["null", "long", "int"],
    ["double", "float"],
    ["null", "int", "string", {"type": "array", "items": "int"}],
    ["string", "bytes", "null"],
    {"type": "record", "name": "Empty", "fields": []},
    {"type": "record", "name": "Nothing", "fields": [{"name": "n", "type": "null"}]},
    {"type": "array", "items": ["null", {"type": "map", "values": ["null", "int"]}]},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "date"},
    {"type": "long", "logicalType": "unheard-of"},
    {"type": "fixed", "name": "Uuid", "size": 16, "logicalType": "uuid"},
    {"type": "fixed", "name": "Span", "size": 12, "logicalType": "duration"},
    {"type": "fixed", "name": "Tight", "size": 2, "logicalType": "decimal", "precision": 4},
    {"type": "fixed", "name": "Tighter", "size": 2, "logicalType": "decimal", "precision": 5},
    {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 9},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 38},
    {"type": "bytes", "logicalType": "decimal"},
)
"""Schemas that have a Spark type."""

NODE = {
    "type": "record",
    "name": "Node",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "next", "type": ["null", "Node"]},
        {"name": "kids", "type": {"type": "array", "items": "Node"}},
    ],
}
"""A record that contains itself."""
