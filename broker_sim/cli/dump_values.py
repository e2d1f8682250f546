"""Parts of a dump: items in the order of the file, or the place where it is damaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Item:
    """Batch, record or entry: its kind, and its fields by Kafka's names in their order."""

    kind: str
    fields: Mapping[str, Any]


class Damage(Exception):
    """Damage of a file: it cannot be read from `position` on."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"damaged at byte {position}: {reason}")
        self.position = position
        self.reason = reason
