"""The three indexes of a segment, in Kafka's binary formats (big-endian, entries of fixed size).

    .index     (int32 last offset - base offset, int32 position)           8 bytes, sparse
    .timeindex (int64 max timestamp so far, int32 last offset - base)     12 bytes, sparse
    .txnindex  (int16 0, int64 producer id, int64 first offset,
                int64 last offset, int64 last stable offset)              34 bytes, every abort

Sources: Kafka's `OffsetIndex`, `TimeIndex`, `TransactionIndex`, `AbortedTxn`. An entry of the
offset index names the *last* offset of a batch and the position where that batch begins, so a scan
for an offset above it starts there.

An index is kept as the bytes of its file. What the file held at start is read when it is first
asked for, and compared with the CRC that was recorded with the segment's state: CorruptIndex says
that it has to be built again. So a start costs nothing for it, however large it is.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import ClassVar

from crc32c_rs import crc32c

from broker_sim.core.log.values import AbortedTransaction

_ABORTED_VERSION = 0
RELATIVE_OFFSET_MAX = 2**31 - 1


class CorruptIndex(ValueError):
    """The file of an index does not hold what was written; the log has all that is in it."""


class IndexBytes:
    """Entries of one layout, in the order they were appended."""

    layout: ClassVar[struct.Struct]

    def __init__(self) -> None:
        self.count = 0
        """Entries, whether they are read yet or not."""
        self.crc = 0
        """CRC-32C of all entries."""
        self._data = bytearray()
        self._read_stored: Callable[[], bytes] | None = None
        self._stored_count = 0
        self._stored_crc = 0
        self._stored_bytes = 0
        """Bytes in memory that were already in the file at start."""

    @property
    def size_bytes(self) -> int:
        """Size of the file in bytes."""
        return self.count * self.layout.size

    @property
    def is_loaded(self) -> bool:
        """True if all entries are in memory."""
        return self._read_stored is None

    def restore(self, count: int, crc: int, read: Callable[[int], bytes]) -> None:
        """The file begins with so many entries; `read` gives so many bytes of it, later."""
        self.count = self._stored_count = count
        self.crc = self._stored_crc = crc
        size_bytes = count * self.layout.size
        self._read_stored = (lambda: read(size_bytes)) if count else None

    def load(self) -> None:
        """Read what the file held at start, once. Raises CorruptIndex."""
        if self._read_stored is None:
            return
        data = self._read_stored()
        size_bytes = self._stored_count * self.layout.size
        if len(data) != size_bytes or crc32c(data) != self._stored_crc:
            raise CorruptIndex(f"{self._stored_count} entries are not what was written")
        self._replace_stored(data)

    def rebuilt(self, stored: IndexBytes) -> None:
        """Take the entries of `stored` for those that the file held at start, which are lost."""
        self._replace_stored(bytes(stored._data))

    def truncate(self, count: int) -> None:
        """Keep so many of the entries. Only when it is loaded."""
        del self._data[count * self.layout.size :]
        self.count = count
        self.crc = crc32c(self._data)
        self._stored_bytes = min(self._stored_bytes, len(self._data))

    def encode(self) -> bytes:
        """The whole file. Only when it is loaded."""
        return bytes(self._data)

    def tail(self) -> bytes:
        """Return the bytes appended after the part that the file held at start."""
        return bytes(self._data[self._stored_bytes :])

    def entry(self, at: int) -> tuple[int, ...]:
        """The fields of one entry. Only when it is loaded."""
        return self.layout.unpack_from(self._data, at * self.layout.size)

    def _add(self, *fields: int) -> bytes:
        data = self.layout.pack(*fields)
        self._data += data
        self.crc = crc32c(data, self.crc)
        self.count += 1
        return data

    def _replace_stored(self, data: bytes) -> None:
        self._data[:0] = data
        self._stored_bytes = len(data)
        self._read_stored = None
        self.count = len(self._data) // self.layout.size
        self.crc = crc32c(self._data)


class OffsetIndex(IndexBytes):
    """Last offsets of some batches and where these begin; both columns rise."""

    layout = struct.Struct(">ii")

    def __init__(self, base_offset: int) -> None:
        super().__init__()
        self.base_offset = base_offset
        self.last_position = 0
        """The last indexed batch start, 0 when there is none."""

    def append(self, last_offset: int, position: int) -> bytes:
        """Add an entry; its bytes."""
        self.last_position = position
        return self._add(last_offset - self.base_offset, position)

    def truncate_to(self, position: int) -> None:
        """Only the batches before the position are left. Only when it is loaded."""
        self.truncate(bisect_left(range(self.count), position, key=lambda i: self.entry(i)[1]))
        self.last_position = self.entry(self.count - 1)[1] if self.count else 0

    def floor(self, record_offset: int) -> tuple[int, int] | None:
        """The last entry (last offset, position) at or below the offset."""
        relative = record_offset - self.base_offset
        at = bisect_right(range(self.count), relative, key=lambda i: self.entry(i)[0]) - 1
        return self._found(at)

    def floor_position(self, position: int) -> tuple[int, int] | None:
        """The last entry (last offset, position) that begins at or below the position."""
        at = bisect_right(range(self.count), position, key=lambda i: self.entry(i)[1]) - 1
        return self._found(at)

    def _found(self, at: int) -> tuple[int, int] | None:
        if at < 0:
            return None
        relative, position = self.entry(at)
        return self.base_offset + relative, position


class TimeIndex(IndexBytes):
    """The highest timestamps so far and the last offset of the batch each came with."""

    layout = struct.Struct(">qi")

    def __init__(self, base_offset: int) -> None:
        super().__init__()
        self.base_offset = base_offset
        self.last: tuple[int, int] | None = None
        """The highest timestamp that is indexed and its batch's last offset."""

    def maybe_append(self, timestamp: int, last_offset: int) -> bytes:
        """Add an entry if it tells of a higher timestamp; its bytes, else b""."""
        if timestamp < 0 or (self.last is not None and timestamp <= self.last[0]):
            return b""
        self.last = (timestamp, last_offset)
        return self._add(timestamp, last_offset - self.base_offset)

    def count_below(self, next_offset: int) -> int:
        """Count the entries of batches below the offset. The index must be loaded."""
        relative = next_offset - self.base_offset
        return bisect_left(range(self.count), relative, key=lambda i: self.entry(i)[1])

    def highest(self, count: int) -> tuple[int, int] | None:
        """(timestamp, last offset) of the last of the first `count` entries."""
        if count == 0:
            return None
        timestamp, relative = self.entry(count - 1)
        return timestamp, self.base_offset + relative

    def truncate_to(self, next_offset: int) -> None:
        """Only batches below the offset are left. Only when it is loaded."""
        self.truncate(self.count_below(next_offset))
        self.last = self.highest(self.count)

    def offset_before(self, timestamp: int) -> int:
        """Return the last offset up to which all batches have lower timestamps."""
        at = bisect_left(range(self.count), timestamp, key=lambda i: self.entry(i)[0]) - 1
        return self.base_offset - 1 if at < 0 else self.base_offset + self.entry(at)[1]


class TransactionIndex(IndexBytes):
    """Aborted transactions whose marker lies in this segment, ordered by the marker."""

    layout = struct.Struct(">hqqqq")

    def append(self, entry: AbortedTransaction) -> bytes:
        """Add an entry; its bytes."""
        return self._add(
            _ABORTED_VERSION,
            entry.producer_id,
            entry.first_offset,
            entry.last_offset,
            entry.last_stable_offset,
        )

    def truncate_to(self, next_offset: int) -> None:
        """Only markers below the offset are left. Only when it is loaded."""
        self.truncate(bisect_left(range(self.count), next_offset, key=lambda i: self.entry(i)[3]))

    @property
    def entries(self) -> list[AbortedTransaction]:
        """Return all entries. The index must be loaded."""
        return [AbortedTransaction(*self.entry(at)[1:]) for at in range(self.count)]

    def collect(self, start_offset: int, end_offset: int, found: list[AbortedTransaction]) -> bool:
        """Add what overlaps [start, end) to `found`; True when no later entry can overlap.

        That is so once an entry's last stable offset reaches the end: all transactions that were
        open below it were decided (Kafka's `TransactionIndex.collectAbortedTxns`).
        """
        first = bisect_left(range(self.count), start_offset, key=lambda i: self.entry(i)[3])
        for at in range(first, self.count):
            aborted = AbortedTransaction(*self.entry(at)[1:])
            if aborted.first_offset < end_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= end_offset:
                return True
        return False
