"""Order in which partitions send, and memory for their batches.

The queues of one leader that have batches to send form two rings. A queue that was served goes to
the end, so that no partition starves when there is space for a few only. A queue that has batches
in memory, read or to be sent again, comes to the front, so that they leave memory first. Filling a
request looks at the queues that it serves and at few others, however many there are: a queue that
may not send at the moment is in no ring.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from txnlog_kafka.operations.batches import PartitionQueue, StampedBatch
from txnlog_kafka.operations.cluster_view import NO_LEADER, ClusterView
from txnlog_kafka.operations.effects import FileFailed
from txnlog_kafka.operations.producer import Bytes
from txnlog_kafka.wire.topic_partition import TopicPartition

Ring = OrderedDict[TopicPartition, PartitionQueue]


class DrainOrder:
    """Queues that may send, in two rings for each leader.

    Queues that send again come before all others. Their batches count as in flight: if other queues
    came first, these batches could find no free space.
    """

    def __init__(self, queues: dict[TopicPartition, PartitionQueue]) -> None:
        self._queues = queues
        self._again: dict[int, Ring] = {}
        self._rings: dict[int, Ring] = {NO_LEADER: OrderedDict(queues)}
        self._view: ClusterView | None = None
        self._first = 0

    @property
    def is_over(self) -> bool:
        """True if all queues are empty, resting queues included."""
        return all(queue.is_drained for queue in self._queues.values())

    def arrange(self, view: ClusterView) -> list[TopicPartition]:
        """Move each queue to its leader's rings; return the partitions without a known leader."""
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
        """Return the nodes that have batches to get, starting with another node each time."""
        nodes = [n for n in dict.fromkeys([*self._rings, *self._again]) if any(self.of(n))]
        self._first = (self._first + 1) % max(1, len(nodes))
        return nodes[self._first :] + nodes[: self._first]

    def of(self, node: int) -> Iterator[tuple[TopicPartition, PartitionQueue]]:
        """Return the queues of a leader, the next first; iterate to the end before a change."""
        return itertools.chain.from_iterable(
            rings[node].items() for rings in (self._again, self._rings) if node in rings
        )

    def rest(self, partition: TopicPartition) -> None:
        """Bar the queue from sending, until `ready` or `put_back`."""
        node = self._leader(partition)
        for rings in (self._again, self._rings):
            if node in rings:
                rings[node].pop(partition, None)

    def served(self, partition: TopicPartition) -> None:
        """Move a queue that got its turn and may send on to the end, or to the front if it holds a
        piece.

        If queues that hold a piece were not next, other queues could hold all of the space.
        """
        self.rest(partition)
        self.ready(partition)

    def ready(self, partition: TopicPartition) -> None:
        """Let the queue send, if it has batches left; if it may already, it keeps its place."""
        node, queue = self._leader(partition), self._queues[partition]
        if queue.is_drained or partition in self._again.get(node, ()):
            return
        if queue.is_stamped:
            self._again.setdefault(node, OrderedDict())[partition] = queue
            return
        ring = self._rings.setdefault(node, OrderedDict())
        if partition not in ring:
            ring[partition] = queue
            ring.move_to_end(partition, last=queue.must_read)

    def put_back(self, partition: TopicPartition, batches: Sequence[StampedBatch]) -> None:
        """Return batches that were not acknowledged, in sequence order: their partition is next."""
        self.rest(partition)
        self._queues[partition].put_back(batches)
        self.ready(partition)

    def _leader(self, partition: TopicPartition) -> int:
        return NO_LEADER if self._view is None else self._view.leader(partition)


@dataclass(slots=True)
class Memory:
    """Bytes of batches not acknowledged yet, and of read pieces not stamped yet."""

    bytes_max: int
    stamped_bytes: int = 0
    unstamped_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        """Bytes that may still be stamped; may be negative."""
        return self.bytes_max - self.stamped_bytes

    def give(self, queue: PartitionQueue, data: Bytes | FileFailed) -> None:
        """Give a piece to the queue and account for it. Raises StagedBatchesInvalid."""
        queue.give(data)
        self.unstamped_bytes += queue.unstamped_bytes

    def has_space(self, queue: PartitionQueue, size_bytes: int) -> bool:
        """True if the queue's next batch may be taken; a batch alone always may."""
        if queue.is_stamped:
            return True
        if queue.must_read and not _fits(self.unstamped_bytes, size_bytes, self.bytes_max):
            return False
        return _fits(self.stamped_bytes, size_bytes, self.bytes_max)

    def take(self, queue: PartitionQueue) -> StampedBatch:
        """Take the queue's next batch and account for it."""
        unstamped_bytes = queue.unstamped_bytes
        batch = queue.pop()
        stamped_bytes = unstamped_bytes - queue.unstamped_bytes
        self.unstamped_bytes -= stamped_bytes
        self.stamped_bytes += stamped_bytes
        return batch


def _fits(held_bytes: int, size_bytes: int, bytes_max: int) -> bool:
    return not held_bytes or held_bytes + size_bytes <= bytes_max
