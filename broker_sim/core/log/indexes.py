"""The three indexes of a segment, in Kafka's binary formats (big-endian, entries of fixed size).

    .index     (int32 last offset - base offset, int32 position)           8 bytes, sparse
    .timeindex (int64 max timestamp so far, int32 last offset - base)     12 bytes, sparse
    .txnindex  (int16 0, int64 producer id, int64 first offset,
                int64 last offset, int64 last stable offset)              34 bytes, every abort

Sources: Kafka's `OffsetIndex`, `TimeIndex`, `TransactionIndex`, `AbortedTxn`. An entry of the
offset index names the *last* offset of a batch and the position where that batch begins, so a scan
for an offset above it starts there. Indexes are only hints: after an unclean stop those of the last
segment are built again from the log, and `decode` answers None for a file that cannot be right.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right

from broker_sim.core.log.values import AbortedTransaction

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_ABORTED_ENTRY = struct.Struct(">hqqqq")
_ABORTED_VERSION = 0
RELATIVE_OFFSET_MAX = 2**31 - 1
OFFSET_ENTRY_BYTES = _OFFSET_ENTRY.size


class OffsetIndex:
    """Last offsets of some batches and where these begin; both columns rise."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.last_offsets = array("q")
        self.positions = array("q")

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return len(self.positions) * OFFSET_ENTRY_BYTES

    def append(self, last_offset: int, position: int) -> bytes:
        """Add an entry; its bytes."""
        self.last_offsets.append(last_offset)
        self.positions.append(position)
        return _OFFSET_ENTRY.pack(last_offset - self.base_offset, position)

    def floor(self, record_offset: int) -> tuple[int, int] | None:
        """The last entry (last offset, position) at or below the offset."""
        at = bisect_right(self.last_offsets, record_offset) - 1
        return None if at < 0 else (self.last_offsets[at], self.positions[at])

    def floor_position(self, position: int) -> tuple[int, int] | None:
        """The last entry (last offset, position) that begins at or below the position."""
        at = bisect_right(self.positions, position) - 1
        return None if at < 0 else (self.last_offsets[at], self.positions[at])

    def last_position(self) -> int:
        """The last indexed batch start, 0 when there is none."""
        return self.positions[-1] if self.positions else 0

    def encode(self) -> bytes:
        """The whole file."""
        base = self.base_offset
        return b"".join(
            _OFFSET_ENTRY.pack(offset - base, position)
            for offset, position in zip(self.last_offsets, self.positions, strict=True)
        )

    @classmethod
    def decode(cls, data: bytes, base_offset: int, log_bytes: int) -> OffsetIndex | None:
        """The index of a log file of `log_bytes`; None unless both columns rise within it."""
        if len(data) % OFFSET_ENTRY_BYTES:
            return None
        index = cls(base_offset)
        relative_before, position_before = -1, -1
        for relative, position in _OFFSET_ENTRY.iter_unpack(data):
            if relative <= relative_before or not position_before < position < log_bytes:
                return None
            relative_before, position_before = relative, position
            index.last_offsets.append(base_offset + relative)
            index.positions.append(position)
        return index


class TimeIndex:
    """The highest timestamps so far and the last offset of the batch each came with."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.timestamps = array("q")
        self.last_offsets = array("q")

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return len(self.timestamps) * _TIME_ENTRY.size

    def maybe_append(self, timestamp: int, last_offset: int) -> bytes:
        """Add an entry if it tells of a higher timestamp; its bytes, else b""."""
        if timestamp < 0 or (self.timestamps and timestamp <= self.timestamps[-1]):
            return b""
        self.timestamps.append(timestamp)
        self.last_offsets.append(last_offset)
        return _TIME_ENTRY.pack(timestamp, last_offset - self.base_offset)

    def last(self) -> tuple[int, int] | None:
        """The highest timestamp that is indexed and its batch's last offset."""
        return (self.timestamps[-1], self.last_offsets[-1]) if self.timestamps else None

    def offset_before(self, timestamp: int) -> int:
        """All batches up to the returned last offset have lower timestamps."""
        at = bisect_left(self.timestamps, timestamp) - 1
        return self.base_offset - 1 if at < 0 else self.last_offsets[at]

    def encode(self) -> bytes:
        """The whole file."""
        base = self.base_offset
        return b"".join(
            _TIME_ENTRY.pack(timestamp, offset - base)
            for timestamp, offset in zip(self.timestamps, self.last_offsets, strict=True)
        )

    @classmethod
    def decode(cls, data: bytes, base_offset: int) -> TimeIndex | None:
        """The index; None unless both columns rise."""
        if len(data) % _TIME_ENTRY.size:
            return None
        index = cls(base_offset)
        time_before, relative_before = -1, -1
        for timestamp, relative in _TIME_ENTRY.iter_unpack(data):
            if timestamp <= time_before or relative < relative_before:
                return None
            time_before, relative_before = timestamp, relative
            index.timestamps.append(timestamp)
            index.last_offsets.append(base_offset + relative)
        return index


class TransactionIndex:
    """Aborted transactions whose marker lies in this segment, ordered by the marker."""

    def __init__(self) -> None:
        self.entries: list[AbortedTransaction] = []

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return len(self.entries) * _ABORTED_ENTRY.size

    def append(self, entry: AbortedTransaction) -> bytes:
        """Add an entry; its bytes."""
        self.entries.append(entry)
        return _encode_aborted(entry)

    def collect(self, start_offset: int, end_offset: int, found: list[AbortedTransaction]) -> bool:
        """Add what overlaps [start, end) to `found`; True when no later entry can overlap.

        That is so once an entry's last stable offset reaches the end: all transactions that were
        open below it were decided (Kafka's `TransactionIndex.collectAbortedTxns`).
        """
        first = bisect_left(self.entries, start_offset, key=_last_offset)
        for entry in self.entries[first:]:
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                return True
        return False

    def encode(self) -> bytes:
        """The whole file."""
        return b"".join(map(_encode_aborted, self.entries))

    @classmethod
    def decode(cls, data: bytes, base_offset: int) -> TransactionIndex | None:
        """The index of the segment; None for a foreign version or offsets that cannot be."""
        if len(data) % _ABORTED_ENTRY.size:
            return None
        index = cls()
        marker_before = base_offset - 1
        for version, producer_id, first, last, stable in _ABORTED_ENTRY.iter_unpack(data):
            if version != _ABORTED_VERSION or not 0 <= first <= last or last <= marker_before:
                return None
            if producer_id < 0 or not 0 <= stable <= last + 1:
                return None
            marker_before = last
            index.entries.append(AbortedTransaction(producer_id, first, last, stable))
        return index


def _encode_aborted(entry: AbortedTransaction) -> bytes:
    return _ABORTED_ENTRY.pack(
        _ABORTED_VERSION,
        entry.producer_id,
        entry.first_offset,
        entry.last_offset,
        entry.last_stable_offset,
    )


def _last_offset(entry: AbortedTransaction) -> int:
    return entry.last_offset
