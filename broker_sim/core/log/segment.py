"""One segment: a log file named by its base offset, and its indexes.

How a position is found. For what was appended or scanned since start, a dense index in memory holds
every batch (end position, last offset, max timestamp); so bytes that were just appended need no
file access. Before that part (`dense_start`), which was trusted at start without reading it, the
sparse offset index gives a batch to walk from. Its entries are hints that are checked on the way:
where one proves wrong, the walk begins at the start of the file.

A segment emits its own storage operations and never reads what is not yet on disk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from broker_sim.core.effects import Append, Effects, Storage
from broker_sim.core.log.indexes import OffsetIndex, TimeIndex, TransactionIndex
from broker_sim.core.log.scan import scan_headers
from broker_sim.core.log.values import AbortedTransaction
from txnlog_spark.wire.records import NO_TIMESTAMP, BatchHeader, CorruptBatch

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
        """The file holds bytes after `size_bytes` that are no batch, and later segments exist."""
        self._index_interval_bytes = index_interval_bytes
        self._bytes_since_entry = 0
        self._dense_start = 0
        self._dense_start_offset = base_offset
        self._ends = array("q")
        self._last_offsets = array("q")
        self._timestamps = array("q")

    def path(self, suffix: str = LOG_SUFFIX) -> str:
        """A file of this segment, relative to the data directory."""
        return f"{self.directory}/{self.base_offset:020d}{suffix}"

    def paths(self) -> tuple[str, ...]:
        """All files; the transaction index exists only with an aborted transaction in it."""
        suffixes = SUFFIXES if self.transaction_index.entries else SUFFIXES[:-1]
        return tuple(self.path(suffix) for suffix in suffixes)

    # ----------------------------------------------------------------------- writing

    def create_files(self, effects: Effects) -> None:
        """Empty files, as Kafka has them from the beginning."""
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            effects.storage.append(Append(self.path(suffix), 0, b""))

    def append(self, headers: Sequence[BatchHeader], data: bytes, effects: Effects) -> None:
        """`data` is the batches of `headers` one after another, offsets assigned."""
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
        position = self.transaction_index.size_bytes
        data = self.transaction_index.append(entry)
        effects.storage.append(Append(self.path(TRANSACTION_INDEX_SUFFIX), position, data))

    def seal(self, effects: Effects) -> None:
        """No more appends: the time index gets the segment's highest timestamp (Kafka does so)."""
        position = self.time_index.size_bytes
        data = self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
        if data:
            effects.storage.append(Append(self.path(TIME_INDEX_SUFFIX), position, data))

    # ----------------------------------------------------------------------- loading

    def trust(self, *, position: int, next_offset: int) -> None:
        """Bytes up to `position` are known to be good; they stay out of the dense index."""
        self.size_bytes = self._dense_start = position
        self.next_offset = self._dense_start_offset = next_offset
        self._bytes_since_entry = position - self.offset_index.last_position()
        last = self.time_index.last()
        if last is not None:
            self.max_timestamp, self.max_timestamp_offset = last

    def reset(self) -> None:
        """Forget what the index files said: they are to be built again."""
        self.offset_index = OffsetIndex(self.base_offset)
        self.time_index = TimeIndex(self.base_offset)
        self.transaction_index = TransactionIndex()
        self.first_timestamp = None

    # ----------------------------------------------------------------------- reading

    def find(self, wanted_offset: int, storage: Storage | None) -> int:
        """Where the first batch with a last offset at or above `wanted_offset` begins.

        `size_bytes` when there is none. Raises CorruptBatch when the file is damaged.
        """
        if wanted_offset < self._dense_start_offset:
            return self._find_sparse(wanted_offset, storage)
        at = bisect_left(self._last_offsets, wanted_offset)
        if at == len(self._ends):
            return self.size_bytes
        return self._ends[at - 1] if at else self._dense_start

    def slice_end(self, start: int, limit: int, storage: Storage | None) -> tuple[int, int]:
        """The last batch end in (start, limit] and the next offset there; `start` if none.

        `start` is a batch's position. The next offset is meaningless when there is none.
        """
        at = bisect_right(self._ends, limit) - 1
        if at >= 0 and self._ends[at] > start:
            return self._ends[at], self._last_offsets[at] + 1
        if start >= self._dense_start:
            return start, self.base_offset
        return self._slice_end_sparse(start, min(limit, self._dense_start), storage)

    def batch_end(self, start: int, storage: Storage | None) -> int:
        """Where the batch at position `start` ends."""
        if start >= self._dense_start:
            return self._ends[bisect_right(self._ends, start)]
        for header, position in self._walk(start, storage):
            return position + header.size_bytes
        return start

    def batch_at(self, position: int) -> tuple[int, int]:
        """(max timestamp, base offset) of the batch at a position in the dense part."""
        at = bisect_right(self._ends, position)
        base_offset = self._last_offsets[at - 1] + 1 if at else self._dense_start_offset
        return self._timestamps[at], base_offset

    def first_with_timestamp(
        self, timestamp: int, start_offset: int, storage: Storage | None
    ) -> int | None:
        """The position of the first batch from `start_offset` on whose max timestamp is not lower.

        None when there is none in this segment.
        """
        if self.max_timestamp < timestamp:
            return None
        start_offset = max(start_offset, self.time_index.offset_before(timestamp) + 1)
        if start_offset < self._dense_start_offset:
            for header, position in self._walk(self.find(start_offset, storage), storage):
                if header.max_timestamp >= timestamp:
                    return position
        for at in range(bisect_left(self._last_offsets, start_offset), len(self._ends)):
            if self._timestamps[at] >= timestamp:
                return self._ends[at - 1] if at else self._dense_start
        return None

    def _find_sparse(self, wanted_offset: int, storage: Storage | None) -> int:
        position = self._checked(self.offset_index.floor(wanted_offset), storage)
        for header, at in self._walk(position, storage):
            if header.last_offset >= wanted_offset:
                return at
        return self._dense_start

    def _slice_end_sparse(self, start: int, limit: int, storage: Storage | None) -> tuple[int, int]:
        end, next_offset = start, self.base_offset
        entry = self.offset_index.floor_position(limit)
        begin = max(start, self._checked(entry, storage))
        for header, position in self._walk(begin, storage):
            if position + header.size_bytes > limit:
                return (end, next_offset) if position == end else (position, header.base_offset)
            end, next_offset = position + header.size_bytes, header.next_offset
        return end, next_offset

    def _checked(self, entry: tuple[int, int] | None, storage: Storage | None) -> int:
        """The position of an index entry if the batch there is what it says, else 0."""
        if entry is None:
            return 0
        last_offset, position = entry
        try:
            header, _ = next(self._walk(position, storage))
        except (CorruptBatch, StopIteration):
            return 0
        return position if header.last_offset == last_offset else 0

    def _walk(self, start: int, storage: Storage | None) -> Iterator[tuple[BatchHeader, int]]:
        if storage is None:
            raise CorruptBatch(f"{self.path()} cannot be read here")
        return scan_headers(storage, self.path(), start, self._dense_start)
