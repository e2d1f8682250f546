"""Texts of dates and timestamps as Spark writes them into JSON, for arrays."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from txnlog_spark.codec import compute as pc
from txnlog_spark.json.zones import Zone

_PAIRS = np.frombuffer(b"".join(b"%02d" % number for number in range(100)), "S2")
"""The texts of 00 to 99."""
_FIRST_DAY, _LAST_DAY = -719_528, 2_932_896
"""Of the years 0 and 9999: others have a sign."""
_CYCLE_DAYS, _CYCLE_YEARS = 146_097, 400
_DAY = 86_400
_DATE = "yyyy-mm-dd"
_TIME = "yyyy-mm-ddThh:mm:ss.fff"

Numbers = np.ndarray[Any, Any]


def date_texts(array: pa.Array) -> pa.Array:
    """Dates without null as `yyyy-MM-dd`."""
    days = array.view(pa.int32()).to_numpy().astype(np.int64)
    made = np.empty((len(days), len(_DATE)), np.uint8)
    _put_date(made, _usual(days))
    return _signed(_strings(made, None), days)


def timestamp_texts(array: pa.Array, zone: Zone | None) -> pa.Array:
    """Timestamps without null as `yyyy-MM-dd'T'HH:mm:ss.SSS`, and their offset where `zone` is."""
    micros = array.view(pa.int64()).to_numpy()
    seconds = micros // 1_000_000
    offsets = None if zone is None else _offsets(zone, seconds)
    if offsets is not None:
        seconds = seconds + offsets
    days = seconds // _DAY
    ends = [""] if offsets is None else [_offset_text(each) for each in np.unique(offsets).tolist()]
    width = len(_TIME) + max(map(len, ends), default=0)
    made = np.empty((len(days), width), np.uint8)
    _put_date(made, _usual(days))
    _put_time(made, seconds - days * _DAY, micros)
    lengths = None
    if offsets is not None:
        lengths = _put_offset(made, offsets)
    return _signed(_strings(made, lengths), days)


def _offsets(zone: Zone, seconds: Numbers) -> Numbers:
    if zone.fixed is not None:
        return np.full(len(seconds), zone.fixed, np.int64)
    return zone.offsets_at(seconds)


def _usual(days: Numbers) -> Numbers:
    """The same days of a year with four digits."""
    if ((days >= _FIRST_DAY) & (days <= _LAST_DAY)).all():
        return days
    return np.where(
        (days >= _FIRST_DAY) & (days <= _LAST_DAY), days, _FIRST_DAY + (days - _FIRST_DAY) % 146_097
    )


def _put(made: Numbers, place: int, pairs: Numbers) -> None:
    made[:, place : place + 2] = _PAIRS[pairs].view(np.uint8).reshape(-1, 2)


def _put_date(made: Numbers, days: Numbers) -> None:
    months = days.view("datetime64[D]").astype("datetime64[M]")
    of_month = days - months.astype("datetime64[D]").view(np.int64)
    years, month = np.divmod(months.view(np.int64) + 1970 * 12, 12)
    _put(made, 0, years // 100)
    _put(made, 2, years % 100)
    made[:, 4] = made[:, 7] = ord("-")
    _put(made, 5, month + 1)
    _put(made, 8, of_month + 1)


def _put_time(made: Numbers, of_day: Numbers, micros: Numbers) -> None:
    made[:, 10] = ord("T")
    made[:, 13] = made[:, 16] = ord(":")
    made[:, 19] = ord(".")
    minutes, second = np.divmod(of_day, 60)
    _put(made, 11, minutes // 60)
    _put(made, 14, minutes % 60)
    _put(made, 17, second)
    millis = micros // 1000 % 1000
    made[:, 20] = millis // 100 + ord("0")
    _put(made, 21, millis % 100)


def _put_offset(made: Numbers, offsets: Numbers) -> Numbers | None:
    """Write the offsets; the lengths of the rows, where they differ."""
    lengths = np.full(len(offsets), made.shape[1], np.int32)
    for offset in np.unique(offsets).tolist():
        text = _offset_text(offset).encode()
        end = len(_TIME) + len(text)
        rows = offsets == offset
        made[rows, len(_TIME) : end] = np.frombuffer(text, np.uint8)
        lengths[rows] = end
    return None if (lengths == made.shape[1]).all() else lengths


def _offset_text(offset: int) -> str:
    if not offset:
        return "Z"
    minutes, second = divmod(abs(offset), 60)
    text = f"{'-' if offset < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"
    return f"{text}:{second:02}" if second else text


def _strings(made: Numbers, lengths: Numbers | None) -> pa.Array:
    rows, width = made.shape
    if lengths is None:
        offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
        data = made.reshape(-1)
    else:
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        data = made[np.arange(width) < lengths[:, None]]
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data.tobytes())]
    return pa.Array.from_buffers(pa.string(), rows, buffers)


def _signed(texts: pa.Array, days: Numbers) -> pa.Array:
    """Years after 9999 and before 0 instead of the ones with four digits."""
    other = (days < _FIRST_DAY) | (days > _LAST_DAY)
    if not other.any():
        return texts
    mask = pa.array(other)
    years = pa.array([_year(day) for day in days[other].tolist()], pa.string())
    rest = pc.utf8_slice_codeunits(texts.filter(mask), 4)
    return pc.replace_with_mask(texts, mask, pc.binary_join_element_wise(years, rest, ""))


def _year(day: int) -> str:
    cycles, rest = divmod(day, _CYCLE_DAYS)
    year = (date(1970, 1, 1) + timedelta(rest)).year + cycles * _CYCLE_YEARS
    return f"{'+' if year > 0 else '-'}{abs(year):04}"
