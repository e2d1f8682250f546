"""Planning: limits are kept, nothing starves, cuts cover exactly, loss is what the bounds show."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import DataLoss, NoCommittedOffsets, OptionError
from txnlog_spark.offsets import EARLIEST_OFFSET, LATEST_OFFSET
from txnlog_spark.source.data_loss import (
    clip_to_log,
    find_deleted,
    find_late_additions,
    find_rewound,
)
from txnlog_spark.source.planning import (
    OFFSETS_PER_TASK,
    OffsetRange,
    cap_at_committed,
    limit_offsets,
    plan_ranges,
    plan_tasks,
    plan_windows,
    split_ranges,
    within,
)
from txnlog_spark.source.positions import (
    Bounds,
    check_in_log,
    check_order,
    explain_group_start,
    is_repeatable,
    named_ends,
    resolve_positions,
    timestamps_wanted,
)
from txnlog_spark.source.selection import PositionRequest
from txnlog_spark.source.settings import read_source_settings

P0, P1, P2 = (TopicPartition("t", n) for n in range(3))
STARTS = st.dictionaries(st.sampled_from([P0, P1, P2]), st.integers(0, 1000), min_size=1)
COUNTS = st.dictionaries(st.sampled_from([P0, P1, P2]), st.integers(0, 500))


@given(STARTS, COUNTS, st.integers(1, 800))
def test_a_limited_batch_never_takes_more_and_always_advances(
    start: dict[TopicPartition, int], counts: dict[TopicPartition, int], limit: int
) -> None:
    available = {p: start[p] + counts.get(p, 0) for p in start}
    end = limit_offsets(start, available, limit)
    taken = sum(end[p] - start[p] for p in start)
    assert taken == min(limit, sum(available[p] - start[p] for p in start))
    assert all(start[p] <= end[p] <= available[p] for p in start)


def test_a_small_partition_is_not_starved_by_a_busy_one() -> None:
    start = {P0: 0, P1: 0}
    for _ in range(4):
        available = {P0: start[P0] + 1000, P1: 3}
        start = limit_offsets(start, available, 1)
    assert start[P1] > 0


def test_a_partition_without_a_start_is_not_limited_away() -> None:
    assert limit_offsets({P0: 0}, {P0: 100, P1: 7}, 10) == {P0: 10, P1: 7}


def test_ranges_leave_out_what_is_empty_and_what_has_no_start() -> None:
    ranges = plan_ranges({P0: 5, P1: 7}, {P0: 9, P1: 7, P2: 4})
    assert ranges == [OffsetRange(P0, 5, 9)]


RANGES = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 400)), min_size=1, max_size=5).map(
    lambda pairs: [OffsetRange(TopicPartition("t", i), s, s + n) for i, (s, n) in enumerate(pairs)]
)


@given(RANGES, st.none() | st.integers(1, 40), st.none() | st.integers(1, 100))
def test_a_split_covers_exactly_in_order_and_keeps_its_bounds(
    ranges: list[OffsetRange], min_partitions: int | None, max_records: int | None
) -> None:
    pieces = split_ranges(
        ranges, min_partitions=min_partitions, max_records_per_partition=max_records
    )
    for whole in ranges:
        mine = [p for p in pieces if p.topic_partition == whole.topic_partition]
        offsets = [o for p in mine for o in range(p.start_offset, p.end_offset)]
        assert offsets == list(range(whole.start_offset, whole.end_offset))
    assert all(piece.offset_count > 0 for piece in pieces)
    if max_records is not None:
        assert all(piece.offset_count <= max_records for piece in pieces)
    if min_partitions is not None:
        total = sum(r.offset_count for r in ranges)
        assert len(pieces) >= min(min_partitions, total)


MANY = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 120_000)), max_size=30).map(
    lambda pairs: [OffsetRange(TopicPartition("t", i), s, s + n) for i, (s, n) in enumerate(pairs)]
)


@given(MANY, st.none() | st.integers(1, 60), st.none() | st.integers(5_000, 200_000))
def test_tasks_cover_exactly_keep_the_order_and_the_bounds(
    ranges: list[OffsetRange], min_partitions: int | None, max_records: int | None
) -> None:
    limits = {"min_partitions": min_partitions, "max_records_per_partition": max_records}
    tasks = plan_tasks(ranges, **limits)
    assert tasks == plan_tasks(reversed(ranges), **limits)
    pieces = [piece for task in tasks for piece in task]
    wanted = [r for r in ranges if r.offset_count]
    for whole in wanted:
        mine = [p for p in pieces if p.topic_partition == whole.topic_partition]
        bounds = [p.start_offset for p in mine] + [whole.end_offset]
        assert [(p.start_offset, p.end_offset) for p in mine] == list(pairwise(bounds))
        assert bounds[0] == whole.start_offset
    assert len(pieces) >= len(wanted)
    assert all(task for task in tasks)
    for task in tasks:
        assert list(task) == sorted(task, key=lambda r: r.topic_partition)
        if len(task) > 1:
            assert set(task) <= set(ranges)
            assert sum(r.offset_count for r in task) <= min(
                max_records or 2 * OFFSETS_PER_TASK, 2 * OFFSETS_PER_TASK
            )
        assert max_records is None or sum(r.offset_count for r in task) <= max_records
    total = sum(r.offset_count for r in ranges)
    assert len(tasks) >= min(min_partitions or 0, total)
    if min_partitions is None and max_records is None:
        assert len(tasks) <= 1 + total // OFFSETS_PER_TASK + sum(
            r.offset_count >= OFFSETS_PER_TASK for r in ranges
        )


def ranges_of(*counts: int) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition("t", i), 0, n) for i, n in enumerate(counts)]


@pytest.mark.parametrize(
    ("counts", "options", "loads"),
    [
        ([1] * 1000, {}, [1000]),
        ([8_000] * 6, {}, [48_000]),
        ([10_000_000, *[10] * 99], {}, [10_000_000, 990]),
        ([30_000] * 4, {}, [60_000, 30_000, 30_000]),
        ([100_000] * 3, {}, [100_000] * 3),
        ([10] * 8, {"min_partitions": 4}, [20] * 4),
        ([10] * 8, {"min_partitions": 16}, [5] * 16),
        ([1], {"min_partitions": 16}, [1]),
        ([10] * 8, {"max_records_per_partition": 25}, [20] * 4),
        ([10] * 8, {"max_records_per_partition": 5}, [5] * 16),
        ([10, 10, 30], {"max_records_per_partition": 20}, [20, 15, 15]),
        ([], {"min_partitions": 3}, []),
    ],
)
def test_small_ranges_share_tasks(
    counts: list[int], options: dict[str, int], loads: list[int]
) -> None:
    tasks = plan_tasks(ranges_of(*counts), **options)
    assert sorted((sum(r.offset_count for r in t) for t in tasks), reverse=True) == loads


def test_a_committed_batch_that_the_checkpoint_lost_is_planned_with_its_own_end() -> None:
    start, available = {P0: 10, P1: 20}, {P0: 90, P1: 90}
    assert cap_at_committed(start, available, {P0: 50, P1: 20}) == {P0: 50, P1: 20}
    assert cap_at_committed(start, available, {P0: 50}) == {P0: 50, P1: 20}


def test_a_lost_batch_that_discovered_a_partition_is_planned_as_it_was_committed() -> None:
    committed = {P0: 10, P1: 5}
    assert cap_at_committed({P0: 0}, {P0: 20, P1: 7}, committed) == committed
    assert cap_at_committed({P0: 10}, {P0: 20, P1: 7}, committed) == committed
    assert cap_at_committed({P0: 10}, {P0: 20, P1: 7}, {P0: 10}) is None


@pytest.mark.parametrize("committed", [{}, {P0: 10, P1: 20}, {P0: 3}, {P2: 99}])
def test_a_group_that_is_not_ahead_caps_nothing(committed: dict[TopicPartition, int]) -> None:
    assert cap_at_committed({P0: 10, P1: 20}, {P0: 90, P1: 90}, committed) is None


def test_loss_is_found_from_bounds_alone() -> None:
    assert [str(loss) for loss in find_deleted({P0: 4, P1: 5}, {P0: 9}, lambda _: True)] == [
        "t-1: the partition is gone, it was to be read from offset 5"
    ]
    assert [str(loss) for loss in find_deleted({P0: 4, P1: 5}, {P0: 9}, lambda p: p != P1)] == [
        "t-1: the query's options do not select it any more, it was read up to offset 5"
    ]
    assert [loss.topic_partition for loss in find_late_additions({P1: 0, P2: 3})] == [P2]
    assert [loss.topic_partition for loss in find_rewound({P0: 9, P1: 9}, {P0: 8, P1: 9})] == [P0]


@pytest.mark.parametrize(
    ("low", "high", "kept"),
    [(0, 100, (10, 20)), (15, 100, (15, 20)), (0, 12, (10, 12)), (50, 90, (50, 50))],
)
def test_a_range_is_clipped_to_the_log(low: int, high: int, kept: tuple[int, int]) -> None:
    clipped, loss = clip_to_log(OffsetRange(P0, 10, 20), low, high)
    assert clipped.offset_count == kept[1] - kept[0]
    if clipped.offset_count:
        assert (clipped.start_offset, clipped.end_offset) == kept
    assert (loss is None) == (kept == (10, 20))


BOUNDS = Bounds(
    earliest={P0: 5, P1: 0}, latest={P0: 50, P1: 60}, by_timestamp={P0: 7, P1: -1},
    committed={P0: 33},
)  # fmt: skip
BOTH = (P0, P1)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (PositionRequest(word="earliest"), {P0: 5, P1: 0}),
        (PositionRequest(word="latest"), {P0: 50, P1: 60}),
        (PositionRequest(word="committed"), {P0: 33, P1: 0}),
        (PositionRequest(offsets={P0: EARLIEST_OFFSET, P1: LATEST_OFFSET}), {P0: 5, P1: 60}),
        (PositionRequest(offsets={P0: 9, P1: 8}), {P0: 9, P1: 8}),
        (PositionRequest(timestamps_ms=1, latest_if_none=True), {P0: 7, P1: 60}),
    ],
)
def test_positions_are_what_was_asked_for(
    request_: PositionRequest, expected: dict[TopicPartition, int]
) -> None:
    assert resolve_positions(request_, BOTH, BOUNDS) == expected


def test_named_offsets_must_name_exactly_what_is_read() -> None:
    request = PositionRequest(offsets={P0: 1, P2: 1})
    with pytest.raises(OptionError, match="name also t-1; leave out t-2"):
        resolve_positions(request, BOTH, BOUNDS)
    with pytest.raises(OptionError, match="startingOffsetsByTimestamp"):
        timestamps_wanted(PositionRequest(timestamps_ms={P0: 1}), BOTH)


def test_a_timestamp_after_the_last_record_is_an_error_unless_latest_is_meant() -> None:
    with pytest.raises(OptionError, match="startingOffsetsByTimestampStrategy=latest"):
        resolve_positions(PositionRequest(timestamps_ms=1), BOTH, BOUNDS)


def test_a_position_outside_the_log_is_loss_or_is_moved_into_it() -> None:
    with pytest.raises(DataLoss, match="offset 3 of t-0"):
        check_in_log({P0: 3}, BOUNDS, fail_on_data_loss=True, option="startingOffsets")
    moved = check_in_log({P0: 3, P1: 99}, BOUNDS, fail_on_data_loss=False, option="x")
    assert moved == {P0: 5, P1: 60}


@pytest.mark.parametrize(
    ("start", "end", "is_refused"),
    [
        ({"startingOffsets": 5}, {"endingOffsets": 3}, True),
        ({"startingOffsets": 5}, {"endingOffsets": 5}, False),
        ({"startingOffsets": 5}, {"endingOffsets": -1}, False),
        ({"startingOffsets": -2}, {"endingOffsets": 0}, False),
        ({"startingOffsetsByTimestamp": 5}, {"endingOffsetsByTimestamp": 3}, True),
        ({"startingOffsetsByTimestamp": 5}, {"endingOffsets": 3}, False),
        ({"startingOffsets": 5}, {"endingOffsetsByTimestamp": 3}, False),
        ({"startingOffsets": 5, "startingOffsetsByTimestamp": 2},
         {"endingOffsets": 3, "endingOffsetsByTimestamp": 2}, False),
    ],
)  # fmt: skip
def test_a_range_that_is_reversed_in_its_options_is_refused_as_spark_does(
    start: dict[str, int], end: dict[str, int], is_refused: bool
) -> None:
    text = {name: json.dumps({"t": {"0": at}}) for name, at in (start | end).items()}
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", **text}
    if not is_refused:
        read_source_settings(options, streaming=False)
        return
    with pytest.raises(OptionError, match="5: at most 3, where the read of t-0 ends") as refused:
        read_source_settings(options, streaming=False)
    assert refused.value.name == next(iter(start))


def test_a_range_that_is_reversed_in_the_log_is_refused_but_before_the_latest_end() -> None:
    named = PositionRequest(offsets={P0: 3, P1: LATEST_OFFSET})
    assert named_ends(named, {P0: 3, P1: 9}) == {P0: 3}
    assert named_ends(PositionRequest(word="latest"), {P0: 3}) == {}
    assert named_ends(PositionRequest(timestamps_ms=5), {P0: 3}) == {P0: 3}
    check_order({P0: 3, P1: 10}, {P0: 3}, "startingOffsets")
    with pytest.raises(OptionError, match="startingOffsets=4: at most 3"):
        check_order({P0: 4}, {P0: 3}, "startingOffsets")


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_position_between_the_stable_offset_and_the_high_watermark_is_kept(
    fail_on_data_loss: bool,
) -> None:
    bounds = Bounds(earliest={P0: 0}, latest={P0: 100}, high_watermark={P0: 150})
    checked = [
        check_in_log({P0: p}, bounds, fail_on_data_loss=fail_on_data_loss, option="startingOffsets")
        for p in (99, 120, 150)
    ]
    assert checked == [{P0: 99}, {P0: 120}, {P0: 150}]


@pytest.mark.parametrize(
    ("request_", "repeatable"),
    [
        (PositionRequest(word="latest"), False),
        (PositionRequest(word="earliest"), True),
        (PositionRequest(word="committed"), False),
        (PositionRequest(word="committedOrEarliest"), False),
        (PositionRequest(word="committedOrLatest"), False),
        (PositionRequest(word="committed", timestamps_ms=1), True),
        (PositionRequest(word="committedOrEarliest", timestamps_ms=1), True),
        (PositionRequest(offsets={P0: 1}), True),
        (PositionRequest(offsets={P0: LATEST_OFFSET}), False),
        (PositionRequest(word="latest", timestamps_ms=1), True),
        (PositionRequest(word="latest", timestamps_ms=1, latest_if_none=True), False),
    ],
)
def test_only_a_moving_start_is_not_repeatable(request_: PositionRequest, repeatable: bool) -> None:
    assert is_repeatable(request_) is repeatable


@pytest.mark.parametrize(
    ("word", "without"),
    [("committedOrEarliest", {P0: 5, P1: 0}), ("committedOrLatest", {P0: 50, P1: 60})],
)
def test_a_group_without_any_position_starts_where_the_word_says(
    word: str, without: dict[TopicPartition, int]
) -> None:
    request = PositionRequest(word=word)
    assert resolve_positions(request, BOTH, BOUNDS) == {P0: 33, P1: 0}
    for committed in ({}, {P2: 9}):
        assert resolve_positions(request, BOTH, replace(BOUNDS, committed=committed)) == without


def test_what_is_said_of_a_start_from_a_group() -> None:
    def said(word: str, committed: dict[TopicPartition, int]) -> str:
        return explain_group_start(PositionRequest(word=word), "g", BOTH, committed)

    partly = "starts from them (t-0 at 33), the earliest of 1 partitions that it has none in"
    assert partly in said("committed", {P0: 33})
    assert "starts from them (t-0 at 33, t-1 at 4)" in said("committedOrLatest", {P0: 33, P1: 4})
    assert "no committed offset, the query starts from the latest" in said("committedOrLatest", {})
    assert "starts from the earliest" in said("committedOrEarliest", {})


@pytest.mark.parametrize(
    ("names", "read"), [(BOTH, "in any of the 2 partitions that are read (t)"), ((), "no topic")]
)
def test_a_start_from_a_group_without_any_position_is_refused_with_the_ways_on(
    names: tuple[TopicPartition, ...], read: str
) -> None:
    with pytest.raises(NoCommittedOffsets) as caught:
        explain_group_start(PositionRequest(word="committed"), "gruop", names, {})
    text = str(caught.value)
    for part in ("'gruop'", read, "misspelt", "offsets.retention.minutes", "compare the output"):
        assert part in text
    assert "committedOrEarliest or committedOrLatest" in text


# ------------------------------------------------------------------ windows of a batch read


STRETCHES = st.dictionaries(
    st.sampled_from([P0, P1, P2]), st.tuples(st.integers(0, 90), st.integers(0, 90)).map(sorted)
)


@given(STRETCHES, STRETCHES, st.none() | st.integers(1, 9), st.none() | st.integers(1, 20))
def test_the_windows_of_a_plan_show_each_offset_that_is_there_later_once(
    then: dict, now: dict, min_partitions: int | None, limit: int | None
) -> None:
    planned = [OffsetRange(p, *each) for p, each in then.items() if each[0] < each[1]]
    tasks = plan_tasks(planned, min_partitions=min_partitions, max_records_per_partition=limit)
    windows = plan_windows(tasks, then)
    assert len(windows) == max(1, len(tasks))
    ranges = [OffsetRange(p, *now[p]) for p in now if p in then]
    shown = [part for each in windows for part in within(each, ranges) if part[0] in
             {p for p, _, _ in each}]  # fmt: skip
    offsets = [(p, offset) for p, start, end in shown for offset in range(start, end)]
    assert sorted(offsets) == sorted((p, o) for p, start, end in ranges for o in range(start, end))


def test_what_is_in_no_window_is_shown_whole_and_what_is_outside_of_its_own_is_not() -> None:
    windows = [OffsetRange(P0, 5, 10)]
    ranges = [OffsetRange(P0, 0, 20), OffsetRange(P1, 3, 4)]
    assert within(windows, ranges) == (OffsetRange(P0, 5, 10), OffsetRange(P1, 3, 4))
    assert within(windows, [OffsetRange(P0, 0, 5)]) == ()


def test_a_request_is_narrowed_only_where_each_partition_has_a_place_of_its_own() -> None:
    named = PositionRequest(offsets={P0: 3, P1: LATEST_OFFSET}, timestamps_ms={P0: 7})
    assert named.narrowed({P1}) == PositionRequest(offsets={P1: LATEST_OFFSET}, timestamps_ms={})
    for same in (PositionRequest(word="latest"), PositionRequest(timestamps_ms=5)):
        assert same.narrowed({P1}) == same
