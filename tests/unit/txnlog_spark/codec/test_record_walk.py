"""Positions of records, found by their lengths: in few or many batches, whole and corrupt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_kafka.wire.varint import encode_signed
from txnlog_spark.codec import record_walk
from txnlog_spark.codec.decode import FetchedRange, iter_decoded
from txnlog_spark.codec.record_walk import PAST_THE_END, TOGETHER_MIN, walk_records

Batches = list[list[int]]

sizes = st.one_of(st.integers(1, 70), st.integers(60, 300), st.integers(8_100, 8_300))
batches = st.lists(st.lists(sizes, max_size=12), max_size=2 * TOGETHER_MIN)


def walked(
    data: bytes | bytearray, starts: list[int], ends: list[int], counts: list[int]
) -> tuple[list[int], list[int]]:
    """`walk_records`, by lists."""
    bounds = (np.array(each, np.int64) for each in (starts, ends, counts))
    positions, found_ends = walk_records(data, *bounds)
    return positions.tolist(), found_ends.tolist()


def laid_out(batches: Batches) -> tuple[bytes, list[int], list[int], list[int]]:
    """Batches of records of these sizes between bytes of others, and where all of it begins."""
    data, starts, ends, positions = bytearray(), [], [], []
    for records in batches:
        data += b"\x07" * 61
        starts.append(len(data))
        for size in records:
            positions.append(len(data))
            data += encode_signed(size) + bytes(size)
        ends.append(len(data))
    return bytes(data), starts, ends, positions


@given(batches)
def test_each_record_leads_to_the_next_one_to_the_end_of_its_batch(batches: Batches) -> None:
    data, starts, ends, positions = laid_out(batches)
    for each in (data, bytearray(data)):
        found, found_ends = walked(each, starts, ends, list(map(len, batches)))
        assert found == positions
        assert found_ends == ends


@pytest.mark.parametrize("count", [1, TOGETHER_MIN, 3 * TOGETHER_MIN])
@pytest.mark.parametrize("wrong", [0, -1])
def test_a_batch_whose_records_do_not_end_with_it_is_seen_and_the_others_are_not_touched(
    count: int, wrong: int
) -> None:
    batches = [[20 + number % 5] * 6 for number in range(count)]
    data, starts, ends, _ = laid_out(batches)
    changed = bytearray(data)
    changed[starts[wrong]] += 2
    _, found = walked(bytes(changed), starts, ends, [6] * count)
    assert found[wrong] != ends[wrong]
    right = [number for number in range(count) if number != wrong % count]
    assert [found[number] for number in right] == [ends[number] for number in right]


@pytest.mark.parametrize("count", [1, 2 * TOGETHER_MIN])
def test_records_that_go_beyond_the_data_have_no_end(count: int) -> None:
    data, starts, ends, _ = laid_out([[40, 40]] * count)
    _, found = walked(data[:-1] + b"\x50", starts, ends, [2] * (count - 1) + [5])
    assert found == [*ends[:-1], PAST_THE_END]


def test_many_batches_are_walked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a batch was walked by itself")

    monkeypatch.setattr(record_walk, "_walk", never)
    data, starts, ends, positions = laid_out([[30, 200, 64]] * TOGETHER_MIN)
    found, found_ends = walked(data, starts, ends, [3] * TOGETHER_MIN)
    assert (found, found_ends) == (positions, ends)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (2, 1, 0)])
def test_parts_of_one_answer_are_decoded_in_the_order_of_the_ranges(order: tuple[int, ...]) -> None:
    """A broker may answer for partitions in another order than it was asked."""
    batches = [
        encode_batch([Record(b"k%d" % n, b"%d-%d" % (n, i) * 9) for i in range(4)])
        for n in range(3)
    ]
    frame = memoryview(bytearray(b"".join(batches)))
    at = [sum(map(len, batches[:number])) for number in range(4)]
    ranges = [FetchedRange(frame[at[n] : at[n + 1]], 0, 4, None) for n in order]
    (found,) = iter_decoded(ranges)
    found.values.validate(full=True)
    assert found.values.to_pylist() == [b"%d-%d" % (n, i) * 9 for n in order for i in range(4)]
    assert found.keys.to_pylist() == [b"k%d" % n for n in order for _ in range(4)]
