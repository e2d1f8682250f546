"""Metadata (key 3): brokers, topics, leaders; creates topics on demand when configured to."""

from __future__ import annotations

from typing import Any

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers.common import ZERO_ID
from broker_sim.core.metadata import Topic
from broker_sim.core.metadata.topics import TopicRefused, check_topic_name
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.METADATA].response

TOPIC_ID_VERSION = 12
"""Versions 10 and 11 have the field, but ask by name only (KAFKA-10774)."""


def handle(state: BrokerState, request: Request, effects: Effects) -> Message:
    """All topics for a null list (an empty one in version 0), else those asked for."""
    message = request.message
    wanted = message.topics
    if wanted is None or (request.api_version == 0 and not wanted):
        topics = [_topic(state, topic) for _, topic in sorted(state.image.topics.items())]
    elif request.api_version < TOPIC_ID_VERSION and any(map(_has_id_or_no_name, wanted)):
        topics = [_error(entry.name or "", ErrorCode.INVALID_REQUEST) for entry in wanted]
    else:
        may_create = request.api_version < 4 or bool(message.allow_auto_topic_creation)
        distinct = {(entry.name, entry.topic_id): entry for entry in wanted}
        topics = [_wanted(state, entry, may_create, effects) for entry in distinct.values()]
    return _Response(
        throttle_time_ms=0,
        brokers=[
            _Response.MetadataResponseBroker(
                node_id=state.node_id, host=state.endpoint.host, port=state.endpoint.port, rack=None
            )
        ],
        cluster_id=state.image.cluster_id,
        controller_id=state.node_id,
        topics=topics,
        error_code=0,
    )


def _has_id_or_no_name(entry: Any) -> bool:
    return entry.name is None or entry.topic_id not in (None, ZERO_ID)


def _wanted(state: BrokerState, entry: Any, may_create: bool, effects: Effects) -> Any:
    if entry.topic_id is not None and entry.topic_id != ZERO_ID:
        by_id = state.image.topic_of_id(entry.topic_id)
        if by_id is None:
            return _error(None, ErrorCode.UNKNOWN_TOPIC_ID, topic_id=entry.topic_id)
        return _topic(state, by_id)
    name = entry.name or ""
    known = state.image.topics.get(name)
    if known is not None:
        return _topic(state, known)
    try:
        check_topic_name(name)
    except TopicRefused as refused:
        return _error(name, refused.error)
    if not may_create or not state.config.boolean("auto.create.topics.enable"):
        return _error(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        planned = state.topics.plan(name)
    except TopicRefused:
        # Kafka creates it in the background, and so never says why it cannot.
        return _error(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    state.topics.create(planned, effects)
    return _topic(state, planned)


def _error(name: str | None, error: ErrorCode, *, topic_id: Any = ZERO_ID) -> Any:
    return _Response.MetadataResponseTopic(
        error_code=int(error),
        name=name,
        topic_id=topic_id,
        is_internal=False,
        partitions=[],
    )


def _topic(state: BrokerState, topic: Topic) -> Any:
    nodes = [state.node_id]
    topic_class = _Response.MetadataResponseTopic
    epoch = state.image.leader_epoch(topic)
    return topic_class(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            topic_class.MetadataResponsePartition(
                error_code=0,
                partition_index=partition,
                leader_id=state.node_id,
                leader_epoch=epoch,
                replica_nodes=nodes,
                isr_nodes=nodes,
                offline_replicas=[],
            )
            for partition in range(topic.partition_count)
        ],
    )
