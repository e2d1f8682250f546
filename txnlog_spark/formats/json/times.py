"""Dates and timestamps in ISO 8601, as texts of JSON: one text, and arrays of texts, both ways.

A time zone has an offset at an instant, or at a local time as Java has it.

Spark's `from_json` takes many more forms. Here a text in another form is malformed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pyarrow as pa

from txnlog_spark.codec import compute as pc
from txnlog_spark.errors import OptionError
from txnlog_spark.formats.decoded import Misfit

_DATE = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}"
_SECONDS = r":[0-9]{2}(?:\.[0-9]+)?"
_OFFSET = r"(?:Z|[+-](?:0[0-9]|1[0-7])(?::?[0-5][0-9])?)"
_LOCAL = rf"{_DATE}(?:[ T][0-9]{{2}}:[0-9]{{2}}(?:{_SECONDS})?)?"
_TIMESTAMP = rf"{_DATE}(?:[ T][0-9]{{2}}:[0-9]{{2}}(?:{_SECONDS}{_OFFSET}?)?)?"
_DATE_TEXT, _LOCAL_TEXT, _TIMESTAMP_TEXT = map(re.compile, (_DATE, _LOCAL, _TIMESTAMP))
_MICROS = 1_000_000
_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = date(1970, 1, 1)
_YEAR_0, _YEAR_10000 = -62_167_219_200 * _MICROS, 253_402_300_800 * _MICROS
_DAY = 86_400 * _MICROS

_DAY_S = 86_400
_FIRST_S, _LAST_S = -62_135_596_800 + _DAY_S, 253_402_300_800 - 2 * _DAY_S
"""Seconds in years that Python has, also in local time. Offsets do not change beyond them until
the years end that are read and written, 1 and 9999."""
_ZONE_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::(\d\d))?", re.ASCII)
_ZONE_OFFSET_MAX = 18 * 3600
_REFUSED = {"EST", "MST", "HST", "ROC", "Factory", "localtime", "posixrules"}
"""Names that Java does not know, or that mean another zone to some versions of it."""

Numbers = np.ndarray[Any, Any]


# The session's time zone ----------------------------------------------------------------------


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

    def offsets(self, seconds: Numbers, offset: Callable[[int], int]) -> Numbers:
        """Return offsets of an array, by `offset_at` or `offset_of_local` of this zone.

        The zone is asked twice a day, and for each second of a day in which its offset changes.
        """
        if isinstance(self._rules, int):
            return np.full(len(seconds), self._rules, np.int64)
        days, place = np.unique(seconds // _DAY_S, return_inverse=True)
        first = np.array([offset(day * _DAY_S) for day in days.tolist()], np.int64)
        last = np.array([offset((day + 1) * _DAY_S) for day in days.tolist()], np.int64)
        found: Numbers = first[place]
        for row in np.flatnonzero((first != last)[place]).tolist():
            found[row] = offset(int(seconds[row]))
        return found


def _near(second: int) -> datetime:
    return _EPOCH + timedelta(seconds=min(max(second, _FIRST_S), _LAST_S))


def _seconds(offset: timedelta | None) -> int:
    return 0 if offset is None else offset // timedelta(seconds=1)


@cache
def session_zone(name: str) -> Zone:
    """Return the zone of this name. OptionError for a name without one meaning in Java and here."""
    if name in ("Z", "UTC", "GMT", "UT"):
        return Zone(0)
    found = _ZONE_OFFSET.fullmatch(name)
    if found:
        hours, minutes = int(found[2]), int(found[3] or 0)
        total = hours * 3600 + minutes * 60
        if minutes < 60 and total <= _ZONE_OFFSET_MAX:
            return Zone(-total if found[1] == "-" else total)
    elif name not in _REFUSED and name in available_timezones():
        return Zone(ZoneInfo(name))
    raise OptionError(
        "spark.sql.session.timeZone",
        name,
        "is not a time zone of JSON: set it, or the option timeZone, to a region such as "
        "Europe/Berlin or to an offset such as +02:00",
    )


# One text -------------------------------------------------------------------------------------


def date_of(text: str) -> int:
    """Return the days since 1970 of a text yyyy-MM-dd. ValueError for any other text."""
    if not _DATE_TEXT.fullmatch(text):
        raise ValueError("no date")
    return (date.fromisoformat(text) - _EPOCH_DAY).days


def timestamp_of(text: str, zone: Zone | None) -> int:
    """Return the microseconds since 1970 of a text. ValueError for one that is not in ISO 8601.

    `zone` is that of texts without an offset. Without a zone no text has an offset, and its local
    time counts.
    """
    if not (_TIMESTAMP_TEXT if zone else _LOCAL_TEXT).fullmatch(text):
        raise ValueError("no timestamp")
    at = datetime.fromisoformat(text)
    local = (at.replace(tzinfo=None) - _EPOCH) // timedelta(microseconds=1)
    offset = at.utcoffset()
    if offset is not None:
        return local - offset // timedelta(microseconds=1)
    return local - zone.offset_of_local(local // _MICROS) * _MICROS if zone else local


# Arrays of texts ------------------------------------------------------------------------------


def dates(texts: pa.Array) -> pa.Array:
    """Return the dates of texts without null. Misfit where one has another form."""
    return _cast(texts, _DATE, pa.date32())


def timestamps(texts: pa.Array, zone: Zone | None) -> Numbers:
    """Return the microseconds of texts without null, as `timestamp_of`. Misfit where it refuses."""
    if zone is None:
        return _micros(texts, _LOCAL)
    with_offset = pc.match_substring_regex(texts, f"{_SECONDS}{_OFFSET}$")
    made = np.empty(len(texts), np.int64)
    rows = with_offset.to_numpy(zero_copy_only=False)
    if rows.any():
        made[rows] = _micros(texts.filter(with_offset), _TIMESTAMP, "UTC")
    if not rows.all():
        local = _micros(texts.filter(pc.invert(with_offset)), _LOCAL)
        made[~rows] = local - zone.offsets(local // _MICROS, zone.offset_of_local) * _MICROS
    return made


def _micros(texts: pa.Array, form: str, zone: str | None = None) -> Numbers:
    # Like Spark, digits after the sixth of a fraction do not count.
    shorter = pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]+", r"\1")
    made: Numbers = _cast(shorter, form, pa.timestamp("us", zone)).view(pa.int64()).to_numpy()
    return made


def _cast(texts: pa.Array, form: str, type_: pa.DataType) -> pa.Array:
    # Arrow reads more forms than Spark does, such as the year 0 or an offset of 23 hours.
    if pc.match_substring_regex(texts, f"^{form}$").false_count:
        raise Misfit
    try:
        return texts.cast(type_)
    except pa.ArrowInvalid:
        raise Misfit from None


# Arrays of times ------------------------------------------------------------------------------


def date_texts(array: pa.Array, path: str) -> pa.Array:
    """Return the texts of dates without null. OptionError names the column `path`."""
    days = array.view(pa.int32()).to_numpy().astype(np.int64)
    _check_years(np.clip(days, _YEAR_0 // _DAY - 1, _YEAR_10000 // _DAY) * _DAY, path)
    return array.cast(pa.string())


def timestamp_texts(array: pa.Array, zone: Zone | None, path: str) -> pa.Array:
    """Return `yyyy-MM-ddTHH:mm:ss.SSS` of timestamps without null, and their offset with `zone`."""
    # A day beyond the years is still beyond them with an offset, and does not overflow.
    local = np.clip(array.view(pa.int64()).to_numpy(), _YEAR_0 - _DAY, _YEAR_10000 + _DAY)
    ends: Any = ""
    if zone is not None:
        offsets = zone.offsets(local // _MICROS, zone.offset_at)
        unique, which = np.unique(offsets, return_inverse=True)
        named = pa.array([_offset_text(each) for each in unique.tolist()], pa.string())
        ends = named.take(pa.array(which))
        local = local + offsets * _MICROS
    _check_years(local, path)
    texts = pa.array(local // 1000).view(pa.timestamp("ms")).cast(pa.string())
    return pc.binary_join_element_wise(pc.replace_substring(texts, " ", "T"), ends, "")


def _check_years(micros: Numbers, path: str) -> None:
    wrong = (micros < _YEAR_0) | (micros >= _YEAR_10000)
    if wrong.any():
        raise OptionError(
            f"column {path}",
            None,
            f"{np.count_nonzero(wrong)} values are not of the years 0000 to 9999, which are "
            "written as JSON: fill or leave out the rows",
        )


def _offset_text(offset: int) -> str:
    if not offset:
        return "Z"
    minutes, second = divmod(abs(offset), 60)
    text = f"{'-' if offset < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"
    return f"{text}:{second:02}" if second else text
