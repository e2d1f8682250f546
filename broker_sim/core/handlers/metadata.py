"""Metadata (key 3): brokers, topics, leaders; creates topics on demand when configured to."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

from broker_sim.core.controller import Topic
from broker_sim.core.controller.acls import AclOperation
from broker_sim.core.controller.registrations import NO_LEADER
from broker_sim.core.controller.topic_rules import PARTITION_COUNT_MAX, TopicRefused
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import (
    CLUSTER,
    TOPIC,
    authorized_operations,
    may,
    topic_allowed,
)
from broker_sim.core.handlers._lookup import (
    ZERO_ID,
    brokers_on,
    missing_topic_error,
    partition_fields,
    topic_fields,
)
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.METADATA].response

_REFUSED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
TOPIC_ID_VERSION = 12
"""Versions 10 and 11 have the field, but ask by name only (KAFKA-10774)."""


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Describe all topics for a null list (an empty list in version 0), else the topics asked for.

    If the request has any id, only ids count, as in Kafka; a topic is answered once.
    """
    message = request.message
    wanted = message.topics
    # Choose the topics: all, or by id, or by name; a missing name may create its topic.
    if wanted is None or (request.api_version == 0 and not wanted):
        topics = [
            _topic(parts, topic)
            for name, topic in sorted(parts.image.topics.items())
            if topic_allowed(parts, request, name)
        ]
    elif request.api_version < TOPIC_ID_VERSION and any(map(_has_id_or_no_name, wanted)):
        topics = [_error(entry.name or "", ErrorCode.INVALID_REQUEST) for entry in wanted]
    elif ids := {e.topic_id: None for e in wanted if e.topic_id not in (None, ZERO_ID)}:
        topics = [_topic_of_id(parts, request, topic_id) for topic_id in ids]
    else:
        names = list(dict.fromkeys(entry.name or "" for entry in wanted))
        allowed = {name for name in names if topic_allowed(parts, request, name)}
        if request.api_version < 4 or message.allow_auto_topic_creation:
            wanted_names = [name for name in names if name in allowed]
            allowed -= _create_missing(parts, request, wanted_names, effects)
        topics = [
            _topic_of_name(parts, name)
            if name in allowed
            else _error(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            for name in names
        ]
    # Add the rights to each topic that the client may see.
    if message.include_topic_authorized_operations:
        for topic in topics:
            if topic.name is not None and topic.error_code != _REFUSED:
                topic.topic_authorized_operations = authorized_operations(
                    parts, request, TOPIC, topic.name
                )
    # Describe the brokers by their addresses on the listener that the client uses.
    answer = _Response(
        brokers=[
            _Response.MetadataResponseBroker(
                node_id=broker.broker_id, host=at.host, port=at.port, rack=broker.rack
            )
            for broker, at in brokers_on(parts.image.brokers, request.listener)
        ],
        cluster_id=parts.image.cluster_id,
        controller_id=parts.membership.controller_id,
        topics=topics,
    )
    if message.include_cluster_authorized_operations:
        answer.cluster_authorized_operations = authorized_operations(parts, request, CLUSTER)
    return answer


def _has_id_or_no_name(entry: Any) -> bool:
    return entry.name is None or entry.topic_id not in (None, ZERO_ID)


def _create_missing(
    parts: BrokerParts, request: Request, names: list[str], effects: Effects
) -> set[str]:
    """Create the topics that are not there, in one step, as Kafka does: what is too much for one
    CreateTopics creates nothing. The answer never says why, for Kafka creates them later.

    Returns those that who asks may not create.
    """
    if not parts.config.boolean("auto.create.topics.enable"):
        return set()
    missing = [name for name in names if name not in parts.image.topics]
    refused: set[str] = set()
    if not may(parts, request, AclOperation.CREATE, CLUSTER):
        refused = {n for n in missing if not may(parts, request, AclOperation.CREATE, TOPIC, n)}
        missing = [name for name in missing if name not in refused]
    if len(missing) > PARTITION_COUNT_MAX:
        return refused
    planned = []
    for name in missing:
        # The answer then says that the topic is missing, or has an invalid name, as Kafka's does.
        with contextlib.suppress(TopicRefused):
            planned.append(parts.topics.plan(name))
    if sum(topic.partition_count for topic in planned) <= PARTITION_COUNT_MAX:
        parts.topics.create_on_demand(planned, effects)
    return refused


def _topic_of_id(parts: BrokerParts, request: Request, topic_id: uuid.UUID) -> Any:
    topic = parts.image.topic_of_id(topic_id)
    if topic is None:
        return _error(None, ErrorCode.UNKNOWN_TOPIC_ID, topic_id=topic_id)
    if not topic_allowed(parts, request, topic.name):
        return _error(None, ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic_id=topic_id)
    return _topic(parts, topic)


def _topic_of_name(parts: BrokerParts, name: str) -> Any:
    topic = parts.image.topics.get(name)
    return _error(name, missing_topic_error(name)) if topic is None else _topic(parts, topic)


def _error(name: str | None, error: ErrorCode, *, topic_id: Any = ZERO_ID) -> Any:
    return _Response.MetadataResponseTopic(error_code=int(error), name=name, topic_id=topic_id)


def _topic(parts: BrokerParts, topic: Topic) -> Any:
    topic_class = _Response.MetadataResponseTopic
    partitions = []
    for number in range(topic.partition_count):
        fields = partition_fields(parts.image, topic, number)
        is_led = fields["leader_id"] != NO_LEADER
        error = ErrorCode.NONE if is_led else ErrorCode.LEADER_NOT_AVAILABLE
        partitions.append(topic_class.MetadataResponsePartition(error_code=int(error), **fields))
    return topic_class(partitions=partitions, **topic_fields(topic))
