"""From staged to stamped: read staged record batches lazily and give each its sequence.

Theory of operation. A `PartitionQueue` holds one partition's staged batches in order. The next
piece is read only when one of its batches is taken (its size is known before). The piece is checked
to be the staged piece. Then one batch after another is copied into a buffer of its own, stamped
with producer id, epoch and base sequence. That buffer is sent, now and at every retry, byte for
byte: it is never built again. Batches that were not acknowledged come back to the front, in
sequence order.

The one exception is a batch that its leader refused as too large: it is divided, as Java's producer
does (`ProducerBatch.split`). No answer contains the topic's limit, so the client halves the size
with each refusal. It also divides batches of the topic that were not sent yet before it sends them.
It does not divide batches that were sent: a leader may have appended them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from txnlog_kafka.errors import StagedBatchesInvalid
from txnlog_kafka.operations.effects import FileFailed
from txnlog_kafka.operations.producer import Bytes, StagedChunk
from txnlog_kafka.operations.retry import RECORD_REFUSALS
from txnlog_kafka.operations.transaction import Transaction
from txnlog_kafka.wire.dividing import divide_batch, plain_batch
from txnlog_kafka.wire.messages import Message
from txnlog_kafka.wire.records import (
    NO_PRODUCER_ID,
    BatchHeader,
    decode_records,
    increment_sequence,
    iter_batches,
    parse_header,
    shown_key,
    stamp_producer,
)
from txnlog_kafka.wire.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class StampedBatch:
    """Record batch as it goes over the wire; `data` never changes after this."""

    partition: TopicPartition
    data: bytearray | memoryview
    base_sequence: int
    record_count: int
    staged_bytes: int
    """Staged bytes that an acknowledgement completes; of a divided batch the last part has all."""
    was_sent: bool = False

    @property
    def description(self) -> str:
        """Content of the batch, for a text."""
        if self.record_count > 1:
            last = increment_sequence(self.base_sequence, self.record_count - 1)
            sequences = f"sequences {self.base_sequence} to {last}"
            return f"{self.record_count} records ({len(self.data)} bytes, {sequences})"
        plain = plain_batch(self.data)
        (record,) = decode_records(plain, 0, parse_header(plain))
        return (
            f"a record with key {shown_key(record.key)} (a record batch of {len(self.data)} bytes, "
            f"sequence {self.base_sequence})"
        )

    def divided(self, bytes_max: int) -> list[StampedBatch]:
        """Return the same records in batches of at most `bytes_max`, or of a single record."""
        parts = []
        for data in divide_batch(self.data, bytes_max):
            head = parse_header(data)
            parts.append(
                StampedBatch(self.partition, data, head.base_sequence, head.record_count, 0)
            )
        parts[-1] = replace(parts[-1], staged_bytes=self.staged_bytes)
        return parts


class PartitionQueue:
    """Batches of one partition that are not acknowledged yet, in order."""

    def __init__(
        self, partition: TopicPartition, staged: Iterable[StagedChunk], transaction: Transaction
    ) -> None:
        self.partition = partition
        self._transaction = transaction
        # Nothing but the batches that are not stamped yet keeps a piece's bytes in memory.
        self._pieces = deque(staged)
        self._unstamped: deque[tuple[memoryview, BatchHeader]] = deque()
        self._ready: deque[StampedBatch] = deque()
        self.unstamped_bytes = 0
        """Bytes that were read and are not stamped yet."""

    @property
    def is_stamped(self) -> bool:
        """True if the next batch has its sequence: it was sent, whole or in a larger batch."""
        return bool(self._ready)

    @property
    def was_sent(self) -> bool:
        """True if the next batch was sent before, as it is."""
        return bool(self._ready) and self._ready[0].was_sent

    @property
    def is_drained(self) -> bool:
        """True if all batches are taken."""
        return not self._pieces and not self._unstamped and not self._ready

    @property
    def must_read(self) -> bool:
        """True if the next batch is in a piece that has to be read; else it is in memory."""
        return not self._ready and not self._unstamped

    @property
    def next_piece(self) -> StagedChunk:
        """Chunk to read next."""
        return self._pieces[0]

    def next_bytes(self) -> int | None:
        """Return the maximum size of the next batch, None if all batches are taken."""
        if self._ready:
            return len(self._ready[0].data)
        if self._unstamped:
            return self._unstamped[0][1].size_bytes
        return self._pieces[0].size_bytes if self._pieces else None

    def give(self, data: Bytes | FileFailed) -> None:
        """Take the bytes of `next_piece`, as they were read back. Raises StagedBatchesInvalid."""
        piece = self._pieces.popleft()
        try:
            if isinstance(data, FileFailed):
                raise ValueError(data.reason)
            piece.check(data)
            self._unstamped.extend(_split_into_batches(data))
        except ValueError as error:
            topic, number = self.partition
            raise StagedBatchesInvalid(
                f"staged batches of {topic}-{number} cannot be read back: {error}. "
                "No record of this batch becomes visible; restart the query, which stages it again"
            ) from error
        self.unstamped_bytes = len(data)

    def pop(self) -> StampedBatch:
        """Take the next batch, which is in memory."""
        batch = (
            self._ready.popleft() if self._ready else self._stamp_batch(*self._unstamped.popleft())
        )
        bytes_max = self._transaction.record_batch_bytes_max.get(self.partition.topic)
        if bytes_max is not None and not batch.was_sent:
            batch, *rest = batch.divided(bytes_max)
            self._ready.extendleft(reversed(rest))
        return replace(batch, was_sent=True)

    def put_back(self, batches: Sequence[StampedBatch]) -> None:
        """Put batches that were not acknowledged, in sequence order, before all others."""
        self._ready.extendleft(reversed(batches))

    def _stamp_batch(self, piece: memoryview, header: BatchHeader) -> StampedBatch:
        self.unstamped_bytes -= header.size_bytes
        sequences = self._transaction.sequences
        base_sequence = sequences.get(self.partition, 0)
        # What was read for this transaction alone is stamped where it is.
        data = bytearray(piece) if piece.readonly else piece
        stamp_producer(
            data,
            0,
            producer_id=self._transaction.producer_id,
            producer_epoch=self._transaction.producer_epoch,
            base_sequence=base_sequence,
        )
        record_count = header.last_offset_delta + 1
        sequences[self.partition] = increment_sequence(base_sequence, record_count)
        return StampedBatch(
            self.partition, data, base_sequence, header.record_count, header.size_bytes
        )


def divide_refused(batch: StampedBatch, transaction: Transaction) -> list[StampedBatch]:
    """Divide a batch that was too large, and lower the limit for later batches of its topic.

    The limit is a little more than a half, because two parts of exactly a half would seldom be
    enough.
    """
    known = transaction.record_batch_bytes_max
    topic = batch.partition.topic
    known[topic] = min(len(batch.data) * 9 // 16, known.get(topic, len(batch.data)))
    return batch.divided(known[topic])


def queues_of(
    staged: Iterable[StagedChunk], transaction: Transaction
) -> dict[TopicPartition, PartitionQueue]:
    """Return one queue per partition, in the order in which the plan first names them."""
    grouped: dict[TopicPartition, list[StagedChunk]] = {}
    for chunk in staged:
        grouped.setdefault(TopicPartition(chunk.topic, chunk.partition), []).append(chunk)
    return {p: PartitionQueue(p, chunks, transaction) for p, chunks in grouped.items()}


def refused_text(batch: StampedBatch, answer: Message, transaction: Transaction) -> str:
    """Return a text about the refused batch, with the leader's own words if it sent any."""
    topic, number = batch.partition
    text = f"producing {batch.description} to {topic}-{number} ({transaction.who})"
    if answer.error_code in RECORD_REFUSALS and answer.error_message:
        text += f" [{answer.error_message}]"
    return text


def _split_into_batches(piece: Bytes) -> Iterator[tuple[memoryview, BatchHeader]]:
    view = memoryview(piece)
    end = 0
    for header, position in iter_batches(view):
        end = position + header.size_bytes
        if header.producer_id != NO_PRODUCER_ID or header.is_control:
            raise ValueError(f"the batch at byte {position} is not a blank data batch")
        if header.record_count != header.last_offset_delta + 1:
            raise ValueError(f"the batch at byte {position} has gaps in its offsets")
        yield view[position:end], header
    if end != len(view):
        raise ValueError(f"{len(view) - end} bytes after byte {end} are not a whole record batch")
