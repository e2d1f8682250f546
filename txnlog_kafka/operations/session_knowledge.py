"""Knowledge of a `Session` that answers have shown: nodes to read from, and sizes of batches.

A leader may send a client that names its rack to a replica in that rack (KIP-392). The client reads
from the replica for a while (metadata.max.age.ms, as in Kafka's consumer). If the replica refuses,
does not answer or has no records, the client asks the leader again, which may name a replica again.

A broker answers a Fetch with the log that follows, up to the limit of bytes. So a range of a few
records, with a long log behind it, would bring megabytes that are not needed: the sizes of a
topic's batches limit the bytes that a Fetch asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txnlog_kafka.operations.cluster_view import ClusterView
from txnlog_kafka.wire.topic_partition import TopicPartition

NO_REPLICA = -1
NAMED_MS_MIN = 1_000
"""Least time for which the client reads from a named replica before it asks the leader again."""


class PreferredReplicas:
    """Replicas that leaders have named, each with its end time."""

    def __init__(self) -> None:
        self._named: dict[TopicPartition, tuple[int, int]] = {}

    def node(self, partition: TopicPartition, cluster: ClusterView, now_ms: int) -> int:
        """Return the node to ask; NO_LEADER if neither replica nor leader is known."""
        replica, until_ms = self._named.get(partition, (NO_REPLICA, 0))
        if replica in cluster.nodes and now_ms < until_ms:
            return replica
        self._named.pop(partition, None)
        return cluster.leader(partition)

    def name(self, partition: TopicPartition, replica: int, now_ms: int, for_ms: int) -> None:
        """Note that the leader has answered with this replica."""
        self._named[partition] = replica, now_ms + max(for_ms, NAMED_MS_MIN)

    def forget(self, partition: TopicPartition) -> bool:
        """Ask the leader next; return True if a replica was asked until now."""
        return self._named.pop(partition, None) is not None


@dataclass(frozen=True, slots=True)
class FetchSize:
    """Sizes of one topic: `batch_bytes` is its largest record batch of late."""

    bytes_per_offset: float
    batch_bytes: int


@dataclass(slots=True)
class FetchSizes:
    """Sizes by topic, from the last answers."""

    _topics: dict[str, FetchSize] = field(default_factory=dict)

    def note(self, topic: str, data_bytes: int, offset_count: int, batch_bytes: int) -> None:
        """Note an answer whose whole record batches have `data_bytes` and `offset_count`, the
        largest of `batch_bytes`."""
        if offset_count <= 0:
            return
        before = self._topics.get(topic)
        if before is not None:
            batch_bytes = max(batch_bytes, before.batch_bytes // 2)
        self._topics[topic] = FetchSize(data_bytes / offset_count, batch_bytes)

    def wanted_bytes(self, topic: str, offset_count: int, bytes_max: int) -> int:
        """Return the bytes to ask for, so that one answer brings `offset_count` as a rule;
        `bytes_max` at most.

        A broker sends whole batches, and the range may begin and end inside a batch.
        """
        size = self._topics.get(topic)
        if size is None:
            return bytes_max
        of_range = int(offset_count * size.bytes_per_offset * 9 / 8)
        return min(bytes_max, of_range + 2 * size.batch_bytes)
