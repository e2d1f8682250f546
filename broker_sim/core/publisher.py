"""What a change of the metadata means on this broker: logs, configurations, coordinators.

The controller decides and makes a change durable; this is the only module that knows both it and
the replicas and coordinators that the change is about. Source: Kafka's `BrokerMetadataPublisher`.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller import ClusterImage, Topic
from broker_sim.core.controller.configs import ALL_BROKERS
from broker_sim.core.controller.image import BrokerConfigsDelta, ImageDelta
from broker_sim.core.effects import Effects
from broker_sim.core.group.coordinator import GroupCoordinator
from broker_sim.core.replica.log_manager import LogManager
from broker_sim.core.replica.replica_manager import ReplicaManager
from broker_sim.core.transaction.coordinator import TransactionCoordinator
from txnlog_spark.wire.topics import TRANSACTION_STATE_TOPIC, TopicPartition


@dataclass(slots=True)
class Publisher:
    """Carries out the deltas of one broker's image."""

    config: BrokerConfig
    image: ClusterImage
    logs: LogManager
    replicas: ReplicaManager
    transactions: TransactionCoordinator
    groups: GroupCoordinator

    def publish(self, delta: ImageDelta, effects: Effects) -> None:
        """The image has this change; a crash before or within is repaired at the next start."""
        if delta is None:
            return
        if isinstance(delta, BrokerConfigsDelta):
            apply_dynamic(self.config, self.image)
            for topic in self.image.topics.values():
                self.logs.reconfigure(topic)
            return
        before, after = delta
        if after is not None:
            self._change(before, after, effects)
        elif before is not None:
            self.replicas.delete_topic(before, effects)
            deleted = [TopicPartition(before.name, p) for p in range(before.partition_count)]
            self.groups.on_partitions_deleted(deleted, effects)

    def load(self, topic: str, effects: Effects) -> None:
        """Load the coordinator of an internal topic from all its partitions."""
        for partition in range(self.image.partition_count(topic)):
            log = self.logs.get(topic, partition)
            if log is None:
                continue
            if topic == TRANSACTION_STATE_TOPIC:
                self.transactions.load(partition, log, effects)
            else:
                self.groups.load(partition, log, effects)

    def _change(self, before: Topic | None, after: Topic, effects: Effects) -> None:
        present = 0 if before is None else before.partition_count
        self.logs.create(after, range(present, after.partition_count), self.image, effects)
        if before is None and after.is_internal:
            self.load(after.name, effects)
        elif before is not None and before.configs != after.configs:
            self.logs.reconfigure(after)


def apply_dynamic(config: BrokerConfig, image: ClusterImage) -> list[str]:
    """Put what the image says of brokers in force; the names that cannot be used."""
    broker = str(config.integer("node.id"))
    return config.set_dynamic(
        image.broker_configs.get(ALL_BROKERS, {}), image.broker_configs.get(broker, {})
    )
