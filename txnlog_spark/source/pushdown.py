"""What filters on topic, partition, offset and timestamp leave of a batch read: pure rules.

A filter is *handled* when every record that is read passes it; then Spark need not look again. All
others go back to Spark, which looks at every row, as it does without push-down; of some of those a
part of the log can be left out all the same:

- `topic` and `partition` are one value for a whole range, and never null: always handled.
- `offset` rises, and is never null: a comparison cuts a range, and is handled. Of a list the range
  from the smallest to the largest is read.
- `timestamp` need not rise in a log. Kafka answers where the first record of a time or later is:
  all before it are earlier, so a lower bound moves the start. What follows may be earlier again,
  and an upper bound leaves out nothing; so these filters always go back.

Whatever is not understood (a value of another type, another column) goes back untouched.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.source.planning import OffsetRange

OFFSET_END = 2**63
_COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
_NEGATED: dict[type[Filter], type[Any]] = {
    GreaterThan: LessThanOrEqual,
    GreaterThanOrEqual: LessThan,
    LessThan: GreaterThanOrEqual,
    LessThanOrEqual: GreaterThan,
    IsNull: IsNotNull,
    IsNotNull: IsNull,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES = {"topic": str, "partition": int, "offset": int}


@dataclass(frozen=True, slots=True)
class Pushed:
    """The part of a read that filters leave: all that is not in it fails one of them."""

    places: tuple[Filter, ...] = ()
    """On topic and partition."""
    start_offset: int = 0
    end_offset: int = OFFSET_END
    """Exclusive; an empty interval leaves nothing."""
    timestamp_ms_min: int | None = None
    """Records before the first that is as late fail."""

    def reads(self, place: TopicPartition) -> bool:
        """Whether records of this partition can pass."""
        values = {"topic": place.topic, "partition": place.partition}
        return all(_holds(each, values[_column(each)]) is True for each in self.places)

    def clip(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """The ranges without what fails by its place or offset."""
        clipped = [
            replace(
                each,
                start_offset=max(each.start_offset, self.start_offset),
                end_offset=min(each.end_offset, self.end_offset),
            )
            for each in ranges
            if self.reads(each.topic_partition)
        ]
        return [each for each in clipped if each.offset_count > 0]

    def taking(self, each: Filter) -> tuple[Pushed, bool]:
        """With one more filter, and whether it is handled."""
        column = _column(each)
        if column in ("topic", "partition"):
            if not _is_of(each, column):
                return self, False
            return replace(self, places=(*self.places, each)), True
        if column == "offset":
            return self._taking_offset(each)
        if column == "timestamp":
            low = _earliest_ms(_plain(each))
            if low is not None:
                return replace(self, timestamp_ms_min=max(low, self.timestamp_ms_min or 0)), False
        return self, False

    def _taking_offset(self, each: Filter) -> tuple[Pushed, bool]:
        found = _interval(_plain(each)) if _is_of(each, "offset") else None
        if found is None:
            return self, False
        start, end = found
        cut = replace(
            self,
            start_offset=max(start, self.start_offset),
            end_offset=min(end, self.end_offset),
        )
        return cut, not isinstance(_plain(each), In)


def push(filters: Sequence[Filter]) -> tuple[Pushed, list[Filter]]:
    """What all of `filters` together leave, and those that Spark has to apply to its rows."""
    pushed, left = Pushed(), []
    for each in filters:
        pushed, is_handled = pushed.taking(each)
        if not is_handled:
            left.append(each)
    return pushed, left


def _column(each: Filter) -> str:
    """The filter's column; "" for what is none of this source's."""
    inner = each.child if isinstance(each, Not) else each
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _values(each: Filter) -> tuple[Any, ...]:
    inner = each.child if isinstance(each, Not) else each
    if isinstance(inner, In):
        return tuple(inner.value)
    return (inner.value,) if hasattr(inner, "value") else ()


def _is_of(each: Filter, column: str) -> bool:
    """Whether the filter is of a kind that is known, and its values are of the column's type."""
    inner = each.child if isinstance(each, Not) else each
    known = type(inner) in _COMPARISONS or isinstance(
        inner, EqualNullSafe | In | IsNull | IsNotNull
    )
    return known and all(v is None or type(v) is _TYPES[column] for v in _values(each))


def _plain(each: Filter) -> Filter:
    """Without its Not, where there is a filter that says the same of values that are not null."""
    if isinstance(each, Not) and type(each.child) in _NEGATED:
        child: Any = each.child
        made: Filter = _NEGATED[type(child)](*(getattr(child, n) for n in child.__match_args__))
        return made
    return each


def _holds(each: Filter, value: Any) -> bool | None:
    """SQL's answer for a value that is not null: true, false, or None for unknown."""
    match each:
        case Not(child):
            found = _holds(child, value)
            return None if found is None else not found
        case IsNull():
            return False
        case IsNotNull():
            return True
        case EqualNullSafe(_, wanted):
            return bool(value == wanted)
        case In(_, wanted):
            return True if value in wanted else None if None in wanted else False
    wanted = _values(each)[0]
    return None if wanted is None else _COMPARISONS[type(each)](value, wanted)


def _interval(each: Filter) -> tuple[int, int] | None:
    """Offsets [start, end) outside which the filter is not true; None when nothing is outside."""
    match each:
        case IsNotNull():
            return 0, OFFSET_END
        case IsNull():
            return 0, 0
        case In(_, wanted):
            known = [v for v in wanted if v is not None]
            return (min(known), max(known) + 1) if known else (0, 0)
        case Not():
            return None
    wanted = _values(each)[0]
    if wanted is None:
        return 0, 0
    return {
        EqualTo: (wanted, wanted + 1),
        EqualNullSafe: (wanted, wanted + 1),
        GreaterThan: (wanted + 1, OFFSET_END),
        GreaterThanOrEqual: (wanted, OFFSET_END),
        LessThan: (0, wanted),
        LessThanOrEqual: (0, wanted + 1),
    }[type(each)]


def _earliest_ms(each: Filter) -> int | None:
    """The earliest time (ms) of a record that passes; None when the filter gives no bound.

    A column's time is a whole number of ms, a filter's one of microseconds.
    """
    if type(each) not in (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, In):
        return None
    values = [v for v in _values(each) if v is not None]
    if not values or not all(isinstance(v, datetime) and v.tzinfo is not None for v in values):
        return None
    earliest_us: int = min((v - _EPOCH) // timedelta(microseconds=1) for v in values)
    if isinstance(each, GreaterThan):
        earliest_us += 1
    return max(0, -(-earliest_us // 1000))
