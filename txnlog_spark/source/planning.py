"""Offsets of a micro-batch, and their division into tasks: pure functions of offsets."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.offsets import SourceOffset

OFFSETS_PER_TASK = 50_000
"""Offsets up to which small ranges share a task. A Python task costs about 40 ms of CPU, several
times less than reading 50,000 records of some hundred bytes; for large ones set minPartitions."""
OFFSET_END = 2**63
"""An offset after every offset of a log."""


class OffsetRange(NamedTuple):
    """Offsets of one partition for one task: start inclusive, end exclusive."""

    topic_partition: TopicPartition
    start_offset: int
    end_offset: int

    @property
    def offset_count(self) -> int:
        """Number of offsets; records can be fewer, as markers and compaction leave gaps."""
        return self.end_offset - self.start_offset

    def within(self, low: int, high: int) -> OffsetRange:
        """Return the part from `low` to `high` (exclusive), which may be empty."""
        start = max(self.start_offset, low)
        return OffsetRange(self.topic_partition, start, max(start, min(self.end_offset, high)))


def limit_offsets(
    start: SourceOffset, available: SourceOffset, offset_count_max: int
) -> dict[TopicPartition, int]:
    """Return an end within `offset_count_max` offsets, shared in proportion to the waiting offsets.

    The rest of rounding goes first to partitions without a share, to another one each time, so that
    all advance soon. A partition that is not in `start` keeps its available end.
    """
    waiting = {p: end - start[p] for p, end in sorted(available.items()) if end > start.get(p, end)}
    total = sum(waiting.values())
    if total <= offset_count_max:
        return dict(available)
    shares = {p: offset_count_max * count // total for p, count in waiting.items()}
    left = offset_count_max - sum(shares.values())
    turn = sum(start.values()) % len(shares)
    names = [*shares][turn:] + [*shares][:turn]
    for p in sorted(names, key=lambda p: shares[p] > 0)[:left]:
        shares[p] += 1
    return {p: start[p] + shares[p] if p in shares else end for p, end in available.items()}


def plan_ranges(start: SourceOffset, end: SourceOffset) -> list[OffsetRange]:
    """Return a range for each partition that has a start and offsets to read."""
    return [OffsetRange(p, start[p], at) for p, at in sorted(end.items()) if at > start.get(p, at)]


def plan_tasks(
    ranges: Iterable[OffsetRange],
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """Return the ranges of each task: few tasks for few records, as many as needed for many.

    Ranges of whole partitions share tasks of about OFFSETS_PER_TASK offsets; a larger one is not
    split, so its order is kept. Pieces of `split_ranges` have tasks of their own, in offset order.
    No task takes more than `max_records_per_partition`; enough offsets make `min_partitions` tasks.
    """
    whole = sorted(ranges)
    pieces = split_ranges(whole, min_partitions, max_records_per_partition)
    uncut = set(whole)
    tasks = [(piece,) for piece in pieces if piece not in uncut]
    rest, tasks_min = [piece for piece in pieces if piece in uncut], min_partitions or 1
    return sorted(tasks + _pack(rest, tasks_min - len(tasks), max_records_per_partition))


def _pack(
    ranges: list[OffsetRange], tasks_min: int, limit: int | None
) -> list[tuple[OffsetRange, ...]]:
    """Give each range to the least loaded task, the largest range first."""
    full = min(OFFSETS_PER_TASK, limit or OFFSETS_PER_TASK)
    small = [r.offset_count for r in ranges if r.offset_count < full]
    needed = len(ranges) - len(small) - (-sum(small) // full)
    count = min(len(ranges), max(needed, tasks_min))
    shares: list[list[OffsetRange]] = [[] for _ in range(count)]
    loads = [(0, index) for index in range(count)]
    for each in sorted(ranges, key=lambda r: -r.offset_count):
        load, index = loads[0]
        if limit is not None and load + each.offset_count > limit:
            heapq.heappush(loads, (each.offset_count, len(shares)))
            shares.append([each])
        else:
            heapq.heapreplace(loads, (load + each.offset_count, index))
            shares[index].append(each)
    return [tuple(sorted(share)) for share in shares]


def split_ranges(
    ranges: Iterable[OffsetRange],
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[OffsetRange]:
    """Split ranges so that none is over the maximum and, if offsets suffice, the minimum is met.

    If the maximum gives fewer than `min_partitions`, large ranges are split further, in proportion
    to their size (Spark's `KafkaOffsetRangeCalculator`). The pieces cover exactly the ranges.
    """
    pieces = [r for r in ranges if r.offset_count > 0]
    if max_records_per_partition is not None:
        counts = [-(-piece.offset_count // max_records_per_partition) for piece in pieces]
        pieces = _cut(pieces, counts)
    if min_partitions is not None and len(pieces) < min_partitions:
        counts = _piece_counts([piece.offset_count for piece in pieces], min_partitions)
        pieces = _cut(pieces, counts)
    return pieces


def _piece_counts(sizes: list[int], wanted: int) -> list[int]:
    """Count the pieces of each range: at least one, at most its size, `wanted` in all."""
    total = sum(sizes)
    missing = min(wanted, total) - len(sizes)
    counts = [1 + min(missing * size // total, size - 1) for size in sizes]
    by_piece = [(-sizes[i] / counts[i], i) for i in range(len(sizes))]
    heapq.heapify(by_piece)
    for _ in range(missing + len(sizes) - sum(counts)):
        _, largest = by_piece[0]
        counts[largest] += 1
        heapq.heapreplace(by_piece, (-sizes[largest] / counts[largest], largest))
    return counts


def _cut(ranges: Sequence[OffsetRange], counts: Sequence[int]) -> list[OffsetRange]:
    """Cut each range into so many pieces, whose sizes differ by at most one."""
    pieces: list[OffsetRange] = []
    for whole, count in zip(ranges, counts, strict=True):
        start, size = whole.start_offset, whole.offset_count
        bounds = [start + size * i // count for i in range(count + 1)]
        pieces += [OffsetRange(whole.topic_partition, *each) for each in pairwise(bounds)]
    return pieces


def plan_windows(
    tasks: Sequence[tuple[OffsetRange, ...]], partitions: Iterable[TopicPartition]
) -> list[tuple[OffsetRange, ...]]:
    """Return each task's windows, which together show every offset of the partitions once.

    A partition's first window begins with the log, and its last window has no end. The last task
    gets the partitions without offsets to read.
    """
    pieces = [piece for task in tasks for piece in task]
    starts = {p: start for p, start, _ in reversed(pieces)}
    ends = {p: end for p, _, end in pieces}
    idle = tuple(OffsetRange(p, 0, OFFSET_END) for p in partitions if p not in ends)
    *most, last = (
        tuple(
            OffsetRange(p, start * (start > starts[p]), end if end < ends[p] else OFFSET_END)
            for p, start, end in task
        )
        for task in tasks or [()]
    )
    return [*most, last + idle]


def within(
    windows: Iterable[OffsetRange], ranges: Iterable[OffsetRange]
) -> tuple[OffsetRange, ...]:
    """Return the parts that the windows show; a partition without a window is shown whole."""
    shown = {p: (low, high) for p, low, high in windows}
    parts = (each.within(*shown.get(each.topic_partition, (0, OFFSET_END))) for each in ranges)
    return tuple(part for part in parts if part.offset_count > 0)


def cap_at_committed(
    start: SourceOffset, available: SourceOffset, committed: SourceOffset
) -> dict[TopicPartition, int] | None:
    """Return the end of a batch that was committed but is missing from the checkpoint, or None.

    A group ahead of Spark's start shows such a batch. Planned with exactly the group's end, it is
    recognised and skipped. A partition unknown to the group stays where it starts. A partition
    unknown to the start was discovered by the lost batch, and read up to the group's offset.
    """
    known = {p: committed[p] for p in available if p in committed}
    if not any(position > start.get(p, -1) for p, position in known.items()):
        return None
    reached = {p: min(position, available[p]) for p, position in known.items()}
    return {p: max(start.get(p, 0), reached.get(p, 0)) for p in {**start, **reached}}
