"""From staged to stamped: read staged record batches lazily and give each its sequence.

Theory of operation. A `PartitionQueue` holds one partition's staged batches in order. The next
piece is read only when a batch of it is taken (its size is known before), its CRC is checked
(stamping writes a new one and would launder a torn file), and one batch after another is copied
into a buffer of its own, stamped with producer id, epoch and base sequence. That buffer is what
goes out, now and at every retry, byte for byte: it is never built again. Batches that were not
acknowledged come back to the front, in sequence order.

`Turns` says which queue is next: the queues of one leader form a ring. Who was served goes to its
end, so that no partition starves though one round has space for a few only; who has something in
memory, read or to be sent again, comes to its front, so that it leaves memory first. A round looks
at the queues that it serves and at few others, however many there are.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from txnlog_spark.errors import StagedBatchesInvalid
from txnlog_spark.protocol.metadata import NO_LEADER, ClusterView
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

Ring = OrderedDict[Partition, "PartitionQueue"]


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


class Turns:
    """Whose turn it is: the queues that have something to send, in two rings for each leader.

    Those that send again come before all others. What they hold counts as in flight, so that with
    others before them there could be space for nobody.
    """

    def __init__(self, queues: dict[Partition, PartitionQueue]) -> None:
        self._queues = queues
        self._again: dict[int, Ring] = {}
        self._rings: dict[int, Ring] = {NO_LEADER: OrderedDict(queues)}
        self._view: ClusterView | None = None
        self._first = 0

    @property
    def is_over(self) -> bool:
        """Whether no queue has anything to send."""
        return not any(self._rings.values()) and not any(self._again.values())

    def arrange(self, view: ClusterView) -> list[Partition]:
        """Give each queue to its leader's rings; those without a known leader are returned."""
        if view is not self._view:
            self._view = view
            self._again = self._by_leader(self._again)
            self._rings = self._by_leader(self._rings)
        return [p for p, _ in self.of(NO_LEADER)]

    def _by_leader(self, rings: dict[int, Ring]) -> dict[int, Ring]:
        waiting = [p for ring in rings.values() for p in ring]
        waiting.sort(key=lambda p: self._queues[p].must_read)
        arranged: dict[int, Ring] = {}
        for partition in waiting:
            ring = arranged.setdefault(self._leader(partition), OrderedDict())
            ring[partition] = self._queues[partition]
        return arranged

    def leaders(self) -> list[int]:
        """The nodes that have something to get, each time another one first."""
        nodes = [n for n in dict.fromkeys([*self._rings, *self._again]) if any(self.of(n))]
        self._first = (self._first + 1) % max(1, len(nodes))
        return nodes[self._first :] + nodes[: self._first]

    def of(self, node: int) -> Iterator[tuple[Partition, PartitionQueue]]:
        """The queues of one leader, the next one first; to be looked through before `served`."""
        return itertools.chain.from_iterable(
            rings[node].items() for rings in (self._again, self._rings) if node in rings
        )

    def served(self, node: int, partition: Partition) -> None:
        """The queue got its turn, and comes last; first while it holds a piece, never when drained.

        Were those that hold a piece not next, all that there is space for could be held by others.
        """
        queue = self._queues[partition]
        for rings in (self._again, self._rings):
            if node in rings:
                rings[node].pop(partition, None)
        if queue.is_drained:
            return
        if queue.is_resending:
            self._again.setdefault(node, OrderedDict())[partition] = queue
            return
        ring = self._rings.setdefault(node, OrderedDict())
        ring[partition] = queue
        ring.move_to_end(partition, last=queue.must_read)

    def put_back(self, partition: Partition, batches: Sequence[StampedBatch]) -> None:
        """Batches that were not acknowledged, in sequence order: their partition is next."""
        node, queue = self._leader(partition), self._queues[partition]
        queue.put_back(batches)
        if node in self._rings:
            self._rings[node].pop(partition, None)
        self._again.setdefault(node, OrderedDict())[partition] = queue

    def _leader(self, partition: Partition) -> int:
        return NO_LEADER if self._view is None else self._view.leader(partition)


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
