"""Effects of a metadata change on this broker: logs, configurations, coordinators.

The controller decides and makes a change durable. Only this module knows both the change and the
replicas and coordinators that it concerns. Source: Kafka's `BrokerMetadataPublisher`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller import ClusterImage, Topic
from broker_sim.core.controller.configs import ALL_BROKERS
from broker_sim.core.controller.image import (
    BrokerConfigsDelta,
    ClusterDelta,
    ImageDelta,
    PartitionDelta,
    TopicDelta,
)
from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.coordinator.marker_sender import MarkerSender
from broker_sim.core.data_directory import DataDirectory
from broker_sim.core.effects import Effects
from broker_sim.core.group.coordinator import GroupCoordinator
from broker_sim.core.replica.log_manager import LogManager
from broker_sim.core.replica.replica_manager import ReplicaManager
from broker_sim.core.replica.replication import Replication
from broker_sim.core.transaction.coordinator import TransactionCoordinator
from txnlog_kafka.wire.topic_partition import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)


@dataclass(slots=True)
class Publisher:
    """Carries out the deltas of one broker's image."""

    config: BrokerConfig
    image: ClusterImage
    directory: DataDirectory
    logs: LogManager
    replicas: ReplicaManager
    transactions: TransactionCoordinator
    groups: GroupCoordinator
    replication: Replication
    markers: MarkerSender
    lost_power: bool
    """The machine of this broker went down, and what was not flushed may be gone."""
    _coordinated: dict[TopicPartition, int] = field(default_factory=dict)
    """Partitions of internal topics that this broker leads in a cluster, each with the epoch."""

    def start(self, effects: Effects) -> None:
        """Load the coordinators, groups first, and begin what they and the replicas do."""
        for name in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
            topic = self.image.topics.get(name)
            if topic is not None:
                self._resize_coordinator(topic)
                self._load_coordinator(topic, effects)
        self.groups.start(effects)
        self.fence(effects)
        self.transactions.start(effects, abort_open=self.lost_power)

    def publish(self, delta: ImageDelta, effects: Effects) -> None:
        """The image has this change; a crash before or within is repaired at the next start."""
        if isinstance(delta, ClusterDelta):
            self.directory.claim(self.image, effects)
        elif isinstance(delta, BrokerConfigsDelta):
            apply_dynamic(self.config, self.image)
            for topic in self.image.topics.values():
                self.logs.reconfigure(topic)
        elif isinstance(delta, PartitionDelta):
            self._change_partition(delta, effects)
        elif isinstance(delta, TopicDelta):
            before, after = delta
            if after is not None:
                self._change_topic(before, after, effects)
                if before is None:
                    self.groups.on_topic_created(effects)
            elif before is not None:
                for number in range(len(before.partitions)):
                    self.replication.forget(TopicPartition(before.name, number))
                self.replicas.delete_topic(before, effects)
                deleted = [TopicPartition(before.name, p) for p in range(before.partition_count)]
                self.groups.on_partitions_deleted(deleted, effects)

    def fence(self, effects: Effects) -> None:
        """This broker has started, or the controller takes it for one that is down: it leads
        nothing, until the metadata says so in other epochs."""
        for topic in self.image.topics.values():
            for number, registration in enumerate(topic.partitions):
                name = TopicPartition(topic.name, number)
                self.replication.fence(name, registration, effects)
                self._coordinate_partition(name, effects)

    def _load_coordinator(self, topic: Topic, effects: Effects) -> None:
        """Load the coordinator of an internal topic from all partitions, where a broker is alone;
        in a cluster each is loaded when this broker is elected."""
        for partition in range(0 if topic.partitions else topic.partition_count):
            log = self.logs.get(topic.name, partition)
            if log is not None:
                self._coordinator(topic.name).load(partition, log, effects)

    def _coordinator(self, topic: str) -> GroupCoordinator | TransactionCoordinator:
        return self.transactions if topic == TRANSACTION_STATE_TOPIC else self.groups

    def _coordinate_partition(self, name: TopicPartition, effects: Effects) -> None:
        """The leader of a partition of an internal topic coordinates what is in it; a new leader
        epoch is a new coordinator, also on the same broker."""
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

    def _change_topic(self, before: Topic | None, after: Topic, effects: Effects) -> None:
        if after.is_internal and after.partitions:
            self._resize_coordinator(after)
        present = 0 if before is None else before.partition_count
        hosted = [number for number in self.image.hosted(after) if number >= present]
        self.logs.create(after, hosted, self.image, effects)
        for number in hosted if after.partitions else ():
            name = TopicPartition(after.name, number)
            self._apply_registration(name, after.partitions[number], effects)
        if before is None and after.is_internal:
            self._load_coordinator(after, effects)
        elif before is not None and before.configs != after.configs:
            self.logs.reconfigure(after)

    def _resize_coordinator(self, topic: Topic) -> None:
        """Set the partition count of a coordinator's topic once known, maybe after the start."""
        self.transactions.resize(topic.name, topic.partition_count)
        if topic.name == GROUP_METADATA_TOPIC:
            self.groups.resize(topic.partition_count)

    def _change_partition(self, delta: PartitionDelta, effects: Effects) -> None:
        """Another leader, ISR or set of replicas; one that is removed here goes with its log."""
        name = TopicPartition(delta.topic.name, delta.partition)
        if delta.before.leader != delta.after.leader:
            self.markers.on_leader_change(name, effects)
        is_here = self.logs.get(*name) is not None
        if self.image.node_id not in delta.after.replicas:
            if is_here:
                self.replication.delete(name, effects)
                self._coordinate_partition(name, effects)
            return
        if not is_here:
            self.logs.create(delta.topic, [delta.partition], self.image, effects)
        self._apply_registration(name, delta.after, effects)

    def _apply_registration(
        self, name: TopicPartition, registration: PartitionRegistration, effects: Effects
    ) -> None:
        self.replication.apply(name, registration, effects)
        self._coordinate_partition(name, effects)


def apply_dynamic(config: BrokerConfig, image: ClusterImage) -> list[str]:
    """Put what the image says of brokers in force; the names that cannot be used."""
    broker = str(config.integer("node.id"))
    return config.set_dynamic(
        image.broker_configs.get(ALL_BROKERS, {}), image.broker_configs.get(broker, {})
    )
