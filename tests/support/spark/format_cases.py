"""Orders in each format: the options of a read and of a write, and the schemas behind them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

ORDER_DDL = "id BIGINT, item STRING, amount DOUBLE, tags ARRAY<STRING>"
KEY_DDL = "id BIGINT"


def _nullable(name: str, avro: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", avro], "default": None}


def _record(name: str, *fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


ORDER_AVRO = _record(
    "shop.Order",
    _nullable("id", "long"),
    _nullable("item", "string"),
    _nullable("amount", "double"),
    _nullable("tags", {"type": "array", "items": ["null", "string"]}),
)
KEY_AVRO = _record("shop.Key", _nullable("id", "long"))


@dataclass(frozen=True)
class FormatCase:
    """One format with the schemas of an order and of its key; `malformed` is no value of it."""

    name: str
    malformed: bytes
    problem: str
    value: str | None = None
    key: str | None = None

    def of_value(self, **more: str) -> dict[str, str]:
        """The options of values."""
        return self._of("value", self.value, more)

    def of_key(self, **more: str) -> dict[str, str]:
        """The options of keys."""
        return self._of("key", self.key, more)

    def _of(self, side: str, schema: str | None, more: dict[str, str]) -> dict[str, str]:
        given = {"format": self.name} | ({} if schema is None else {"schema": schema}) | more
        return {f"{side}.{name}": value for name, value in given.items()}


TEXT = FormatCase("string", b"a\xff", "it is not UTF-8: invalid start byte at byte 1")
AVRO = FormatCase("avro", b"\x02\xff", "not a datum of the schema", ORDER_AVRO, KEY_AVRO)
JSON = FormatCase("json", b'{"id": 1, "amount": tr}', "", ORDER_DDL, KEY_DDL)
CASES = [JSON, AVRO]


def orders(count: int) -> list[tuple[Any, ...]]:
    """Rows of ORDER_DDL: an order in ten is null as a whole, others have fields that are."""
    made: list[tuple[Any, ...]] = []
    for n in range(count):
        tags = None if n % 4 == 0 else [f"t{n}", "", 'é"x'][: n % 4]
        row = (n, None if n % 5 == 0 else f"item {n}", n / 8, tags)
        made.append((None,) if n % 10 == 9 else (row,))
    return made
