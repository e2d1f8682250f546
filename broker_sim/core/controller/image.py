"""The cluster image: topics, their configurations, broker epoch, producer-id blocks.

Rules for this file: `ClusterImage.replay` is the only code that changes an image, live and at
recovery alike, but for `restore`, which makes one of a snapshot by it. Records are plain JSON
objects with a `type`; a record of an unknown type is an error, never skipped, because it was
written by a newer version that meant something by it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from broker_sim.core.config import ConfigValue
from broker_sim.core.controller.acls import Acl, Acls
from broker_sim.core.controller.credentials import ScramCredential, ScramMechanism
from broker_sim.core.controller.registrations import (
    BrokerRegistration,
    PartitionRegistration,
    alone,
)
from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.topic_partition import INTERNAL_TOPICS, TopicPartition

MetadataRecord = Mapping[str, Any]
QuotaEntity = tuple[tuple[str, str | None], ...]
"""Clients that a quota is for: types ("user", "client-id", "ip") and names; None is the default."""


def quota_entity(names: Mapping[str, str | None]) -> QuotaEntity:
    """Return the entity of these names by type, whatever their order."""
    return tuple(sorted(names.items()))


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. `configs` holds its own configurations; `created_epoch` is the broker epoch then.

    `partitions` is empty where a broker is alone: it leads all of them, as their only replica.
    """

    name: str
    topic_id: uuid.UUID
    partition_count: int
    configs: Mapping[str, ConfigValue]
    created_epoch: int
    partitions: tuple[PartitionRegistration, ...] = ()

    @property
    def is_internal(self) -> bool:
        """Written by the coordinators; clients may only read it."""
        return self.name in INTERNAL_TOPICS


class ClusterDelta(NamedTuple):
    """The cluster has its id."""

    cluster_id: str


class TopicDelta(NamedTuple):
    """A topic before and after a record; None where it did not exist."""

    before: Topic | None
    after: Topic | None


class PartitionDelta(NamedTuple):
    """A partition's registration before and after a record."""

    topic: Topic
    partition: int
    before: PartitionRegistration
    after: PartitionRegistration


class BrokersDelta(NamedTuple):
    """A broker before and after a record; None where it was, or is, not up."""

    before: BrokerRegistration | None
    after: BrokerRegistration | None


class BrokerConfigsDelta(NamedTuple):
    """Change of the configurations that are set for brokers."""

    broker: str


ImageDelta = ClusterDelta | TopicDelta | PartitionDelta | BrokersDelta | BrokerConfigsDelta | None
"""Meaning of a record for the part of the broker that carries it out; None without a meaning."""


@dataclass(slots=True)
class ClusterImage:
    """Metadata of the cluster, as of the last record of the metadata log."""

    node_id: int
    """The broker whose image this is."""
    cluster_id: str = ""
    brokers: dict[int, BrokerRegistration] = field(default_factory=dict)
    """Brokers that are up, by id."""
    fenced: dict[int, BrokerRegistration] = field(default_factory=dict)
    """Brokers that are registered and not up, by id. They keep replicas and get new replicas."""
    broker_epoch: int = -1
    """Starts of this broker so far, from 0. Leader epochs follow from it."""
    next_producer_id: int = 0
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Configurations set while brokers ran, as text, by broker id; "" is for all brokers."""
    topics: dict[str, Topic] = field(default_factory=dict)
    names: dict[uuid.UUID, str] = field(default_factory=dict)
    scram_credentials: dict[tuple[str, ScramMechanism], ScramCredential] = field(
        default_factory=dict
    )
    """By user and mechanism."""
    acls: Acls = field(default_factory=Acls)
    group_configs: dict[str, dict[str, ConfigValue]] = field(default_factory=dict)
    """Configurations of groups, by group id; groups without any are left out."""
    client_quotas: dict[QuotaEntity, dict[str, float]] = field(default_factory=dict)
    """Quotas by key, such as producer_byte_rate; entities without any are left out."""

    def topic_of_id(self, topic_id: uuid.UUID) -> Topic | None:
        """The topic with this id, None when there is none (any more)."""
        name = self.names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions; 0 for a topic that does not exist."""
        known = self.topics.get(topic)
        return 0 if known is None else known.partition_count

    def has_partition(self, place: TopicPartition) -> bool:
        """True if the partition exists, on whichever brokers its replicas are."""
        return 0 <= place.partition < self.partition_count(place.topic)

    def leader_epoch(self, topic: Topic) -> int:
        """Rises by one with each start of the broker, as each is a new leader (KIP-101)."""
        return self.broker_epoch - topic.created_epoch

    def registration(self, topic: Topic, partition: int) -> PartitionRegistration:
        """The replicas and the leader of a partition of the topic."""
        if topic.partitions:
            return topic.partitions[partition]
        return alone(self.node_id, self.leader_epoch(topic))

    @property
    def registered(self) -> dict[int, BrokerRegistration]:
        """Brokers that may have replicas, by id: up and fenced."""
        return self.brokers | self.fenced

    def is_active(self, broker: int) -> bool:
        """True if the broker may lead partitions and be in an ISR."""
        registration = self.brokers.get(broker)
        return registration is not None and not registration.in_controlled_shutdown

    def hosted(self, topic: Topic) -> Sequence[int]:
        """The partitions of the topic that have a replica on this broker."""
        if not topic.partitions:
            return range(topic.partition_count)
        held = enumerate(topic.partitions)
        return [number for number, each in held if self.node_id in each.replicas]

    def replay(self, record: MetadataRecord) -> ImageDelta:
        """Apply one record."""
        kind = record["type"]
        apply = _REPLAY.get(kind)
        check(apply is not None, "a metadata record of an unknown type", type=kind)
        return None if apply is None else apply(self, record)

    def restore(self, records: Iterable[MetadataRecord]) -> list[ImageDelta]:
        """Become what these records come to, whatever the image was: those of a snapshot.

        What has changed by that, what is gone first: the records in between are not known.
        """
        after = ClusterImage(self.node_id)
        for record in records:
            after.replay(record)
        deltas = list(_changes(self, after))
        self.acls.become(after.acls)
        for name in _RESTORED:
            setattr(self, name, getattr(after, name))
        return deltas

    def _replay_cluster(self, record: MetadataRecord) -> ImageDelta:
        self.cluster_id = record["cluster_id"]
        return ClusterDelta(self.cluster_id)

    def _replay_broker_start(self, record: MetadataRecord) -> ImageDelta:
        self.broker_epoch = record["broker_epoch"]
        return None

    def _replay_broker_configs(self, record: MetadataRecord) -> ImageDelta:
        self.broker_configs[record["broker"]] = dict(record["configs"])
        return BrokerConfigsDelta(record["broker"])

    def _replay_group_configs(self, record: MetadataRecord) -> ImageDelta:
        self.group_configs.pop(record["group"], None)
        if record["configs"]:
            self.group_configs[record["group"]] = dict(record["configs"])
        return None

    def _replay_client_quotas(self, record: MetadataRecord) -> ImageDelta:
        entity = quota_entity(record["entity"])
        self.client_quotas.pop(entity, None)
        if record["quotas"]:
            self.client_quotas[entity] = dict(record["quotas"])
        return None

    def _replay_topic(self, record: MetadataRecord) -> ImageDelta:
        topic_id = uuid.UUID(record["topic_id"])
        name = record["name"]
        check(name not in self.topics, "a topic was created twice", name=name)
        partitions = tuple(map(PartitionRegistration.of_record, record.get("registrations", ())))
        self.topics[name] = Topic(
            name,
            topic_id,
            record["partitions"],
            record["configs"],
            record["created_epoch"],
            partitions,
        )
        self.names[topic_id] = name
        return TopicDelta(None, self.topics[name])

    def _replay_topic_changed(self, record: MetadataRecord) -> ImageDelta:
        topic = self.topics[self.names[uuid.UUID(record["topic_id"])]]
        self.topics[topic.name] = replace(
            topic,
            partition_count=record.get("partitions", topic.partition_count),
            configs=record.get("configs", topic.configs),
            partitions=(
                *topic.partitions,
                *map(PartitionRegistration.of_record, record.get("registrations", ())),
            ),
        )
        return TopicDelta(topic, self.topics[topic.name])

    def _replay_partition_changed(self, record: MetadataRecord) -> ImageDelta:
        topic = self.topics[self.names[uuid.UUID(record["topic_id"])]]
        number = record["partition"]
        before = topic.partitions[number]
        after = PartitionRegistration.of_record(record["registration"])
        epochs = before.partition_epoch, after.partition_epoch
        check(epochs[0] + 1 == epochs[1], "a partition change out of order", record=record)
        partitions = (*topic.partitions[:number], after, *topic.partitions[number + 1 :])
        self.topics[topic.name] = replace(topic, partitions=partitions)
        return PartitionDelta(self.topics[topic.name], number, before, after)

    def _replay_broker_registered(self, record: MetadataRecord) -> ImageDelta:
        broker = BrokerRegistration.of_record(record)
        before = self.brokers.get(broker.broker_id)
        self.brokers[broker.broker_id] = broker
        self.fenced.pop(broker.broker_id, None)
        return BrokersDelta(before, broker)

    def _replay_broker_fenced(self, record: MetadataRecord) -> ImageDelta:
        broker = self.brokers.pop(record["broker"])
        self.fenced[broker.broker_id] = broker
        return BrokersDelta(broker, None)

    def _replay_topic_deleted(self, record: MetadataRecord) -> ImageDelta:
        return TopicDelta(self.topics.pop(self.names.pop(uuid.UUID(record["topic_id"]))), None)

    def _replay_acl(self, record: MetadataRecord) -> ImageDelta:
        self.acls.add(Acl.of_record(record))
        return None

    def _replay_acl_removed(self, record: MetadataRecord) -> ImageDelta:
        self.acls.remove(Acl.of_record(record))
        return None

    def _replay_scram(self, record: MetadataRecord) -> ImageDelta:
        key = record["user"], ScramMechanism[record["mechanism"]]
        self.scram_credentials[key] = ScramCredential.of_record(record)
        return None

    def _replay_scram_removed(self, record: MetadataRecord) -> ImageDelta:
        del self.scram_credentials[record["user"], ScramMechanism[record["mechanism"]]]
        return None

    def _replay_producer_ids(self, record: MetadataRecord) -> ImageDelta:
        self.next_producer_id = record["next_producer_id"]
        return None


_RESTORED = (
    "cluster_id",
    "brokers",
    "fenced",
    "next_producer_id",
    "broker_configs",
    "group_configs",
    "client_quotas",
    "topics",
    "names",
    "scram_credentials",
)
"""Fields that a snapshot has, beside the ACLs, whose object others hold. Starts of a broker are
counted only where it is alone, and there are no snapshots there."""


def _changes(before: ClusterImage, after: ClusterImage) -> Iterator[ImageDelta]:
    if before.cluster_id != after.cluster_id:
        yield ClusterDelta(after.cluster_id)
    for topic in before.topics.values():
        if topic.topic_id not in after.names:
            yield TopicDelta(topic, None)
    for topic in after.topics.values():
        yield from _topic_changes(before.topic_of_id(topic.topic_id), topic)
    for broker in sorted({*before.brokers, *after.brokers}):
        known, found = before.brokers.get(broker), after.brokers.get(broker)
        if known != found:
            yield BrokersDelta(known, found)
    for name in sorted({*before.broker_configs, *after.broker_configs}):
        if before.broker_configs.get(name, {}) != after.broker_configs.get(name, {}):
            yield BrokerConfigsDelta(name)


def _topic_changes(before: Topic | None, after: Topic) -> Iterator[ImageDelta]:
    if before is None:
        yield TopicDelta(None, after)
        return
    if (before.partition_count, before.configs) != (after.partition_count, after.configs):
        yield TopicDelta(before, after)
    for number, held in enumerate(before.partitions):
        if held != after.partitions[number]:
            yield PartitionDelta(after, number, held, after.partitions[number])


_REPLAY = {
    "cluster": ClusterImage._replay_cluster,
    "broker-start": ClusterImage._replay_broker_start,
    "broker-configs": ClusterImage._replay_broker_configs,
    "group-configs": ClusterImage._replay_group_configs,
    "client-quotas": ClusterImage._replay_client_quotas,
    "topic": ClusterImage._replay_topic,
    "topic-changed": ClusterImage._replay_topic_changed,
    "topic-deleted": ClusterImage._replay_topic_deleted,
    "partition-changed": ClusterImage._replay_partition_changed,
    "broker-registered": ClusterImage._replay_broker_registered,
    "broker-fenced": ClusterImage._replay_broker_fenced,
    # As it was called before brokers that are down stayed registered.
    "broker-unregistered": ClusterImage._replay_broker_fenced,
    "producer-ids": ClusterImage._replay_producer_ids,
    "acl": ClusterImage._replay_acl,
    "acl-removed": ClusterImage._replay_acl_removed,
    "scram": ClusterImage._replay_scram,
    "scram-removed": ClusterImage._replay_scram_removed,
}
