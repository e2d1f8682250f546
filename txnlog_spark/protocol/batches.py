"""From staged to stamped: read staged record batches lazily and give each its sequence.

Theory of operation. A `PartitionQueue` holds one partition's staged batches in order. `peek` reads
the next piece only when it is needed, checks its CRC (stamping writes a new one and would launder a
torn file) and copies one batch into a buffer of its own, stamped with producer id, epoch and base
sequence. That buffer is what goes out, now and at every retry, byte for byte: it is never built
again. Batches that were not acknowledged come back to the front, in sequence order.
"""

from __future__ import annotations

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
        self.partition = partition
        self._transaction = transaction
        self._unread = _read_all(partition, staged)
        self._ready: deque[StampedBatch] = deque()
        self._is_read = False

    def peek(self) -> StampedBatch | None:
        """The next batch to send, None when all are sent. Raises StagedBatchesInvalid."""
        if not self._ready and not self._is_read:
            found = next(self._unread, None)
            if found is None:
                self._is_read = True
            else:
                self._ready.append(self._stamp(*found))
        return self._ready[0] if self._ready else None

    def pop(self) -> StampedBatch:
        """Take what `peek` returned."""
        return self._ready.popleft()

    def put_back(self, batches: Sequence[StampedBatch]) -> None:
        """Batches that were not acknowledged, in sequence order, before all others."""
        self._ready.extendleft(reversed(batches))

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


def _read_all(
    partition: Partition, staged: Iterable[StagedPartition]
) -> Iterator[tuple[memoryview, BatchHeader]]:
    try:
        for part in staged:
            for piece in part.read():
                yield from _split(piece)
    except (OSError, ValueError) as error:
        raise StagedBatchesInvalid(
            f"staged batches of {partition[0]}-{partition[1]} cannot be read back: {error}. "
            "Nothing of this batch becomes visible; restart the query, which stages it anew"
        ) from error


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
        raise ValueError(f"{len(view) - end} bytes after byte {end} are no whole record batch")
