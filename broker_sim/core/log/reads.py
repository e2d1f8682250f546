"""Reading a range of a log: which bytes, and which aborted transactions lie in them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from broker_sim.core.effects import FileSlice, Storage
from broker_sim.core.log.indexes import TransactionIndex
from broker_sim.core.log.scan import scan_batches
from broker_sim.core.log.segment import Segment
from broker_sim.core.log.values import AbortedTransaction
from txnlog_kafka.wire.records import BatchHeader, CorruptBatch


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Range that a reader asks for. Offsets: start inclusive, end exclusive (HW or LSO)."""

    start_offset: int
    end_offset: int
    max_bytes: int
    at_least_one_batch: bool


def segments_from(segments: Sequence[Segment], start_offset: int) -> Sequence[Segment]:
    """The segment that holds the offset and all later ones."""
    first = bisect_right(segments, start_offset, key=lambda segment: segment.base_offset) - 1
    return segments[max(first, 0) :]


def collect_slices(
    segments: Sequence[Segment], wanted: ReadRange, storage: Storage
) -> tuple[tuple[FileSlice, ...], int]:
    """Whole batches from the first that holds the start, and the next offset after them.

    Raises CorruptBatch when nothing can be read at the start because the file is damaged; damage
    further on ends the read before it.
    """
    slices: list[FileSlice] = []
    next_offset = wanted.start_offset
    left_bytes = wanted.max_bytes
    try:
        for segment, start, part_end in _parts(segments, wanted, storage):
            limit = min(part_end, start + left_bytes)
            end, reached = segment.slice_end(start, limit, storage)
            if end == start and not slices and wanted.at_least_one_batch:
                limit = segment.batch_end(start, storage)
                end, reached = segment.slice_end(start, limit, storage)
            if end > start:
                slices.append(FileSlice(segment.path(), start, end - start))
                next_offset = reached
                left_bytes -= end - start
            if end < part_end:
                break
    except CorruptBatch:
        if not slices:
            raise
    return tuple(slices), next_offset


def collect_aborted(
    segments: Sequence[Segment],
    start_offset: int,
    end_offset: int,
    rebuild: Callable[[Segment], TransactionIndex],
) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions that overlap [start, end), in the order of their markers.

    The marker may lie segments behind the data, so the search goes on until an entry says that all
    below the end was decided. An index whose file is damaged is rebuilt by `rebuild`, which may
    raise CorruptBatch.
    """
    found: list[AbortedTransaction] = []
    for segment in segments_from(segments, start_offset):
        if segment.load_aborted(rebuild).collect(start_offset, end_offset, found):
            break
    return tuple(found)


def batches_from(
    segments: Sequence[Segment], start_offset: int, storage: Storage
) -> Iterator[tuple[BatchHeader, bytes]]:
    """Whole batches from the offset to the end, CRC checked. Raises CorruptBatch at damage."""
    for segment in segments_from(list(segments), start_offset):
        position = segment.find(max(start_offset, segment.base_offset), storage)
        end = segment.size_bytes
        for header, _, batch in scan_batches(storage, segment.path(), position, end):
            yield header, batch
        if segment.damaged:
            raise CorruptBatch(f"{segment.path()} is damaged after position {end}")


def _parts(
    segments: Sequence[Segment], wanted: ReadRange, storage: Storage
) -> Iterator[tuple[Segment, int, int]]:
    """Each segment with its readable positions, from the start to the end, in order."""
    for segment in segments_from(segments, wanted.start_offset):
        if segment.base_offset >= wanted.end_offset:
            return
        start = segment.find(max(wanted.start_offset, segment.base_offset), storage)
        end = segment.size_bytes
        if wanted.end_offset < segment.next_offset:
            end = segment.find(wanted.end_offset, storage)
        if start < end:
            yield segment, start, end
        elif segment.damaged and start == segment.size_bytes:
            raise CorruptBatch(f"{segment.path()} is damaged after position {start}")
        if segment.damaged:
            return
