"""CreateTopics (key 19)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker_sim.core.config import TOPIC_CONFIG, format_value, topic_config_value
from broker_sim.core.controller import Topic
from broker_sim.core.controller.acls import AclOperation
from broker_sim.core.controller.topic_changes import USE_DEFAULT
from broker_sim.core.controller.topic_rules import PARTITION_COUNT_MAX, TopicRefused
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import TOPIC, cluster_allowed, may, topic_allowed
from broker_sim.core.handlers._configs import topic_config_names, topic_config_source
from broker_sim.core.handlers._lookup import refused_fields
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.CREATE_TOPICS].response


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Each topic on its own; those that are accepted come to be together.

    Names are compared with topics that exist, not with one another, as in Kafka.
    """
    message = request.message
    counts = Counter(entry.name for entry in message.topics)
    once = [entry for entry in message.topics if counts[entry.name] == 1]
    if _partition_count(parts, once) > PARTITION_COUNT_MAX:
        error = TopicRefused(
            ErrorCode.POLICY_VIOLATION, f"over {PARTITION_COUNT_MAX} partitions in one request"
        )
        refused = [_refused(entry.name, error) for entry in message.topics]
        return _Response(topics=refused)
    results = []
    planned = []
    may_create = cluster_allowed(parts, request)
    for entry in once:
        try:
            if not may_create and not topic_allowed(parts, request, entry.name):
                raise TopicRefused(
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the topic may not be created"
                )
            topic = _plan_topic(parts, entry)
        except TopicRefused as refusal:
            results.append(_refused(entry.name, refusal))
            continue
        planned.append(topic)
        shows = may(parts, request, AclOperation.DESCRIBE_CONFIGS, TOPIC, topic.name)
        results.append(_created(parts, topic) if shows else _created_unseen(topic))
    if not message.validate_only:
        parts.topics.create_all(planned, effects)
    twice = TopicRefused(ErrorCode.INVALID_REQUEST, "the request names the topic more than once")
    results += [_refused(name, twice) for name, count in counts.items() if count > 1]
    return _Response(topics=results)


def _partition_count(parts: BrokerParts, entries: list[Any]) -> int:
    total = 0
    for entry in entries:
        if entry.assignments:
            total += len(entry.assignments)
        elif entry.num_partitions == USE_DEFAULT:
            total += parts.config.integer("num.partitions")
        else:
            total += max(0, entry.num_partitions)
    return total


def _plan_topic(parts: BrokerParts, entry: Any) -> Topic:
    return parts.topics.plan(
        entry.name,
        partition_count=entry.num_partitions,
        replication_factor=entry.replication_factor,
        assignments=[(a.partition_index, tuple(a.broker_ids)) for a in entry.assignments],
        configs={config.name: config.value for config in entry.configs},
    )


def _refused(name: str, refused: TopicRefused) -> Any:
    return _Response.CreatableTopicResult(name=name, configs=None, **refused_fields(refused))


def _created(parts: BrokerParts, topic: Topic) -> Any:
    result = _Response.CreatableTopicResult
    return result(
        name=topic.name,
        topic_id=topic.topic_id,
        error_message=None,
        num_partitions=topic.partition_count,
        replication_factor=len(topic.partitions[0].replicas) if topic.partitions else 1,
        configs=[
            result.CreatableTopicConfigs(
                name=name,
                value=format_value(topic_config_value(name, topic.configs, parts.config)),
                config_source=topic_config_source(name, topic.configs, parts.config),
            )
            for name in topic_config_names(topic.configs)
            if name in TOPIC_CONFIG
        ],
    )


def _created_unseen(topic: Topic) -> Any:
    """For who may create the topic and not see its configurations."""
    return _Response.CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_message=None,
        topic_config_error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    )
