"""Which offsets a micro-batch takes and how they are divided into tasks: pure decisions.

Everything here is a function of offsets. The facades (`stream.py`, `batch.py`) ask the brokers and
hand the answers in, so that each rule can be tested without one.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.offsets import SourceOffset

OFFSETS_PER_TASK = 50_000
"""Small ranges share a task up to here. A Spark task with Python workers costs about 40 ms of CPU,
whatever it reads; 50,000 records of some hundred bytes are read and written in a few times that, so
its own cost no longer matters. A query with large records asks for more tasks with
minPartitions."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition for one task: start inclusive, end exclusive."""

    topic_partition: TopicPartition
    start_offset: int
    end_offset: int

    @property
    def offset_count(self) -> int:
        """How many offsets; records can be fewer, markers and compaction leave gaps."""
        return self.end_offset - self.start_offset


def limit_offsets(
    start: SourceOffset, available: SourceOffset, offset_count_max: int
) -> dict[TopicPartition, int]:
    """An end that takes at most `offset_count_max` offsets, shared by how much each has waiting.

    Every partition with something waiting advances within a few calls: what rounding leaves over
    goes first to partitions that got nothing, beginning at another one each time. A partition that
    is not in `start` does not count and keeps its available end.
    """
    waiting = {p: available[p] - start[p] for p in available if p in start}
    waiting = {p: count for p, count in sorted(waiting.items()) if count > 0}
    total = sum(waiting.values())
    if total <= offset_count_max:
        return dict(available)
    shares = {p: offset_count_max * count // total for p, count in waiting.items()}
    left = offset_count_max - sum(shares.values())
    for partition in _by_need(shares, sum(start.values())):
        if left == 0:
            break
        shares[partition] += 1
        left -= 1
    return {p: start[p] + shares[p] if p in shares else end for p, end in available.items()}


def count_waiting(start: SourceOffset, available: SourceOffset) -> int:
    """How many offsets are there to be read; a partition that is new has all of its own waiting."""
    return sum(end - start.get(partition, 0) for partition, end in available.items())


def _by_need(shares: Mapping[TopicPartition, int], turn: int) -> list[TopicPartition]:
    """Partitions without a share first; among equals, rotated by `turn`."""
    names = list(shares)
    cut = turn % len(names)
    return sorted(names[cut:] + names[:cut], key=lambda partition: shares[partition] > 0)


def plan_ranges(start: SourceOffset, end: SourceOffset) -> list[OffsetRange]:
    """One range per partition that has offsets to read; a partition without a start is left out."""
    return [
        OffsetRange(partition, start[partition], end_offset)
        for partition, end_offset in sorted(end.items())
        if partition in start and end_offset > start[partition]
    ]


def plan_tasks(
    ranges: Iterable[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task: few tasks for few records, as many as needed for many.

    Ranges of whole partitions share tasks of about OFFSETS_PER_TASK offsets; one that is larger is
    not split, so its order is kept. What the options split (`split_ranges`) has tasks of its own,
    in the order of the offsets. No task takes more than `max_records_per_partition` in all, and
    there are at least `min_partitions` tasks, if there are so many offsets.
    """
    whole = sorted((r for r in ranges if r.offset_count > 0), key=lambda r: r.topic_partition)
    pieces = split_ranges(
        whole,
        min_partitions=min_partitions,
        max_records_per_partition=max_records_per_partition,
    )
    uncut = set(whole)
    tasks = [(piece,) for piece in pieces if piece not in uncut]
    shared = _pack(
        [piece for piece in pieces if piece in uncut],
        tasks_min=(min_partitions or 1) - len(tasks),
        limit=max_records_per_partition,
    )
    return sorted([*tasks, *shared], key=_by_place)


def _pack(
    ranges: list[OffsetRange], *, tasks_min: int, limit: int | None
) -> list[tuple[OffsetRange, ...]]:
    """Shares of about equal size: the largest range first, each to the least loaded task."""
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
    return [tuple(sorted(share, key=lambda r: r.topic_partition)) for share in shares]


def _by_place(task: tuple[OffsetRange, ...]) -> tuple[TopicPartition, int]:
    return task[0].topic_partition, task[0].start_offset


def split_ranges(
    ranges: Iterable[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[OffsetRange]:
    """Split ranges so that none is over the maximum and, if offsets suffice, the minimum is met.

    First the maximum splits; if that gives fewer than `min_partitions`, large ranges are split
    further, in proportion to their size (Spark's `KafkaOffsetRangeCalculator`). The pieces of one
    partition are in order and cover exactly its range.
    """
    pieces = [r for r in ranges if r.offset_count > 0]
    if max_records_per_partition is not None:
        pieces = [
            piece
            for r in pieces
            for piece in _cut(r, -(-r.offset_count // max_records_per_partition))
        ]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    counts = _piece_counts([piece.offset_count for piece in pieces], min_partitions)
    return [
        piece
        for r, count in zip(pieces, counts, strict=True)
        for piece in _cut(r, count)
    ]  # fmt: skip


def _piece_counts(sizes: list[int], wanted: int) -> list[int]:
    """How many pieces each range becomes: at least one, at most its size, `wanted` in all."""
    counts = [1] * len(sizes)
    missing = min(wanted, sum(sizes)) - len(sizes)
    if missing <= 0:
        return counts
    total = sum(sizes)
    for index, size in enumerate(sizes):
        counts[index] += min(missing * size // total, size - 1)
    missing = min(wanted, total) - sum(counts)
    by_piece = [(-sizes[i] / counts[i], i) for i in range(len(sizes))]
    heapq.heapify(by_piece)
    for _ in range(missing):
        _, largest = by_piece[0]
        counts[largest] += 1
        heapq.heapreplace(by_piece, (-sizes[largest] / counts[largest], largest))
    return counts


def _cut(whole: OffsetRange, piece_count: int) -> list[OffsetRange]:
    """`piece_count` ranges of sizes that differ by at most one."""
    bounds = [
        whole.start_offset + whole.offset_count * i // piece_count for i in range(piece_count + 1)
    ]
    return [
        replace(whole, start_offset=low, end_offset=high)
        for low, high in itertools.pairwise(bounds)
        if high > low
    ]


def cap_at_committed(
    start: SourceOffset, available: SourceOffset, committed: SourceOffset
) -> dict[TopicPartition, int] | None:
    """The end of a batch that was committed but is missing from the checkpoint, or None.

    The sink commits a batch's end offsets to the consumer group in the batch's own transaction. If
    the group is ahead of where Spark starts, `offsets/N` and `commits/N` were lost after batch N
    was committed: planned again with exactly that end, it is recognised and skipped. So the end is
    whole: no limit may split it. A partition that the group does not know stays where it starts.
    One that the group knows and the start does not was discovered by the lost batch, and read up to
    there.
    """
    known = {p: committed[p] for p in available if p in committed}
    if not any(position > start.get(p, -1) for p, position in known.items()):
        return None
    reached = {p: min(position, available[p]) for p, position in known.items()}
    return {p: max(start.get(p, 0), reached.get(p, 0)) for p in {**start, **reached}}
