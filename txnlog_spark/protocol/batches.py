"""From staged to stamped: read staged record batches lazily and give each its sequence.

Theory of operation. A `PartitionQueue` holds one partition's staged batches in order. The next
piece is read only when a batch of it is taken (its size is known before), its CRC is checked
(stamping writes a new one and would launder a torn file), and one batch after another is copied
into a buffer of its own, stamped with producer id, epoch and base sequence. That buffer is what
goes out, now and at every retry, byte for byte: it is never built again. Batches that were not
acknowledged come back to the front, in sequence order.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from txnlog_spark.errors import StagedBatchesInvalid
from txnlog_spark.protocol.transaction import Transaction
from txnlog_spark.protocol.values import Bytes, Partition, StagedPartition
from txnlog_spark.wire.records import (
    NO_PRODUCER_ID,
    BatchHeader,
    check_crc,
    increment_sequence,
    iter_batches,
    stamp_producer,
)


@dataclass(frozen=True, slots=True)
class StampedBatch:
    """One record batch as it goes over the wire; `data` never changes after this."""

    partition: Partition
    data: bytearray
    base_sequence: int
    record_count: int


class PartitionQueue:
    """One partition's batches that are not acknowledged yet, in order."""

    def __init__(
        self, partition: Partition, staged: Iterable[StagedPartition], transaction: Transaction
    ) -> None:
        parts = list(staged)
        self.partition = partition
        self._transaction = transaction
        # Nothing but the batches that are not stamped yet keeps a piece in memory.
        self._pieces = itertools.chain.from_iterable(part.read() for part in parts)
        self._sizes = _sizes_of(parts)
        self._split: deque[tuple[memoryview, BatchHeader]] = deque()
        self._ready: deque[StampedBatch] = deque()
        self._is_read = False
        self.unstamped_bytes = 0
        """What was read and is not stamped."""

    @property
    def is_resending(self) -> bool:
        """Whether the next batch is one that was sent before: it is in memory."""
        return bool(self._ready)

    @property
    def is_drained(self) -> bool:
        """Whether all batches are known to be taken; one that must be read to tell is not yet."""
        return self._is_read and not self._split and not self._ready

    @property
    def must_read(self) -> bool:
        """Whether taking the next batch reads a piece; else it is in memory."""
        return not self._ready and not self._split

    def next_bytes(self) -> int | None:
        """How much the next batch takes at most, None when all are taken.

        Reads only where the sizes of the pieces are not known. Raises StagedBatchesInvalid.
        """
        if self._ready:
            return len(self._ready[0].data)
        if not self._split and self._sizes:
            return self._sizes[0]
        if not self._split and not self._is_read:
            self._read()
        return self._split[0][1].size_bytes if self._split else None

    def pop(self) -> StampedBatch:
        """Take the next batch. Raises StagedBatchesInvalid."""
        if self._ready:
            return self._ready.popleft()
        if not self._split:
            self._read()
        piece, header = self._split.popleft()
        self.unstamped_bytes -= header.size_bytes
        return self._stamp(piece, header)

    def put_back(self, batches: Sequence[StampedBatch]) -> None:
        """Batches that were not acknowledged, in sequence order, before all others."""
        self._ready.extendleft(reversed(batches))

    def _read(self) -> None:
        """Read the next piece that holds a batch, or find that there is none."""
        try:
            while not self._split and not self._is_read:
                piece = next(self._pieces, None)
                self._check_size(piece)
                if piece is None:
                    self._is_read = True
                else:
                    self._split.extend(_split(piece))
                    self.unstamped_bytes = len(piece)
            if self._sizes is not None and not self._sizes and not self._is_read:
                self._check_size(next(self._pieces, None))
                self._is_read = True
        except (OSError, ValueError) as error:
            topic, number = self.partition
            raise StagedBatchesInvalid(
                f"staged batches of {topic}-{number} cannot be read back: {error}. "
                "Nothing of this batch becomes visible; restart the query, which stages it again"
            ) from error

    def _check_size(self, piece: Bytes | None) -> None:
        """A piece more or less than was announced would be rows doubled or lost."""
        if self._sizes is None:
            return
        expected = self._sizes.popleft() if self._sizes else None
        found = None if piece is None else len(piece)
        if found != expected:
            raise ValueError(f"a piece of {expected} bytes was staged, {found} are there")

    def _stamp(self, piece: memoryview, header: BatchHeader) -> StampedBatch:
        sequences = self._transaction.sequences
        base_sequence = sequences.get(self.partition, 0)
        data = bytearray(piece)
        stamp_producer(
            data,
            0,
            producer_id=self._transaction.producer_id,
            producer_epoch=self._transaction.producer_epoch,
            base_sequence=base_sequence,
        )
        record_count = header.last_offset_delta + 1
        sequences[self.partition] = increment_sequence(base_sequence, record_count)
        return StampedBatch(self.partition, data, base_sequence, header.record_count)


def queues_of(
    staged: Iterable[StagedPartition], transaction: Transaction
) -> dict[Partition, PartitionQueue]:
    """One queue per partition, in the order in which the plan first names them."""
    grouped: dict[Partition, list[StagedPartition]] = {}
    for part in staged:
        grouped.setdefault((part.topic, part.partition), []).append(part)
    return {p: PartitionQueue(p, parts, transaction) for p, parts in grouped.items()}


def _sizes_of(parts: Sequence[StagedPartition]) -> deque[int] | None:
    """The sizes of all pieces, None when one is not known."""
    if not all(part.piece_bytes and min(part.piece_bytes) > 0 for part in parts):
        return None
    return deque(size for part in parts for size in part.piece_bytes)


def _split(piece: Bytes) -> Iterator[tuple[memoryview, BatchHeader]]:
    view = memoryview(piece)
    end = 0
    for header, position in iter_batches(view):
        check_crc(view, position, header)
        end = position + header.size_bytes
        if header.producer_id != NO_PRODUCER_ID or header.is_control:
            raise ValueError(f"the batch at byte {position} is not a blank data batch")
        if header.record_count != header.last_offset_delta + 1:
            raise ValueError(f"the batch at byte {position} has gaps in its offsets")
        yield view[position:end], header
    if end != len(view):
        raise ValueError(f"{len(view) - end} bytes after byte {end} are not a whole record batch")
