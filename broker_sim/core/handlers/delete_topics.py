"""DeleteTopics (key 20): by name, or by id from version 6."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

from broker_sim.core.controller import Topic
from broker_sim.core.controller.acls import AclOperation
from broker_sim.core.controller.topic_rules import TopicRefused
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import TOPIC, cluster_allowed, may, topic_allowed
from broker_sim.core.handlers._lookup import ZERO_ID, find_topic, refused_fields
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DELETE_TOPICS].response
_FIRST_VERSION_WITH_IDS = 6
_NOT_ALLOWED = TopicRefused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the topic may not be deleted")
_FIRST_VERSION_WITH_DELETION_DISABLED = 3


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Each topic on its own; committed offsets of its partitions go with it."""
    message = request.message
    if request.api_version >= _FIRST_VERSION_WITH_IDS:
        wanted = [(entry.name, entry.topic_id or ZERO_ID) for entry in message.topics]
    else:
        wanted = [(name, ZERO_ID) for name in message.topic_names]
    counts = Counter(wanted)
    named = {name for name, topic_id in counts if name is not None}
    results = []
    for (name, topic_id), count in counts.items():
        topic, refusal = None, None
        try:
            topic = _topic(parts, request, name, topic_id, count)
            if not _may(parts, request, topic.name, seen=False):
                if name is not None or not _may(parts, request, topic.name, seen=True):
                    topic = None
                raise _NOT_ALLOWED
            if name is None and topic.name in named:
                continue  # answered with its name: the two are one topic
            if name is not None and counts[None, topic.topic_id]:
                raise TopicRefused(
                    ErrorCode.INVALID_REQUEST, "the request names the topic by its id, too"
                )
            parts.topics.delete(topic, effects)
        except TopicRefused as refused:
            refusal = refused
        results.append(_result(name, topic_id, topic, refusal))
    return _Response(responses=results)


def _topic(
    parts: BrokerParts, request: Request, name: str | None, topic_id: uuid.UUID, count: int
) -> Topic:
    """The topic to delete. Raises TopicRefused, in the order of Kafka's `ControllerApis`."""
    if not parts.config.boolean("delete.topic.enable"):
        error = ErrorCode.TOPIC_DELETION_DISABLED
        if request.api_version < _FIRST_VERSION_WITH_DELETION_DISABLED:
            error = ErrorCode.INVALID_REQUEST
        raise TopicRefused(error, "delete.topic.enable is false")
    reason = None
    if name is None and topic_id == ZERO_ID:
        reason = "neither a name nor an id of a topic is given"
    elif name is not None and topic_id != ZERO_ID:
        reason = "both a name and an id of a topic are given"
    elif count > 1:
        reason = "the request names the topic more than once"
    if reason is not None:
        raise TopicRefused(ErrorCode.INVALID_REQUEST, reason)
    if name is not None and not _may(parts, request, name, seen=True):
        raise _NOT_ALLOWED
    topic, error = find_topic(parts, name, topic_id)
    if topic is None:
        raise TopicRefused(error, f"no topic {name!r}" if name else f"no topic of id {topic_id}")
    return topic


def _may(parts: BrokerParts, request: Request, name: str, *, seen: bool) -> bool:
    """True if the principal may delete the topic; with `seen`, if it may know of the topic."""
    if cluster_allowed(parts, request):
        return True
    if seen:
        return may(parts, request, AclOperation.DESCRIBE, TOPIC, name)
    return topic_allowed(parts, request, name)


def _result(
    name: str | None, topic_id: uuid.UUID, topic: Topic | None, refused: TopicRefused | None
) -> Any:
    return _Response.DeletableTopicResult(
        name=name if topic is None else topic.name,
        topic_id=topic_id if topic is None else topic.topic_id,
        **refused_fields(refused),
    )
