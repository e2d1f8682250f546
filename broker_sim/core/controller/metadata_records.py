"""Records of the metadata log, which `ClusterImage.replay` applies: a function for each type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker_sim.core.config import ConfigValue
from broker_sim.core.controller.acls import Acl
from broker_sim.core.controller.credentials import ScramCredential, ScramMechanism
from broker_sim.core.controller.image import MetadataRecord, QuotaEntity, Topic
from broker_sim.core.controller.registrations import BrokerRegistration, PartitionRegistration


def cluster_record(cluster_id: str) -> MetadataRecord:
    """Return the record: the cluster has this id. It is the first record of a metadata log."""
    return {"type": "cluster", "cluster_id": cluster_id}


def broker_start_record(broker_epoch: int) -> MetadataRecord:
    """Return the record: the broker started for the `broker_epoch`-th time, from 0."""
    return {"type": "broker-start", "broker_epoch": broker_epoch}


def broker_configs_record(broker: str, configs: Mapping[str, str]) -> MetadataRecord:
    """Return the record that replaces the configurations of a broker; "" is for all brokers."""
    return {"type": "broker-configs", "broker": broker, "configs": dict(configs)}


def group_configs_record(group_id: str, configs: Mapping[str, ConfigValue]) -> MetadataRecord:
    """Return the record that replaces the configurations of a group."""
    return {"type": "group-configs", "group": group_id, "configs": dict(configs)}


def client_quotas_record(entity: QuotaEntity, quotas: Mapping[str, float]) -> MetadataRecord:
    """Return the record that replaces the quotas of an entity."""
    return {"type": "client-quotas", "entity": dict(entity), "quotas": dict(quotas)}


def topic_record(topic: Topic) -> MetadataRecord:
    """Return the record: the topic exists from here on."""
    made = [partition.record_fields() for partition in topic.partitions]
    return ({"registrations": made} if made else {}) | {
        "type": "topic",
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "partitions": topic.partition_count,
        "configs": dict(topic.configs),
        "created_epoch": topic.created_epoch,
    }


def partitions_record(
    topic: Topic, partition_count: int, new: Sequence[PartitionRegistration] = ()
) -> MetadataRecord:
    """Return the record: the topic has more partitions from here on; `new` are those of a
    cluster."""
    made = [partition.record_fields() for partition in new]
    return ({"registrations": made} if made else {}) | {
        "type": "topic-changed",
        "topic_id": str(topic.topic_id),
        "partitions": partition_count,
    }


def partition_changed_record(
    topic: Topic, partition: int, registration: PartitionRegistration, *, unclean: bool = False
) -> MetadataRecord:
    """Return the record: a partition has other replicas, another leader or another ISR.

    `unclean`: no broker of the ISR is in the new one, so what was committed may be lost. Kafka's
    record says so by its leader recovery state.
    """
    return ({"unclean": True} if unclean else {}) | {
        "type": "partition-changed",
        "topic_id": str(topic.topic_id),
        "partition": partition,
        "registration": registration.record_fields(),
    }


def broker_registered_record(broker: BrokerRegistration) -> MetadataRecord:
    """Return the record: the broker is up from here on."""
    return {"type": "broker-registered", **broker.record_fields()}


def broker_fenced_record(broker_id: int) -> MetadataRecord:
    """Return the record: the broker is not up any more, and stays registered."""
    return {"type": "broker-fenced", "broker": broker_id}


def configs_record(topic: Topic, configs: Mapping[str, ConfigValue]) -> MetadataRecord:
    """Return the record that replaces the topic's own configurations."""
    return {"type": "topic-changed", "topic_id": str(topic.topic_id), "configs": dict(configs)}


def topic_deleted_record(topic: Topic) -> MetadataRecord:
    """Return the record: the topic is gone; its directories go afterwards.

    A broker that is killed before that sets them aside at its next start (`-stray`), as in Kafka:
    the metadata may be older than the directories.
    """
    return {"type": "topic-deleted", "topic_id": str(topic.topic_id)}


def producer_ids_record(next_producer_id: int) -> MetadataRecord:
    """Return the record: producer ids below `next_producer_id` may have been handed out."""
    return {"type": "producer-ids", "next_producer_id": next_producer_id}


def scram_record(
    user: str, mechanism: ScramMechanism, credential: ScramCredential
) -> MetadataRecord:
    """Return the record: the user logs in by this credential from here on."""
    fields = {"type": "scram", "user": user, "mechanism": mechanism.name}
    return {**fields, **credential.record_fields()}


def scram_removed_record(user: str, mechanism: ScramMechanism) -> MetadataRecord:
    """Return the record: the user does not log in by this mechanism any more."""
    return {"type": "scram-removed", "user": user, "mechanism": mechanism.name}


def acl_record(acl: Acl) -> MetadataRecord:
    """Return the record: the ACL holds from here on."""
    return {"type": "acl", **acl.record_fields()}


def acl_removed_record(acl: Acl) -> MetadataRecord:
    """Return the record: the ACL does not hold any more."""
    return {"type": "acl-removed", **acl.record_fields()}
