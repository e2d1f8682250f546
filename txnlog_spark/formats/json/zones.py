"""The session's time zone: its offset at an instant, or at a local time as Java has it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import numpy as np

from txnlog_spark.errors import OptionError

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::(\d\d))?", re.ASCII)
_OFFSET_MAX = 18 * 3600
_REFUSED = {"EST", "MST", "HST", "ROC", "Factory", "localtime", "posixrules"}
"""Names that Java does not know, or that mean another zone to some versions of it."""

_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400
_FIRST, _LAST = -62_135_596_800 + _DAY, 253_402_300_800 - 2 * _DAY
"""Seconds in years that Python has, also in local time. Offsets do not change beyond them until
the years end that are read and written, 1 and 9999."""


class Zone:
    """A time zone: its offset from UTC in seconds, at a second of UTC or of local time."""

    def __init__(self, rules: ZoneInfo | int) -> None:
        self._rules = rules

    def offset_at(self, second: int) -> int:
        """Return the offset at this second since 1970 in UTC."""
        if isinstance(self._rules, int):
            return self._rules
        return _seconds(_near(second).replace(tzinfo=UTC).astimezone(self._rules).utcoffset())

    def offset_of_local(self, second: int) -> int:
        """Return the offset of a local time: the one before, where clocks are put forward or back.

        So Java's `ZonedDateTime.of` reads a local time that does not exist, or exists twice.
        """
        if isinstance(self._rules, int):
            return self._rules
        return _seconds(_near(second).replace(tzinfo=self._rules, fold=0).utcoffset())

    def offsets_at(self, seconds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return `offset_at` for an array."""
        return self._offsets(seconds, self.offset_at)

    def offsets_of_local(self, seconds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return `offset_of_local` for an array."""
        return self._offsets(seconds, self.offset_of_local)

    def _offsets(
        self, seconds: np.ndarray[Any, Any], offset: Callable[[int], int]
    ) -> np.ndarray[Any, Any]:
        """Ask the zone twice a day, and for each second of a day in which its offset changes."""
        if isinstance(self._rules, int):
            return np.full(len(seconds), self._rules, np.int64)
        days, place = np.unique(seconds // _DAY, return_inverse=True)
        first = np.array([offset(day * _DAY) for day in days.tolist()], np.int64)
        last = np.array([offset((day + 1) * _DAY) for day in days.tolist()], np.int64)
        found: np.ndarray[Any, Any] = first[place]
        for row in np.flatnonzero((first != last)[place]).tolist():
            found[row] = offset(int(seconds[row]))
        return found


def _near(second: int) -> datetime:
    return _EPOCH + timedelta(seconds=min(max(second, _FIRST), _LAST))


def _seconds(offset: timedelta | None) -> int:
    return 0 if offset is None else offset // timedelta(seconds=1)


@cache
def session_zone(name: str) -> Zone:
    """Return the zone of this name. OptionError for a name without one meaning in Java and here."""
    if name in ("Z", "UTC", "GMT", "UT"):
        return Zone(0)
    found = _OFFSET.fullmatch(name)
    if found:
        hours, minutes = int(found[2]), int(found[3] or 0)
        total = hours * 3600 + minutes * 60
        if minutes < 60 and total <= _OFFSET_MAX:
            return Zone(-total if found[1] == "-" else total)
    elif name not in _REFUSED and name in available_timezones():
        return Zone(ZoneInfo(name))
    raise OptionError(
        "spark.sql.session.timeZone",
        name,
        "is not a time zone of JSON: set it, or the option timeZone, to a region such as "
        "Europe/Berlin or to an offset such as +02:00",
    )
