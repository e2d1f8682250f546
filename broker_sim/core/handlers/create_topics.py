"""CreateTopics (key 19)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker_sim.core.config import (
    TOPIC_CONFIG,
    ConfigSource,
    format_value,
    topic_config_sources,
    topic_config_value,
)
from broker_sim.core.effects import Effects, Request
from broker_sim.core.metadata import Topic
from broker_sim.core.metadata.topics import TopicRefused
from broker_sim.core.state import BrokerState
from broker_sim.core.topic_admin import USE_DEFAULT
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.CREATE_TOPICS].response


def handle(state: BrokerState, request: Request, effects: Effects) -> Message:
    """Each topic on its own: one that is refused does not stop the others."""
    message = request.message
    counts = Counter(entry.name for entry in message.topics)
    results = []
    for entry in message.topics:
        if counts[entry.name] > 1:
            error = TopicRefused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            results.append(_refused(entry.name, error))
            continue
        try:
            topic = _plan(state, entry)
        except TopicRefused as refused:
            results.append(_refused(entry.name, refused))
            continue
        if not message.validate_only:
            state.topics.create(topic, effects)
        results.append(_created(state, topic))
    return _Response(throttle_time_ms=0, topics=results)


def _plan(state: BrokerState, entry: Any) -> Topic:
    partition_count, replication_factor = entry.num_partitions, entry.replication_factor
    if entry.assignments:
        if partition_count != USE_DEFAULT or replication_factor != USE_DEFAULT:
            raise TopicRefused(
                ErrorCode.INVALID_REQUEST,
                "Both numPartitions or replicationFactor and assignments were set.",
            )
        partition_count, replication_factor = _assigned(state, entry.assignments), 1
    return state.topics.plan(
        entry.name,
        partition_count=partition_count,
        replication_factor=replication_factor,
        configs={config.name: config.value for config in entry.configs},
    )


def _assigned(state: BrokerState, assignments: list[Any]) -> int:
    indexes = sorted(a.partition_index for a in assignments)
    replicas = {tuple(a.broker_ids) for a in assignments}
    if indexes != list(range(len(indexes))) or replicas != {(state.node_id,)}:
        raise TopicRefused(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"assignments must name partitions from 0 without gaps, each on broker {state.node_id}",
        )
    return len(indexes)


def _refused(name: str, refused: TopicRefused) -> Any:
    return _Response.CreatableTopicResult(
        name=name, error_code=int(refused.error), error_message=refused.message, configs=None
    )


def _created(state: BrokerState, topic: Topic) -> Any:
    result = _Response.CreatableTopicResult
    return result(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=0,
        error_message=None,
        num_partitions=topic.partition_count,
        replication_factor=1,
        configs=[
            result.CreatableTopicConfigs(
                name=name,
                value=format_value(topic_config_value(name, topic.configs, state.config)),
                read_only=False,
                config_source=config_source(state, topic, name),
                is_sensitive=False,
            )
            for name, entry in TOPIC_CONFIG.items()
            if not entry.internal
        ],
    )


def config_source(state: BrokerState, topic: Topic, name: str) -> int:
    """Where a topic's effective value comes from."""
    found = topic_config_sources(name, topic.configs, state.config)
    return int(found[0][0] if found else ConfigSource.DEFAULT)
