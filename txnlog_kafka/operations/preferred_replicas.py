"""From which node a partition is read: its leader, or a replica that this has named (KIP-392).

A client that says its rack may be sent to a replica there. That holds for a while
(metadata.max.age.ms, as in Kafka's consumer), and ends before when the replica refuses, does not
answer or has nothing: then the leader is asked again, and may name one again.
"""

from __future__ import annotations

from txnlog_kafka.operations.cluster_view import ClusterView
from txnlog_kafka.wire.topic_partition import TopicPartition

NO_REPLICA = -1
NAMED_MS_MIN = 1_000
"""So that a leader that names one is not asked again at once."""


class PreferredReplicas:
    """The replicas that leaders have named, each until when."""

    def __init__(self) -> None:
        self._named: dict[TopicPartition, tuple[int, int]] = {}

    def node(self, partition: TopicPartition, cluster: ClusterView, now_ms: int) -> int:
        """The node to ask; NO_LEADER when neither is known."""
        replica, until_ms = self._named.get(partition, (NO_REPLICA, 0))
        if replica in cluster.nodes and now_ms < until_ms:
            return replica
        self._named.pop(partition, None)
        return cluster.leader(partition)

    def name(self, partition: TopicPartition, replica: int, now_ms: int, for_ms: int) -> None:
        """The leader has answered with this replica."""
        self._named[partition] = replica, now_ms + max(for_ms, NAMED_MS_MIN)

    def forget(self, partition: TopicPartition) -> bool:
        """Ask the leader next; whether a replica was asked until now."""
        return self._named.pop(partition, None) is not None
