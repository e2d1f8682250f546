"""Comparison of outputs: each kind of difference is found and named, and nothing else is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnlog_testing.prove.compare import (
    CHANGED,
    DOUBLED,
    LOST,
    REORDERED,
    Difference,
    Row,
    compare,
    frozen,
    record_row,
)


def records(*values: str) -> list[Row]:
    """Return records whose values are `key:number` or JSON."""
    return [
        record_row(value[:1].encode(), value.encode(), [], f"out-0@{offset}")
        for offset, value in enumerate(values)
    ]


def test_an_equal_output_has_no_difference_in_whatever_partition_order():
    assert not compare(records("a1", "b1", "a2"), records("b1", "a1", "a2"), ordered=(b"a", b"b"))


def test_a_row_that_is_there_twice_is_doubled_and_its_place_named():
    found = compare(records("a1", "b1"), records("a1", "b1", "a1"))
    assert found.counts == {DOUBLED: 1}
    assert found.first == "key=b'a', value=b'a1' is there again at out-0@2"


def test_a_row_that_is_missing_is_lost():
    found = compare(records("a1", "b1"), records("b1"))
    assert found.counts == {LOST: 1}
    assert "is missing (reference: out-0@0)" in found.first


def test_a_row_of_the_same_key_that_says_something_else_is_changed_and_its_column_named():
    one = [record_row(b"k", b'{"id": 1, "at": 10}', [], "out-0@0")]
    other = [record_row(b"k", b'{"id": 1, "at": 12}', [], "out-0@7")]
    found = compare(one, other)
    assert found.counts == {CHANGED: 1}
    assert found.columns == {"value.at"}
    assert found.first == "value.at was 10 and is 12, at out-0@7"
    assert not compare(one, other, frozenset({"value.at"}))


def test_a_row_that_nobody_wrote_is_changed_and_one_that_is_missing_beside_it_is_lost():
    found = compare(records("a1", "b1"), records("a1", "c9"))
    assert found.counts == {LOST: 1, CHANGED: 1}


def test_rows_of_a_key_in_another_order_are_reordered_where_an_order_counts():
    one, other = records("a1", "a2", "b1"), records("a2", "a1", "b1")
    found = compare(one, other, ordered=(b"a",))
    assert found.counts == {REORDERED: 2}
    assert found.first.startswith("key b'a': key=b'a', value=b'a2' came where")
    assert not compare(one, other, ordered=(b"b",))


def test_rows_without_a_key_have_no_order():
    one = [Row({"id": 1}), Row({"id": 2})]
    assert not compare(one, one[::-1])


def test_changed_rows_without_a_key_are_paired_by_what_they_have_in_common():
    one = [Row({"id": n, "name": f"n{n}", "at": n}) for n in range(5)]
    other = [Row({"id": n, "name": f"n{n}", "at": n + 100}) for n in range(5)]
    found = compare(one, random.Random(1).sample(other, 5))
    assert (found.counts, found.columns) == ({CHANGED: 5}, {"at"})


@pytest.mark.parametrize(
    "value", [float("nan"), [1, {"a": [2]}], bytearray(b"x"), {"b": float("nan")}, None]
)
def test_a_value_of_any_kind_equals_itself(value):
    assert frozen(value) == frozen(value)
    hash(frozen(value))
    assert not compare([Row({"v": value})], [Row({"v": value})])


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), (1, True), (0, False), (0.0, -0.0), ("1", 1), (b"1", "1"), ({"1": 0}, {1: 0})],
)
def test_values_that_python_alone_calls_equal_are_different(one, other):
    found = compare([Row({"v": one})], [Row({"v": other})])
    assert found.counts == {CHANGED: 1}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1),
    st.data(),
)
def test_counts_say_by_how_much_the_outputs_differ(rows, data):
    reference = [Row({"k": k, "n": n}, k, "r") for k, n in rows]
    seen = [row for row in reference if data.draw(st.booleans())]
    more = [row for row in reference if data.draw(st.booleans())]
    found = compare(reference, seen + more)
    lost, doubled = found.counts.get(LOST, 0), found.counts.get(DOUBLED, 0)
    assert len(reference) - lost + doubled == len(seen) + len(more)
    assert CHANGED not in found.counts
    assert bool(found) == (found != Difference())
