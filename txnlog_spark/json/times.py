"""Dates and timestamps in the texts that Spark casts to them: one text, and arrays of texts."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import pyarrow as pa

from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.binary import binary_parts
from txnlog_spark.codec.decoded import Misfit
from txnlog_spark.json.zones import Zone, zone_of

_BLANK = "".join(map(chr, range(33))) + "\x7f"
"""What Spark strips from a date or timestamp."""

_DATE = re.compile(
    r"([+-])?(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL
)
_TIME = r"(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?([^\d].*)?)?)?"
_TIMESTAMP = re.compile(
    rf"([+-])?(\d{{4,6}})(?:-(\d{{1,2}})(?:-(\d{{1,2}})(?:[ T]{_TIME})?)?)?", re.ASCII | re.DOTALL
)
_JUST_TIME = re.compile(rf"(T)?{_TIME}", re.ASCII | re.DOTALL)
_WHOLE = re.compile(r"[+-]?\d+")
_DAYS_MAX, _MICROS_MAX = 2**31, 2**63
_FIRST_GREGORIAN = -141_427
"""1582-10-15."""


def days_of(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar."""
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _julian(days: int) -> tuple[int, int, int]:
    """Year, month and day of the Julian calendar."""
    shifted = days + 719_470
    cycle, rest = divmod(shifted, 1461)
    of_cycle = min(rest // 365, 3)
    of_year = rest - of_cycle * 365
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    year = cycle * 4 + of_cycle + (month >= 10)
    return year, month + 3 - 12 * (month >= 10), day


def _checked_days(year: int, month: int, day: int) -> int:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    lengths = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    if not (1 <= month <= 12 and 1 <= day <= lengths[month - 1]):
        raise ValueError("no such day")
    return days_of(year, month, day)


def date_of(text: str) -> int:
    """Days since 1970-01-01 that `from_json` reads in a text. ValueError where it reads none.

    It takes what a cast takes, the same without each `GMT`, and a number of days, which counts in
    the Julian calendar before 1582-10-15.
    """
    for tried in (text, text.replace("GMT", "")):
        found = _DATE.fullmatch(tried.strip(_BLANK))
        if not found:
            continue
        sign, year, month, day = found.groups()
        try:
            days = _checked_days(int((sign or "") + year), int(month or 1), int(day or 1))
        except ValueError:
            continue
        if -_DAYS_MAX <= days < _DAYS_MAX:
            return days
        raise ValueError("a date out of range")
    if not _WHOLE.fullmatch(text) or max(text) > "\uffff":
        raise ValueError("no date")
    days = int(text)
    if not -_DAYS_MAX <= days < _DAYS_MAX:
        raise ValueError("a date out of range")
    if days >= _FIRST_GREGORIAN:
        return days
    year, month, day = _julian(days)
    return days_of(year, month, 1) + day - 1


def _parts(text: str) -> tuple[int | None, int, str | None]:
    """Days, microseconds of the day and zone id of a timestamp; no days where it is just a time."""
    stripped = text.strip(_BLANK)
    days: int | None = None
    found = _TIMESTAMP.fullmatch(stripped)
    if found:
        sign, year, month, day = found.groups()[:4]
        days = _checked_days(int((sign or "") + year), int(month or 1), int(day or 1))
        times = found.groups()[4:]
    else:
        found = _JUST_TIME.fullmatch(stripped)
        # An hour by itself needs the T, which is only read where nothing is before it.
        if not found or not (text[:1] == "T" if found[1] else found[3]):
            raise ValueError("no timestamp")
        times = found.groups()[1:]
    hour, minute, second = (int(part or 0) for part in times[:3])
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("no such time")
    fraction = int(((times[3] or "") + "000000")[:6])
    micros = ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction
    return days, micros, times[4]


def _instant(text: str, zone: Zone) -> int:
    days, micros, name = _parts(text)
    if name is not None:
        zone = zone_of(name.strip(_BLANK[:33]))
    if days is None:
        now = int(time.time())
        days = (now + zone.offset_at(now)) // 86_400
    second = days * 86_400 + micros // 1_000_000
    made = (second - zone.offset_of_local(second)) * 1_000_000 + micros % 1_000_000
    if not -_MICROS_MAX <= made < _MICROS_MAX:
        raise ValueError("a timestamp out of range")
    return made


def timestamp_of(text: str, zone: Zone) -> int:
    """Microseconds since 1970 that `from_json` reads in a text. ValueError where it reads none.

    A text without a zone is a local time of `zone`, and one without a date is a time of today.
    """
    try:
        return _instant(text, zone)
    except ValueError:
        return _instant(text.replace("GMT", ""), zone)


def timestamp_ntz_of(text: str) -> int:
    """The same for a timestamp without time zone: the text has a date, and no zone."""
    days, micros, name = _parts(text)
    if days is None or name is not None:
        raise ValueError("no timestamp without time zone")
    return days * 86_400_000_000 + micros


# Arrays ---------------------------------------------------------------------------------------


def _texts(array: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The first bytes of texts, row by row and padded with zeros, and the lengths."""
    offsets, data = binary_parts(array)
    lengths = np.diff(offsets)
    width = int(lengths.max(initial=0))
    data = data[offsets[0] : offsets[-1]]
    if (lengths == width).all():
        return data.reshape(len(array), width), lengths
    made = np.zeros((len(array), width), np.uint8)
    made[np.arange(width) < lengths[:, None]] = data
    return made, lengths


class _Columns:
    """Texts as columns of characters, with checks that raise Misfit."""

    def __init__(self, texts: np.ndarray[Any, Any]) -> None:
        # One character after the other in memory: what is below looks at one place of all texts.
        self._at = np.ascontiguousarray(texts.T)
        self._digits = self._at - np.uint8(48)

    def check(self, place: int, *allowed: bytes) -> None:
        right = self._at[place] == allowed[0][0]
        for each in allowed[1:]:
            right |= self._at[place] == each[0]
        if not right.all():
            raise Misfit

    def check_digits(self, start: int, end: int) -> None:
        if (self._digits[start:end] > 9).any():
            raise Misfit

    def number(self, start: int, end: int, low: int, high: int) -> np.ndarray[Any, Any]:
        self.check_digits(start, end)
        digits = self._digits[start:end]
        made: np.ndarray[Any, Any] = digits[0].astype(np.int64)
        for each in digits[1:]:
            made = made * 10 + each
        if made.min() < low or made.max() > high:
            raise Misfit
        return made

    def days(self) -> np.ndarray[Any, Any]:
        """Of `yyyy-MM-dd`."""
        self.check(4, b"-")
        self.check(7, b"-")
        year, month = self.number(0, 4, 1, 9999), self.number(5, 7, 1, 12)
        day = self.number(8, 10, 1, 31)
        months = (year - 1970) * 12 + month - 1
        start = months.view("datetime64[M]").astype("datetime64[D]").view(np.int64)
        if (day > 28).any():
            following = (months + 1).view("datetime64[M]").astype("datetime64[D]").view(np.int64)
            if (day > following - start).any():
                raise Misfit
        made: np.ndarray[Any, Any] = start + day - 1
        return made

    def time(self) -> np.ndarray[Any, Any]:
        """Seconds of the day of `HH:mm:ss` from place 11 on."""
        self.check(10, b"T", b" ")
        self.check(13, b":")
        self.check(16, b":")
        hour, minute = self.number(11, 13, 0, 23), self.number(14, 16, 0, 59)
        made: np.ndarray[Any, Any] = (hour * 60 + minute) * 60 + self.number(17, 19, 0, 59)
        return made


def dates(array: pa.Array) -> pa.Array:
    """Dates of texts `yyyy-MM-dd` without null. Misfit where one has another form."""
    if not len(array):
        return array.cast(pa.date32())
    texts, lengths = _texts(array)
    if (lengths != 10).any():
        raise Misfit
    days = _Columns(texts).days()
    return pa.array(days.astype(np.int32)).view(pa.date32())


def timestamps(array: pa.Array, zone: Zone | None) -> np.ndarray[Any, Any]:
    """Microseconds of texts `yyyy-MM-dd[T ]HH:mm:ss[.fraction][Z|±hh:mm]` without null.

    `zone` is that of texts without one; without it a text has none, and it is local time that
    counts. Misfit where a text has another form.
    """
    made = np.empty(len(array), np.int64)
    lengths = pc.binary_length(array).to_numpy(zero_copy_only=False)
    sizes = np.unique(lengths)
    if len(sizes) == 1:
        return _of_one_length(array, int(sizes[0]), zone)
    for length in sizes.tolist():
        rows = np.flatnonzero(lengths == length)
        made[rows] = _of_one_length(array.take(pa.array(rows)), length, zone)
    return made


def _of_one_length(array: pa.Array, length: int, zone: Zone | None) -> np.ndarray[Any, Any]:
    if not 19 <= length <= 60:
        raise Misfit
    texts, _ = _texts(array)
    last = texts[:, -1]
    with_z = last == ord("Z")
    signed = np.isin(texts[:, -6], (ord("+"), ord("-")))
    with_offset = signed & ~with_z if length >= 25 else np.zeros(len(texts), bool)
    made = np.empty(len(texts), np.int64)
    for kind, rows in ((1, with_z), (6, with_offset), (0, ~(with_z | with_offset))):
        if rows.all():
            return _of_one_form(texts, length - kind, kind, zone)
        if rows.any():
            made[rows] = _of_one_form(texts[rows], length - kind, kind, zone)
    return made


def _of_one_form(
    texts: np.ndarray[Any, Any], end: int, kind: int, zone: Zone | None
) -> np.ndarray[Any, Any]:
    """Texts whose fraction ends at `end`, with a zone of `kind` characters after it."""
    columns = _Columns(texts)
    seconds = columns.days() * 86_400 + columns.time()
    micros = np.zeros(len(texts), np.int64)
    if end > 19:
        columns.check(19, b".")
        if end > 20:
            columns.check_digits(20, end)
            taken = min(end, 26)
            micros = columns.number(20, taken, 0, 999_999) * 10 ** (26 - taken)
    if zone is None:
        if kind:
            raise Misfit
    elif kind == 6:
        columns.check(end + 3, b":")
        hour = columns.number(end + 1, end + 3, 0, 17)
        offset = (hour * 60 + columns.number(end + 4, end + 6, 0, 59)) * 60
        seconds = seconds - np.where(texts[:, end] == ord("-"), -offset, offset)
    elif kind == 0:
        seconds = seconds - zone.offsets_of_local(seconds)
    made: np.ndarray[Any, Any] = seconds * 1_000_000 + micros
    return made
