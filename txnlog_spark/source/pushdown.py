"""Filters on topic, partition, offset and timestamp that shorten a batch read: pure rules.

A filter is *handled* when every record that is read passes it. All others go back to Spark, which
looks at every row; some of these shorten the read all the same:

- `topic` and `partition` are one value for a whole range, and never null: always handled.
- `offset` rises, and is never null: a comparison cuts a range, and is handled. For a list the range
  from the smallest to the largest is read.
- `timestamp` need not rise in a log. All records before the first of a time or later are earlier,
  so a lower bound moves the start. Later records may be earlier again: an upper bound leaves out
  nothing, and these filters always go back, as do values of other types and other columns.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import datasource as spark

from txnlog_spark.source.planning import OFFSET_END, OffsetRange

_COMPARISONS: dict[type[spark.Filter], Callable[[Any, Any], bool]] = {
    spark.EqualTo: operator.eq,
    spark.GreaterThan: operator.gt,
    spark.GreaterThanOrEqual: operator.ge,
    spark.LessThan: operator.lt,
    spark.LessThanOrEqual: operator.le,
}
_LOWER_BOUNDS = {
    spark.EqualTo, spark.EqualNullSafe, spark.GreaterThan, spark.GreaterThanOrEqual, spark.In
}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES = {"topic": str, "partition": int, "offset": int}


@dataclass(frozen=True, slots=True)
class Pushed:
    """Part of a read that filters leave: each record outside fails one of them."""

    places: tuple[spark.Filter, ...] = ()
    """On topic and partition."""
    start_offset: int = 0
    end_offset: int = OFFSET_END
    """Exclusive; an empty interval leaves nothing."""
    timestamp_ms_min: int | None = None
    """Records before the first that is as late fail."""

    def clip(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges without what fails by its place or offset."""
        clipped = (
            part.within(self.start_offset, self.end_offset)
            for part in ranges
            if all(
                _holds(each, getattr(part.topic_partition, _column(each))) for each in self.places
            )
        )
        return [each for each in clipped if each.offset_count > 0]

    def taking(self, each: spark.Filter) -> tuple[Pushed, bool]:
        """Return this part with one more filter, and True if that is handled."""
        column = _column(each)
        if column == "timestamp":
            low = _earliest_ms(each)
            low = self.timestamp_ms_min if low is None else max(low, self.timestamp_ms_min or 0)
            return replace(self, timestamp_ms_min=low), False
        if not _is_of(each, column):
            return self, False
        if column != "offset":
            return replace(self, places=(*self.places, each)), True
        found = _interval(each)
        if found is None:
            return self, False
        start, end = max(found[0], self.start_offset), min(found[1], self.end_offset)
        return replace(self, start_offset=start, end_offset=end), not isinstance(each, spark.In)


def push(filters: Sequence[spark.Filter]) -> tuple[Pushed, list[spark.Filter]]:
    """Return what all of `filters` leave, and the filters that Spark has to apply to its rows."""
    pushed, left = Pushed(), []
    for each in filters:
        pushed, is_handled = pushed.taking(each)
        if not is_handled:
            left.append(each)
    return pushed, left


def _inner(each: spark.Filter) -> Any:
    return each.child if isinstance(each, spark.Not) else each


def _column(each: spark.Filter) -> str:
    """Return the filter's column; "" for a field of a struct, or for several columns."""
    path: tuple[str, ...] = getattr(_inner(each), "attribute", ())
    return path[0] if len(path) == 1 else ""


def _values(each: spark.Filter) -> tuple[Any, ...]:
    inner = _inner(each)
    if isinstance(inner, spark.In):
        return tuple(inner.value)
    return (inner.value,) if hasattr(inner, "value") else ()


def _is_of(each: spark.Filter, column: str) -> bool:
    """True if the filter is of a known kind, and its values are of the column's type."""
    kinds = (*_COMPARISONS, spark.EqualNullSafe, spark.In, spark.IsNull, spark.IsNotNull)
    is_known = column in _TYPES and type(_inner(each)) in kinds
    return is_known and all(v is None or type(v) is _TYPES[column] for v in _values(each))


def _holds(each: spark.Filter, value: Any) -> bool | None:
    """Return SQL's answer for a value that is not null: true, false, or None for unknown."""
    match each:
        case spark.Not(child):
            found = _holds(child, value)
            return None if found is None else not found
        case spark.IsNull():
            return False
        case spark.IsNotNull():
            return True
        case spark.EqualNullSafe(_, wanted):
            return bool(value == wanted)
        case spark.In(_, wanted):
            return True if value in wanted else None if None in wanted else False
    wanted = _values(each)[0]
    return None if wanted is None else _COMPARISONS[type(each)](value, wanted)


def _interval(each: spark.Filter) -> tuple[int, int] | None:
    """Return offsets [start, end) outside which the filter is not true; None for no bound."""
    match each:
        case spark.IsNotNull():
            return 0, OFFSET_END
        case spark.IsNull():
            return 0, 0
        case spark.In() | spark.EqualTo() | spark.EqualNullSafe():
            known = [v for v in _values(each) if v is not None]
            return (min(known), max(known) + 1) if known else (0, 0)
        case spark.Not():
            return None
    wanted = _values(each)[0]
    if wanted is None:
        return 0, 0
    return {
        spark.GreaterThan: (wanted + 1, OFFSET_END),
        spark.GreaterThanOrEqual: (wanted, OFFSET_END),
        spark.LessThan: (0, wanted),
        spark.LessThanOrEqual: (0, wanted + 1),
    }[type(each)]


def _earliest_ms(each: spark.Filter) -> int | None:
    """Return the earliest time (ms) of a record that passes; None when the filter gives no bound.

    A column's time is a whole number of ms, a filter's one of microseconds.
    """
    if type(each) not in _LOWER_BOUNDS:
        return None
    values = [v for v in _values(each) if v is not None]
    if not values or not all(isinstance(v, datetime) and v.tzinfo is not None for v in values):
        return None
    earliest_us: int = min((v - _EPOCH) // timedelta(microseconds=1) for v in values)
    if isinstance(each, spark.GreaterThan):
        earliest_us += 1
    return -(-earliest_us // 1000) if earliest_us > -1000 else None
