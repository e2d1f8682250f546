"""Time zones as Spark has them: what an id means, and the offset at an instant or a local time."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import numpy as np

from txnlog_spark.errors import OptionError

_SHORT_IDS = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00",
    "MST": "-07:00",
    "HST": "-10:00",
}
"""`java.time.ZoneId.SHORT_IDS`, which Spark takes too."""

_NOT_IN_JAVA = {"ROC", "Factory", "localtime", "posixrules"}
_OFFSET = re.compile(
    r"([+-])(?:(\d)|(\d\d)|(\d\d)(\d\d)|(\d\d):(\d\d)|(\d\d)(\d\d)(\d\d)|(\d\d):(\d\d):(\d\d))",
    re.ASCII,
)
_ONE_DIGIT_HOUR = re.compile(r"([+-])(\d):", re.ASCII)
_ONE_DIGIT_MINUTE = re.compile(r"([+-])(\d\d):(\d)$(?!\n)", re.ASCII)
_OFFSET_MAX = 18 * 3600
_CYCLE = 146_097 * 86_400
"""Seconds in 400 years, after which the calendar repeats itself."""
_FIRST, _LAST = -62_135_596_800 + _CYCLE, 253_402_300_800 - _CYCLE
_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400

Offset = Callable[[int], int]


class Zone:
    """A time zone: its offset from UTC in seconds, at a second of UTC or of local time."""

    def __init__(self, rules: ZoneInfo | int) -> None:
        self._rules = rules

    @property
    def fixed(self) -> int | None:
        """The offset, where it is always the same."""
        return self._rules if isinstance(self._rules, int) else None

    def offset_at(self, second: int) -> int:
        """The offset at this second since 1970 in UTC."""
        if isinstance(self._rules, int):
            return self._rules
        at = (_EPOCH + timedelta(seconds=_near(second))).replace(tzinfo=UTC)
        return _seconds(at.astimezone(self._rules).utcoffset())

    def offset_of_local(self, second: int) -> int:
        """The offset of this local time: the one before, where clocks were put forward or back.

        So Java's `ZonedDateTime.of` reads a local time that does not exist, or exists twice.
        """
        if isinstance(self._rules, int):
            return self._rules
        at = _EPOCH + timedelta(seconds=_near(second))
        return _seconds(at.replace(tzinfo=self._rules, fold=0).utcoffset())

    def offsets_at(self, seconds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """`offset_at` for an array."""
        return _offsets(seconds, self.offset_at)

    def offsets_of_local(self, seconds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """`offset_of_local` for an array."""
        return _offsets(seconds, self.offset_of_local)


def _near(second: int) -> int:
    """The same second of a year that Python has; the rules of a zone repeat with the calendar."""
    if second < _FIRST:
        return _FIRST + (second - _FIRST) % _CYCLE
    if second >= _LAST:
        return _LAST + (second - _LAST) % _CYCLE
    return second


def _seconds(offset: timedelta | None) -> int:
    return 0 if offset is None else offset // timedelta(seconds=1)


def _offsets(seconds: np.ndarray[Any, Any], offset: Offset) -> np.ndarray[Any, Any]:
    """The zone is asked twice a day, and for each second of a day in which the offset changes."""
    days, place = np.unique(seconds // _DAY, return_inverse=True)
    first = [offset(day * _DAY) for day in days.tolist()]
    last = [offset((day + 1) * _DAY) for day in days.tolist()]
    found = np.array(first, np.int64)[place]
    changes = (np.array(first, np.int64) != np.array(last, np.int64))[place]
    for row in np.flatnonzero(changes).tolist():
        found[row] = offset(int(seconds[row]))
    return found


@cache
def zone_of(name: str) -> Zone:
    """The zone that Spark takes this id for. ValueError where it is none."""
    spelled = _ONE_DIGIT_HOUR.sub(r"\g<1>0\2:", name, count=1)
    spelled = _ONE_DIGIT_MINUTE.sub(r"\1\2:0\3", spelled, count=1)
    spelled = _SHORT_IDS.get(spelled, spelled)
    if spelled in ("Z", "UTC", "GMT", "UT"):
        return Zone(0)
    for prefix in ("UTC", "GMT", "UT", ""):
        if spelled.startswith((prefix + "+", prefix + "-")):
            return Zone(_offset_of(spelled[len(prefix) :]))
    if spelled not in _regions():
        raise ValueError(f"{name!r} is not a time zone")
    return Zone(ZoneInfo(spelled))


def session_zone(name: str) -> Zone:
    """The zone of this name, which is the session's. OptionError where Spark has none."""
    try:
        return zone_of(name)
    except ValueError:
        raise OptionError("spark.sql.session.timeZone", name, "is not a time zone") from None


def _offset_of(text: str) -> int:
    found = _OFFSET.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not an offset of a time zone")
    hour, minute, second = ([int(part) for part in found.groups()[1:] if part] + [0, 0])[:3]
    total = hour * 3600 + minute * 60 + second
    if minute > 59 or second > 59 or total > _OFFSET_MAX:
        raise ValueError(f"{text!r} is not an offset of a time zone")
    return -total if found[1] == "-" else total


@cache
def _regions() -> frozenset[str]:
    return frozenset(available_timezones()) - _NOT_IN_JAVA
