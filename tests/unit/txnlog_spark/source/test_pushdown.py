"""Filters against a naive reading of SQL: what is pushed and what is left keep the same rows."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.source.planning import OffsetRange
from txnlog_spark.source.pushdown import push

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARISONS = {
    EqualTo: operator.eq, GreaterThan: operator.gt, GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt, LessThanOrEqual: operator.le,
}  # fmt: skip


def at(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


@dataclass(frozen=True)
class Row:
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    """A record without one has 1 ms before 1970, which Kafka does not look up."""


def sql(each, row: Row) -> bool | None:
    """Return the result of the filter in SQL, with None for null."""
    if isinstance(each, Not):
        found = sql(each.child, row)
        return None if found is None else not found
    value = getattr(row, each.attribute[0])
    if isinstance(each, IsNull | IsNotNull):
        return (value is None) == isinstance(each, IsNull)
    if isinstance(each, EqualNullSafe):
        return bool(value == each.value)
    if isinstance(each, In):
        equal = [sql(EqualTo(each.attribute, v), row) for v in each.value]
        return True if True in equal else None if None in equal else False
    if isinstance(each, StringStartsWith):
        return value.startswith(each.value)
    known = value is not None and each.value is not None
    return COMPARISONS[type(each)](value, each.value) if known else None


def filters_on(column: str, values):
    values |= st.none()
    compared = st.builds(lambda kind, v: kind((column,), v),
                         st.sampled_from([*COMPARISONS, EqualNullSafe]), values)  # fmt: skip
    listed = st.builds(lambda v: In((column,), tuple(v)), st.lists(values, max_size=3))
    nulls = st.sampled_from([IsNull((column,)), IsNotNull((column,))])
    plain = compared | listed | nulls
    return plain | plain.map(Not)


TIMES = st.integers(-2_000, 6_000).map(at)
FILTERS = st.lists(
    filters_on("topic", st.sampled_from(["a", "b", "c"]))
    | filters_on("partition", st.integers(-1, 3))
    | filters_on("offset", st.integers(-1, 9))
    | filters_on("timestamp", TIMES),
    max_size=4,
)
LOGS = st.fixed_dictionaries(
    {
        (topic, number): st.lists(st.integers(-1, 6), max_size=8)
        for topic in "ab"
        for number in range(2)
    }
)


@given(LOGS, FILTERS)
def test_what_is_read_and_passes_the_rest_is_what_all_filters_keep(logs, filters) -> None:
    rows = [
        Row(topic, number, offset, at(ms * 1000))
        for (topic, number), times in logs.items()
        for offset, ms in enumerate(times)
    ]
    pushed, left = push(filters)
    assert all(any(each is given for given in filters) for each in left)
    ranges = pushed.clip(
        OffsetRange(TopicPartition(*name), 0, len(times)) for name, times in logs.items() if times
    )
    read = []
    for each in ranges:
        topic, number = each.topic_partition
        mine = [row for row in rows if (row.topic, row.partition) == (topic, number)]
        start = each.start_offset
        if pushed.timestamp_ms_min is not None:
            limit = at(pushed.timestamp_ms_min * 1000)
            late = [r.offset for r in mine if r.timestamp >= max(limit, EPOCH)]
            start = max(start, min(late, default=each.end_offset))
        read += [row for row in mine if start <= row.offset < each.end_offset]
    kept = [row for row in read if all(sql(each, row) is True for each in left)]
    assert kept == [row for row in rows if all(sql(each, row) is True for each in filters)]


@pytest.mark.parametrize(
    ("each", "is_left"),
    [
        (EqualTo(("partition",), 1), False),
        (Not(In(("partition",), (1, None))), False),
        (LessThan(("offset",), 5), False),
        (Not(LessThan(("offset",), 5)), True),  # Spark pushes offset >= 5 instead
        (Not(EqualTo(("offset",), 5)), True),
        (In(("offset",), (5, 7)), True),
        (GreaterThan(("timestamp",), at(5)), True),
        (EqualTo(("partition",), 1.5), True),
        (EqualTo(("partition",), True), True),
        (StringStartsWith(("topic",), "a"), True),
        (EqualTo(("value",), b"x"), True),
        (EqualTo(("headers", "partition"), 1), True),
    ],
)
def test_a_filter_goes_back_unless_every_record_that_is_read_passes_it(each, is_left) -> None:
    assert push([each])[1] == ([each] if is_left else [])


@pytest.mark.parametrize(
    ("each", "timestamp_ms"),
    [
        (GreaterThanOrEqual(("timestamp",), at(5_000)), 5),
        (GreaterThanOrEqual(("timestamp",), at(5_001)), 6),
        (GreaterThan(("timestamp",), at(5_000)), 6),
        (GreaterThan(("timestamp",), at(4_999)), 5),
        (In(("timestamp",), (at(7_000), None, at(3_000))), 3),
        (Not(LessThan(("timestamp",), at(5_000))), None),
        (EqualTo(("timestamp",), at(-5_000)), None),
        (GreaterThanOrEqual(("timestamp",), at(-1_000)), None),
        (GreaterThan(("timestamp",), at(-1_000)), 0),
        (LessThan(("timestamp",), at(5_000)), None),
        (EqualTo(("timestamp",), datetime(2020, 1, 1)), None),
        (Not(EqualTo(("timestamp",), at(5_000))), None),
    ],
)
def test_a_lower_bound_in_time_is_rounded_up_to_what_records_can_have(each, timestamp_ms) -> None:
    assert push([each])[0].timestamp_ms_min == timestamp_ms
