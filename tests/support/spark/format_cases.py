"""Orders in each format: the options of a read and of a write, and the schemas behind them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

ORDER_DDL = "id BIGINT, item STRING, amount DOUBLE, tags ARRAY<STRING>"
ORDER_AVRO = json.dumps(
    {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "id", "type": ["null", "long"], "default": None},
            {"name": "item", "type": ["null", "string"], "default": None},
            {"name": "amount", "type": ["null", "double"], "default": None},
            {
                "name": "tags",
                "type": ["null", {"type": "array", "items": ["null", "string"]}],
                "default": None,
            },
        ],
    }
)
"""Fields that may be null, as Spark's columns may."""


@dataclass(frozen=True)
class FormatCase:
    """One format. `options` are of the value, for both sides; `malformed` is no value of it."""

    name: str
    malformed: bytes
    problem: str
    options: dict[str, str] = field(default_factory=dict)

    def of(self, side: str, **more: str) -> dict[str, str]:
        """The options of one side, key or value."""
        given = {"format": self.name} | self.options | more
        return {f"{side}.{name}": value for name, value in given.items()}


JSON = FormatCase("json", b'{"id": 1', "", {"schema": ORDER_DDL})
AVRO = FormatCase("avro", b"\x02\xff", "not a datum of the schema", {"schema": ORDER_AVRO})


def orders(count: int) -> list[tuple[Any, ...]]:
    """Rows of ORDER_DDL: an order in ten is null as a whole, others have fields that are."""
    made: list[tuple[Any, ...]] = []
    for n in range(count):
        tags = None if n % 4 == 0 else [f"t{n}", None, "\u00e9\"x"][: n % 4]
        row = (n, None if n % 5 == 0 else f"item {n}", n / 8, tags)
        made.append((None,) if n % 10 == 9 else (row,))
    return made
