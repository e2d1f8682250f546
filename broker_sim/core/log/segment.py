"""Segment of a log: a log file named by its base offset, and its indexes.

How a position is found: a dense index in memory holds every batch that was appended or scanned
since start (end position, last offset, max timestamp). So bytes that were just appended need no
file access. Before `dense_start` lies the part that was known flushed at start and was not read:
the sparse offset index names a batch there to walk from. The index file is read at the first such
lookup. If its content has changed, both sparse indexes are rebuilt from the log, and the next
operation that may write stores them.

A segment emits its own storage operations and never reads bytes that are not yet on disk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

from broker_sim.core.effects import Append, Delete, Effects, Storage, Truncate
from broker_sim.core.log.continuity import followed
from broker_sim.core.log.indexes import (
    CorruptIndex,
    IndexBytes,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
)
from broker_sim.core.log.scan import scan_batches, scan_headers
from broker_sim.core.log.segment_states import SegmentState
from broker_sim.core.log.values import AbortedTransaction
from txnlog_kafka.wire.records import NO_TIMESTAMP, BatchHeader, CorruptBatch

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


class Segment:
    """Batches from `base_offset` on, up to `next_offset` (exclusive)."""

    def __init__(self, directory: str, base_offset: int, index_interval_bytes: int) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.stem = f"{directory}/{base_offset:020d}"
        """Path that the names of the segment's files begin with."""
        self.next_offset = base_offset
        self.size_bytes = 0
        self.offset_index = OffsetIndex(base_offset)
        self.time_index = TimeIndex(base_offset)
        self.transaction_index = TransactionIndex()
        self.first_timestamp: int | None = None
        """Max timestamp of the first batch: the age of the segment counts from it."""
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        """The last offset of the first batch with the highest timestamp."""
        self.damaged = False
        """The file holds more after `size_bytes` that is not a batch, and later segments exist."""
        self.name_suffix = ""
        """Ends the names of its files while it is not in place yet (see `swap`)."""
        self._unsaved: dict[str, IndexBytes] = {}
        """Indexes that were rebuilt in memory, while the file is still the damaged one."""
        self._index_interval_bytes = index_interval_bytes
        self._bytes_since_entry = 0
        self._dense_start = 0
        self._dense_start_offset = base_offset
        self._in_order = (-1, -1)
        """Start of the first and of the last batch of a run whose offsets were seen to rise."""
        self._ends = array("q")
        self._last_offsets = array("q")
        self._timestamps = array("q")

    def path(self, suffix: str = LOG_SUFFIX) -> str:
        """A file of this segment, relative to the data directory."""
        return f"{self.stem}{suffix}{self.name_suffix}"

    def paths(self) -> tuple[str, ...]:
        """Return the paths of all files."""
        return tuple(self.path(suffix) for suffix in self.suffixes())

    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of all files; the transaction index exists only with an entry in it."""
        return SUFFIXES if self.transaction_index.count else SUFFIXES[:-1]

    # ----------------------------------------------------------------------- writing

    def create_files(self, effects: Effects) -> None:
        """Empty files, as Kafka has them from the beginning."""
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            effects.storage.append(Append(self.path(suffix), 0, b""))

    def append(self, headers: Sequence[BatchHeader], data: bytes, effects: Effects) -> None:
        """`data` is the batches of `headers` one after another, offsets assigned."""
        self.save_indexes(effects)
        effects.storage.append(Append(self.path(), self.size_bytes, data))
        index_at, time_index_at = self.offset_index.size_bytes, self.time_index.size_bytes
        index_bytes, time_index_bytes = b"", b""
        for header in headers:
            index_entry, time_entry = self.index_batch(header)
            index_bytes += index_entry
            time_index_bytes += time_entry
        if index_bytes:
            effects.storage.append(Append(self.path(INDEX_SUFFIX), index_at, index_bytes))
        if time_index_bytes:
            path = self.path(TIME_INDEX_SUFFIX)
            effects.storage.append(Append(path, time_index_at, time_index_bytes))

    def index_batch(self, header: BatchHeader) -> tuple[bytes, bytes]:
        """The next batch lies at the end; what to add to the offset and the time index."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.last_offset
        if self.first_timestamp is None:
            self.first_timestamp = header.max_timestamp
        index_entry, time_entry = b"", b""
        if self._bytes_since_entry > self._index_interval_bytes:
            index_entry = self.offset_index.append(header.last_offset, self.size_bytes)
            time_entry = self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.size_bytes
        self.size_bytes += header.size_bytes
        self.next_offset = header.next_offset
        self._ends.append(self.size_bytes)
        self._last_offsets.append(header.last_offset)
        self._timestamps.append(header.max_timestamp)
        return index_entry, time_entry

    def append_aborted(self, entry: AbortedTransaction, effects: Effects) -> None:
        """An ABORT marker in this segment has ended a transaction with data."""
        self.save_indexes(effects)
        position = self.transaction_index.size_bytes
        data = self.transaction_index.append(entry)
        effects.storage.append(Append(self.path(TRANSACTION_INDEX_SUFFIX), position, data))

    def seal(self, effects: Effects) -> None:
        """No more appends: the time index gets the segment's highest timestamp (Kafka does so)."""
        self.save_indexes(effects)
        position = self.time_index.size_bytes
        data = self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
        if data:
            effects.storage.append(Append(self.path(TIME_INDEX_SUFFIX), position, data))

    def truncate(self, position: int, next_offset: int, highest: tuple[int, int]) -> None:
        """Keep the batches before `position`, which end at `next_offset`. All indexes are loaded.

        `highest` is what `max_timestamp_below` says.
        """
        self.max_timestamp, self.max_timestamp_offset = highest
        if position == 0:
            self.first_timestamp = None
        self.offset_index.truncate_to(position)
        self.time_index.truncate_to(next_offset)
        self.transaction_index.truncate_to(next_offset)
        self._bytes_since_entry = position - self.offset_index.last_position
        kept = bisect_right(self._ends, position)
        del self._ends[kept:], self._last_offsets[kept:], self._timestamps[kept:]
        if position < self._dense_start:
            self._dense_start, self._dense_start_offset = position, next_offset
        self.size_bytes, self.next_offset = position, next_offset
        self.damaged = False

    def store_truncated(self, effects: Effects) -> None:
        """Truncate the files to what is left of them in memory, the log file first."""
        effects.storage.append(Truncate(self.path(), self.size_bytes))
        for suffix, index in self.indexes():
            if suffix == TRANSACTION_INDEX_SUFFIX and not index.count:
                effects.storage.append(Delete(self.path(suffix)))
                self._unsaved.pop(suffix, None)
            elif suffix not in self._unsaved:
                effects.storage.append(Truncate(self.path(suffix), index.size_bytes))
        self.save_indexes(effects)

    def max_timestamp_below(
        self, position: int, next_offset: int, storage: Storage
    ) -> tuple[int, int]:
        """The highest timestamp before the position, and the last offset of its first batch.

        Raises CorruptBatch when the file is damaged where it must be read.
        """
        if position and self.max_timestamp_offset < next_offset:
            return self.max_timestamp, self.max_timestamp_offset
        highest = self.time_index.highest(self.time_index.count_below(next_offset))
        start = self.find(highest[1] + 1, storage) if highest else 0
        highest = highest or (NO_TIMESTAMP, self.base_offset)
        for header, _ in scan_headers(storage, self.path(), start, position):
            if header.max_timestamp > highest[0]:
                highest = header.max_timestamp, header.last_offset
        return highest

    def load_indexes(
        self, storage: Storage, rebuild: Callable[[Segment], TransactionIndex]
    ) -> None:
        """Read all three indexes, or rebuild them. Raises CorruptBatch where that fails."""
        self._load_hints(storage)
        self.load_aborted(rebuild)

    @property
    def unsaved(self) -> frozenset[str]:
        """Suffixes of the index files that were found damaged and are not yet written again."""
        return frozenset(self._unsaved)

    def save_indexes(self, effects: Effects) -> bool:
        """Write again the index files that were found damaged; False when there are none."""
        if not self._unsaved:
            return False
        for suffix, index in self._unsaved.items():
            effects.storage.append(Truncate(self.path(suffix), 0))
            effects.storage.append(Append(self.path(suffix), 0, index.encode()))
        self._unsaved.clear()
        return True

    # ----------------------------------------------------------------------- loading

    def indexes(self) -> tuple[tuple[str, IndexBytes], ...]:
        """Each index with the suffix of its file."""
        return (
            (INDEX_SUFFIX, self.offset_index),
            (TIME_INDEX_SUFFIX, self.time_index),
            (TRANSACTION_INDEX_SUFFIX, self.transaction_index),
        )

    def restore(self, state: SegmentState, storage: Storage) -> None:
        """Take over the recorded state; no file is read now, and the dense index begins behind."""
        self.size_bytes = self._dense_start = state.log_bytes
        self.next_offset = self._dense_start_offset = state.next_offset
        self.first_timestamp = state.first_timestamp if state.log_bytes else None
        self.max_timestamp = state.max_timestamp
        self.max_timestamp_offset = state.max_timestamp_offset
        self._bytes_since_entry = state.log_bytes - state.index_last_position

        def reader(suffix: str) -> Callable[[int], bytes]:
            return lambda size_bytes: storage.read(self.path(suffix), 0, size_bytes)

        index, times, aborted = self.offset_index, self.time_index, self.transaction_index
        index.restore(state.index_count, state.index_crc, reader(INDEX_SUFFIX))
        index.last_position = state.index_last_position
        times.restore(state.time_count, state.time_crc, reader(TIME_INDEX_SUFFIX))
        if state.time_count:
            times.last = (state.time_last_timestamp, state.time_last_offset)
        aborted.restore(state.aborted_count, state.aborted_crc, reader(TRANSACTION_INDEX_SUFFIX))

    def state(self) -> SegmentState:
        """Return the present values that `restore` needs."""
        index, times, aborted = self.offset_index, self.time_index, self.transaction_index
        time_last_timestamp, time_last_offset = times.last or (NO_TIMESTAMP, self.base_offset)
        return SegmentState(
            base_offset=self.base_offset,
            next_offset=self.next_offset,
            log_bytes=self.size_bytes,
            first_timestamp=NO_TIMESTAMP if self.first_timestamp is None else self.first_timestamp,
            max_timestamp=self.max_timestamp,
            max_timestamp_offset=self.max_timestamp_offset,
            index_count=index.count,
            index_crc=index.crc,
            index_last_position=index.last_position,
            time_count=times.count,
            time_crc=times.crc,
            time_last_timestamp=time_last_timestamp,
            time_last_offset=time_last_offset,
            aborted_count=aborted.count,
            aborted_crc=aborted.crc,
            damaged=int(self.damaged),
        )

    @property
    def known_flushed_bytes(self) -> int:
        """Bytes of the log file that were known flushed at start, and were not read."""
        return self._dense_start

    def load_aborted(self, rebuild: Callable[[Segment], TransactionIndex]) -> TransactionIndex:
        """The transaction index; `rebuild` gives what the file should have held at start."""
        index = self.transaction_index
        try:
            index.load()
        except CorruptIndex:
            index.rebuilt(rebuild(self))
            self._unsaved[TRANSACTION_INDEX_SUFFIX] = index
        return index

    def _load_hints(self, storage: Storage) -> None:
        """Read the sparse indexes, or rebuild them. Raises CorruptBatch where that fails."""
        try:
            self.offset_index.load()
            self.time_index.load()
        except CorruptIndex:
            fresh = Segment(self.directory, self.base_offset, self._index_interval_bytes)
            for header, _ in self._walk_headers(0, storage):
                fresh.index_batch(header)
            if self.time_index.last is not None and not self.time_index.tail():
                fresh.time_index.maybe_append(*self.time_index.last)
            if not self.offset_index.is_loaded:
                self.offset_index.rebuilt(fresh.offset_index)
                self._unsaved[INDEX_SUFFIX] = self.offset_index
            self.time_index.rebuilt(fresh.time_index)
            self._unsaved[TIME_INDEX_SUFFIX] = self.time_index

    # ----------------------------------------------------------------------- reading

    def find(self, wanted_offset: int, storage: Storage) -> int:
        """Return the position of the first batch with a last offset at or above `wanted_offset`.

        Returns `size_bytes` when there is no such batch. Raises CorruptBatch when the file is
        damaged.
        """
        if wanted_offset < self._dense_start_offset:
            return self._find_sparse(wanted_offset, storage)
        at = bisect_left(self._last_offsets, wanted_offset)
        if at == len(self._ends):
            return self.size_bytes
        return self._ends[at - 1] if at else self._dense_start

    def slice_end(self, start: int, limit: int, storage: Storage) -> tuple[int, int]:
        """The last batch end in (start, limit] and the next offset there; `start` if none.

        `start` is a batch's position. The next offset is meaningless when there is none.
        """
        at = bisect_right(self._ends, limit) - 1
        if at >= 0 and self._ends[at] > start:
            return self._ends[at], self._last_offsets[at] + 1
        if start >= self._dense_start:
            return start, self.base_offset
        return self._slice_end_sparse(start, min(limit, self._dense_start), storage)

    def batch_end(self, start: int, storage: Storage) -> int:
        """Return the end of the batch that begins at position `start`."""
        if start >= self._dense_start:
            return self._ends[bisect_right(self._ends, start)]
        for header, position in self._walk_headers(start, storage):
            return position + header.size_bytes
        return start

    def batch_at(self, position: int) -> tuple[int, int]:
        """(max timestamp, base offset) of the batch at a position in the dense part."""
        at = bisect_right(self._ends, position)
        base_offset = self._last_offsets[at - 1] + 1 if at else self._dense_start_offset
        return self._timestamps[at], base_offset

    def first_with_timestamp(
        self, timestamp: int, start_offset: int, storage: Storage
    ) -> int | None:
        """The position of the first batch from `start_offset` on whose max timestamp is not lower.

        None when there is none in this segment.
        """
        if self.max_timestamp < timestamp:
            return None
        self._load_hints(storage)
        start_offset = max(start_offset, self.time_index.offset_before(timestamp) + 1)
        if start_offset < self._dense_start_offset:
            for header, position in self._walk_headers(self.find(start_offset, storage), storage):
                if header.max_timestamp >= timestamp:
                    return position
        for at in range(bisect_left(self._last_offsets, start_offset), len(self._ends)):
            if self._timestamps[at] >= timestamp:
                return self._ends[at - 1] if at else self._dense_start
        return None

    def _find_sparse(self, wanted_offset: int, storage: Storage) -> int:
        self._load_hints(storage)
        position = self._checked(self.offset_index.floor(wanted_offset), storage)
        before: tuple[BatchHeader, int] | None = None
        for header, at in self._walk_headers(position, storage):
            if header.last_offset >= wanted_offset:
                if header.base_offset > wanted_offset:
                    self._check_gap_after(before, storage)
                return at
            before = header, at
        self._check_gap_after(before, storage)
        return self._dense_start

    def _check_gap_after(self, before: tuple[BatchHeader, int] | None, storage: Storage) -> None:
        """The offset looked for lies in no batch: compaction took it, or the one before lies."""
        if before is not None:
            header, position = before
            for _ in scan_batches(storage, self.path(), position, position + header.size_bytes):
                pass

    def _slice_end_sparse(self, start: int, limit: int, storage: Storage) -> tuple[int, int]:
        """Find the result of `slice_end` below the dense index.

        Every batch that a read gets was walked over once since the start.
        """
        self._load_hints(storage)
        begin = walked = start
        first, last = self._in_order
        if first <= start <= last:
            entry = self.offset_index.floor_position(limit)
            begin = walked = max(start, min(last, self._checked(entry, storage)))
        end, next_offset = start, self.base_offset
        try:
            for header, position in self._walk_headers(begin, storage):
                walked = position
                if position + header.size_bytes > limit:
                    if position > end:
                        end, next_offset = position, header.base_offset
                    break
                # A batch that lies may not hide what the ones before it have: which producers were
                # aborted.
                next_offset = max(next_offset, header.next_offset)
                end = position + header.size_bytes
        except CorruptBatch:
            if end == start:
                raise
        self._in_order = (first, max(last, walked)) if first <= begin <= last else (begin, walked)
        return end, next_offset

    def _checked(self, entry: tuple[int, int] | None, storage: Storage) -> int:
        """The position of an index entry if the batch there is what it says, else 0."""
        if entry is None:
            return 0
        last_offset, position = entry
        try:
            header, _ = next(self._walk_headers(position, storage))
        except (CorruptBatch, StopIteration):
            return 0
        return position if header.last_offset == last_offset else 0

    def _walk_headers(self, start: int, storage: Storage) -> Iterator[tuple[BatchHeader, int]]:
        """Headers of the sparse part from `start` on, whose offsets rise. Raises CorruptBatch.

        Base offsets lie outside the CRC: one that was changed on disk shows by the batch behind it
        or before it.
        """
        return followed(self._judged(start, storage))

    def _judged(
        self, start: int, storage: Storage
    ) -> Iterator[tuple[tuple[BatchHeader, int], str | None, bool]]:
        """Yields (batch, fault, is_doubtful) for `followed`; the caller has validated the batch at
        `start`.
        """
        path, wanted, end = self.path(), self.base_offset, self._dense_start_offset
        for header, position in scan_headers(storage, path, start, self._dense_start):
            fault = None
            if header.base_offset < wanted or header.last_offset >= end:
                fault = (
                    f"{path}: the batch at position {position} has offsets from "
                    f"{header.base_offset} to {header.last_offset}, outside of [{wanted}, {end})"
                )
            was_led_to = position == start and start > 0
            yield (header, position), fault, header.base_offset > wanted and not was_led_to
            wanted = header.next_offset
