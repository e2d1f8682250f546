"""Lookups for several handlers: find a topic by name or id, check a leader epoch."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from broker_sim.core.controller import ClusterImage, Topic
from broker_sim.core.controller.registrations import BrokerRegistration, PartitionRegistration
from broker_sim.core.controller.scram import Refusal
from broker_sim.core.controller.topic_rules import TopicRefused, check_topic_name
from broker_sim.core.effects import Effects, Request
from broker_sim.core.endpoint import Endpoint
from broker_sim.core.log import PartitionLog
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import Message

Handler = Callable[[BrokerParts, Request, Effects], Message | None]
"""Gives the answer, or None when it went into the effects, or will at a later step."""

ZERO_ID = uuid.UUID(int=0)


def refused_fields(refused: Refusal | TopicRefused | None) -> dict[str, Any]:
    """Error code and message of a result; those of success for None."""
    if refused is None:
        return {"error_code": int(ErrorCode.NONE), "error_message": None}
    return {"error_code": int(refused.error), "error_message": refused.message}


def missing_topic_error(name: str) -> ErrorCode:
    """Return why there is no topic of the name: the name may be invalid."""
    try:
        check_topic_name(name)
    except TopicRefused as refused:
        return refused.error
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def topic_fields(topic: Topic) -> dict[str, Any]:
    """Return what metadata answers say of a topic, beside its partitions."""
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
    }


def partition_fields(image: ClusterImage, topic: Topic, number: int) -> dict[str, Any]:
    """Return what metadata answers say of a partition, beside an error."""
    held = image.registration(topic, number)
    return {
        "partition_index": number,
        "leader_id": held.leader,
        "leader_epoch": held.leader_epoch,
        "replica_nodes": list(held.replicas),
        "isr_nodes": list(held.isr),
        "offline_replicas": [each for each in held.replicas if each not in image.brokers],
    }


def brokers_on(
    brokers: Mapping[int, BrokerRegistration], listener: str
) -> list[tuple[BrokerRegistration, Endpoint]]:
    """Return the brokers that clients of a listener can reach, each with its endpoint."""
    return [
        (broker, broker.endpoints[listener])
        for _, broker in sorted(brokers.items())
        if listener in broker.endpoints
    ]


def find_topic(
    parts: BrokerParts, name: str | None, topic_id: uuid.UUID | None
) -> tuple[Topic | None, ErrorCode]:
    """The topic a request names, by id when it has one; else None and why."""
    if topic_id is not None and topic_id != ZERO_ID:
        topic = parts.image.topic_of_id(topic_id)
        return topic, ErrorCode.NONE if topic else ErrorCode.UNKNOWN_TOPIC_ID
    topic = parts.image.topics.get(name or "")
    return topic, ErrorCode.NONE if topic else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def find_log(
    parts: BrokerParts, name: str | None, topic_id: uuid.UUID | None, partition: int
) -> tuple[PartitionLog | None, ErrorCode]:
    """The log of a partition that a request names, whether it is led here or not; else None and
    why."""
    topic, error = find_topic(parts, name, topic_id)
    if topic is None:
        return None, error
    found = parts.replicas.find(topic, partition)
    return (None, found) if isinstance(found, ErrorCode) else (found.log, ErrorCode.NONE)


def find_led(
    parts: BrokerParts,
    name: str | None,
    topic_id: uuid.UUID | None,
    partition: int,
    current_leader_epoch: int = -1,
    *,
    or_follower: bool = False,
) -> tuple[PartitionLog | None, ErrorCode]:
    """The log of a partition that this broker leads, or with `or_follower` just has, in the epoch
    that the request knows of (-1: of none, KIP-320); else None and why."""
    topic, error = find_topic(parts, name, topic_id)
    if topic is None:
        return None, error
    return led_log(parts, topic, partition, current_leader_epoch, or_follower=or_follower)


def led_log(
    parts: BrokerParts,
    topic: Topic,
    partition: int,
    current_leader_epoch: int,
    *,
    or_follower: bool = False,
) -> tuple[PartitionLog | None, ErrorCode]:
    """Find the log like `find_led`, in a topic that was found before."""
    found = parts.replicas.find(topic, partition)
    if isinstance(found, ErrorCode):
        return None, found
    error = found.check_leader(current_leader_epoch, or_follower=or_follower)
    return (found.log if error is ErrorCode.NONE else None), error


TELLS_LEADER = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""With these errors newer answers say who leads the partition (KIP-951)."""


def leader_of(parts: BrokerParts, topic: str, partition: int) -> PartitionRegistration | None:
    """The leader of a partition, for answers that say it; None where a broker is alone."""
    known = parts.image.topics.get(topic)
    if known is None or not 0 <= partition < len(known.partitions):
        return None
    return known.partitions[partition]


def endpoints_of(
    parts: BrokerParts, listener: str, leaders: Iterable[int], endpoint_class: Any
) -> list[Any]:
    """The `NodeEndpoint`s of an answer that names these leaders."""
    named = set(leaders)
    if not named:  # as in nearly every answer
        return []
    return [
        endpoint_class(
            node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
        )
        for broker, endpoint in brokers_on(parts.image.brokers, listener)
        if broker.broker_id in named
    ]
