"""Tests and seeds of the day: each day of `make test` sees a share, and a week sees all.

A test with the mark `weekly` belongs to one day of the week, by a checksum of its name; on the six
other days it belongs to `make chaos`. Tests that share what is dear to start name their day:
`weekly(day=3)` is Wednesday's, 0 is Sunday's. Tests that draw seeds take those of `seeds_of_day`.
`TXNLOG_DAY=2026-11-29 make test` runs what that day ran.
"""

from __future__ import annotations

import os
import zlib
from datetime import UTC, date, datetime

import pytest

DAY = "TXNLOG_DAY"
WEEK_DAYS = 7


def today() -> date:
    """Return the day of this run: the variable, or else the date in UTC."""
    given = os.environ.get(DAY)
    return date.fromisoformat(given) if given else datetime.now(UTC).date()


def is_of_day(nodeid: str, day: date, own: int | None = None) -> bool:
    """Return True if a `weekly` test belongs to `make test` on that day; `own` is its named day."""
    number = zlib.crc32(nodeid.encode()) if own is None else own
    return number % WEEK_DAYS == day.toordinal() % WEEK_DAYS


def seeds_of_day(count: int, end: int) -> list[int]:
    """Return `count` seeds below `end`: the next ones on the next day, from 0 again at the end."""
    first = today().toordinal() * count
    return [(first + number) % end for number in range(count)]


class Days:
    """The plugin: says what the day is, and leaves the tests of other days to `make chaos`."""

    def __init__(self) -> None:
        # The workers of xdist inherit it: midnight changes nothing in a run.
        self._day = today()
        os.environ[DAY] = self._day.isoformat()

    def pytest_report_header(self) -> str:
        """Name the day, which chooses tests and seeds."""
        return f"tests and seeds of {self._day} ({DAY}); make chaos runs the others"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Before `-m` chooses."""
        for item in items:
            mark = item.get_closest_marker("weekly")
            if mark and not is_of_day(item.nodeid, self._day, mark.kwargs.get("day")):
                item.add_marker("chaos")
