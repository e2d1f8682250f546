"""CreatePartitions (key 37): grow a topic."""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker_sim.core.controller.topic_rules import TopicRefused
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import topic_allowed
from broker_sim.core.handlers._lookup import refused_fields
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.CREATE_PARTITIONS].response
_Result = _Response.CreatePartitionsTopicResult


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Each topic on its own; one that is named twice does not grow at all."""
    message = request.message
    counts = Counter(entry.name for entry in message.topics)
    twice = TopicRefused(ErrorCode.INVALID_REQUEST, "the request names the topic more than once")
    results = [
        _Result(name=name, **refused_fields(twice)) for name, count in counts.items() if count > 1
    ]
    for entry in message.topics:
        if counts[entry.name] > 1:
            continue
        refusal = None
        try:
            if not topic_allowed(parts, request, entry.name):
                raise TopicRefused(
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the topic may not be altered"
                )
            _grow_topic(parts, entry, effects, validate_only=bool(message.validate_only))
        except TopicRefused as refused:
            refusal = refused
        results.append(_Result(name=entry.name, **refused_fields(refusal)))
    return _Response(results=results)


def _grow_topic(parts: BrokerParts, entry: Any, effects: Effects, *, validate_only: bool) -> None:
    topic = parts.image.topics.get(entry.name)
    if topic is None:
        raise TopicRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {entry.name!r}")
    assignments = entry.assignments
    replicas = None if assignments is None else [tuple(a.broker_ids) for a in assignments]
    new = parts.topics.plan_more_partitions(topic, entry.count, replicas)
    if not validate_only:
        parts.topics.add_partitions(topic, entry.count, new, effects)
