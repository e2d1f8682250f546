"""The trace: one line for each thing that happened, and a digest over all lines.

Legend: virtual time in microseconds, who, what, then `name=value` fields. Two runs of one seed must
give one digest, whatever PYTHONHASHSEED is: so nothing may depend on the order of a set, on object
addresses or on real time.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

LINES_KEPT = 200
"""The last lines are kept for the report of a failure."""


class Trace:
    """Collects lines; `echo`, when given, gets each one as it is written."""

    def __init__(
        self,
        now_us: Callable[[], int],
        echo: Callable[[str], None] | None,
        columns_of: Callable[[str], Iterable[str]] = lambda _: (),
    ) -> None:
        """`columns_of` names the state of the run now, and the roles of a process in it."""
        self.counts: Counter[str] = Counter()
        """Counts of each fault, and of each other event worth counting."""
        self.cells: Counter[tuple[str, str]] = Counter()
        """Counts of each fault in each state (see `coverage`)."""
        self.columns_of = columns_of
        self._now_us = now_us
        self._echo = echo
        self._hash = hashlib.sha256()
        """Hash over all lines but the newest ones."""
        self._hashed = 0
        """Number of the lines in `_last` that `_hash` has."""
        self._last: list[str] = []

    def line(self, who: str, what: str, fields: Mapping[str, Any] | None = None) -> None:
        """Write one line."""
        text = f"{self._now_us():>12} {who} {what}"
        if fields:
            for name, value in fields.items():
                text += f" {name}={value if type(value) is int else _text(value)}"
        self._last.append(text)
        if len(self._last) > 2 * LINES_KEPT:
            self._hash_lines()
            del self._last[:LINES_KEPT]
            self._hashed -= LINES_KEPT
        if self._echo is not None:
            self._echo(text)

    def fault(self, what: str, victim: str = "") -> None:
        """Count a fault, and what state it finds: `victim` is the process that it happens to."""
        self.counts[what] += 1
        for column in self.columns_of(victim):
            self.cells[what, column] += 1

    def count(self, what: str) -> None:
        """Count a fault or an event for the non-vacuity report."""
        self.counts[what] += 1

    @property
    def digest(self) -> str:
        """SHA-256 over all lines so far."""
        self._hash_lines()
        return self._hash.hexdigest()

    def _hash_lines(self) -> None:
        """Hash the newest lines: many at a time cost a fraction of one by one."""
        new = self._last[self._hashed :]
        self._hashed = len(self._last)
        self._hash.update("".join(f"{line}\n" for line in new).encode())

    @property
    def last_lines(self) -> list[str]:
        """Newest lines of the run."""
        return self._last[-LINES_KEPT:]


def _text(value: Any) -> str:
    if type(value) is str:
        return repr(value)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    return repr(value).replace("\n", " ")
