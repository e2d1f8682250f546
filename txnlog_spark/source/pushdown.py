"""Filters on topic, partition, offset and timestamp that shorten a batch read: pure rules.

A filter is *handled* if every record that is read passes it. All others go back to Spark, which
looks at every row; some of these shorten the read all the same:

- `topic` and `partition` have one value for a whole range, and are never null: always handled.
- `offset` rises, and is never null: a comparison cuts a range, and is handled. For a list, the
  range from the smallest to the largest value is read.
- `timestamp` need not rise in a log. All records before the first record of a time or later are
  earlier, so a lower bound moves the start. Later records may be earlier again: an upper bound
  leaves nothing out. These filters always go back, as do values of other types and other columns.
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
    """The part of a read that filters leave: each record outside fails one of them."""

    places: tuple[spark.Filter, ...] = ()
    """The filters on topic and partition."""
    start_offset: int = 0
    end_offset: int = OFFSET_END
    """Exclusive; an empty interval leaves nothing."""
    timestamp_ms_min: int | None = None
    """Earliest time that passes, in ms: records before the first record as late as this fail."""

    def clip(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges without the parts that fail by their partition or offset."""
        clipped = (
            part.within(self.start_offset, self.end_offset)
            for part in ranges
            if all(
                _holds(each, getattr(part.topic_partition, _column(each))) for each in self.places
            )
        )
        return [each for each in clipped if each.offset_count > 0]

    def taking(self, each: spark.Filter) -> tuple[Pushed, bool]:
        """Return this part with one more filter, and True if that filter is handled."""
        column = _column(each)
        if column == "timestamp":
            low = _earliest_ms(each)
            low = self.timestamp_ms_min if low is None else max(low, self.timestamp_ms_min or 0)
            return replace(self, timestamp_ms_min=low), False
        if not _is_of(each, column):
            return self, False
        if column != "offset":
            return replace(self, places=(*self.places, each)), True
        start, end = _interval(each)
        start, end = max(start, self.start_offset), min(end, self.end_offset)
        is_handled = not isinstance(each, spark.In | spark.Not)
        return replace(self, start_offset=start, end_offset=end), is_handled


def push(filters: Sequence[spark.Filter]) -> tuple[Pushed, list[spark.Filter]]:
    """Return the part that all of `filters` leave, and the filters that Spark has to apply."""
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


def _values(each: spark.Filter) -> list[Any]:
    """Return the filter's values that are not null."""
    inner = _inner(each)
    values = inner.value if isinstance(inner, spark.In) else [getattr(inner, "value", None)]
    return [value for value in values if value is not None]


def _is_of(each: spark.Filter, column: str) -> bool:
    """True if the filter is of a known kind, and its values are of the column's type."""
    kinds = (*_COMPARISONS, spark.EqualNullSafe, spark.In, spark.IsNull, spark.IsNotNull)
    is_known = column in _TYPES and type(_inner(each)) in kinds
    return is_known and all(type(value) is _TYPES[column] for value in _values(each))


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
    known = _values(each)
    return _COMPARISONS[type(each)](value, known[0]) if known else None


def _interval(each: spark.Filter) -> tuple[int, int]:
    """Return offsets [start, end) outside which the filter is not true."""
    if isinstance(each, spark.Not | spark.IsNotNull):
        return 0, OFFSET_END
    known = _values(each)
    if not known:
        return 0, 0
    first, after = min(known), max(known) + 1
    return {
        spark.GreaterThan: (after, OFFSET_END),
        spark.GreaterThanOrEqual: (first, OFFSET_END),
        spark.LessThan: (0, first),
        spark.LessThanOrEqual: (0, after),
    }.get(type(each), (first, after))


def _earliest_ms(each: spark.Filter) -> int | None:
    """Return the earliest time (ms) of a record that passes; None if the filter gives no bound."""
    if type(each) not in _LOWER_BOUNDS:
        return None
    values = _values(each)
    if not values or not all(isinstance(v, datetime) and v.tzinfo is not None for v in values):
        return None
    earliest_us: int = min((v - _EPOCH) // timedelta(microseconds=1) for v in values)
    if isinstance(each, spark.GreaterThan):
        earliest_us += 1
    # A filter's time is a whole number of microseconds, a record's time one of milliseconds.
    return -(-earliest_us // 1000) if earliest_us > -1000 else None
