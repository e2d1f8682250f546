"""Which coordinators this broker has: who leads a partition of an internal topic coordinates what
is in it. A new leader epoch is a new coordinator, also on the same broker.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_sim.core.controller import ClusterImage
from broker_sim.core.effects import Effects
from broker_sim.core.group.coordinator import GroupCoordinator
from broker_sim.core.replica.log_manager import LogManager
from broker_sim.core.replica.replica_manager import ReplicaManager
from broker_sim.core.transaction.coordinator import TransactionCoordinator
from txnlog_kafka.wire.topics import INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC, TopicPartition


@dataclass(slots=True)
class Elections:
    """See the module."""

    image: ClusterImage
    logs: LogManager
    replicas: ReplicaManager
    transactions: TransactionCoordinator
    groups: GroupCoordinator
    lost_power: bool
    """The machine of this broker went down, and what was not flushed may be gone."""
    _coordinated: dict[TopicPartition, int] = field(default_factory=dict)
    """What this broker leads in a cluster, each with the epoch."""

    def load(self, topic: str, effects: Effects) -> None:
        """Load the coordinator of an internal topic from all partitions, where a broker is alone;
        in a cluster each is loaded when this broker is elected."""
        known = self.image.topics.get(topic)
        if known is None or known.partitions:
            return
        for partition in range(known.partition_count):
            log = self.logs.get(topic, partition)
            if log is not None:
                self._coordinator(topic).load(partition, log, effects)

    def on_role(self, name: TopicPartition, effects: Effects) -> None:
        """This broker of a cluster leads the partition now, or another one does."""
        if name.topic not in INTERNAL_TOPICS:
            return
        log = self.logs.get(*name)
        leader = None if log is None else self.replicas.partition(log).leader
        epoch = None if leader is None else leader.registration.leader_epoch
        if epoch == self._coordinated.get(name):
            return
        if log is None or leader is None or epoch is None:
            del self._coordinated[name]
            self._coordinator(name.topic).unload(name.partition, effects)
            return
        self._coordinated[name] = epoch
        if name.topic == TRANSACTION_STATE_TOPIC:
            is_torn = self.lost_power and leader.is_alone_in_isr
            self.transactions.announce(name.partition, log, effects, is_torn=is_torn)
        else:
            self.groups.announce(name.partition, log, effects)

    def _coordinator(self, topic: str) -> GroupCoordinator | TransactionCoordinator:
        return self.transactions if topic == TRANSACTION_STATE_TOPIC else self.groups
