"""DescribeTopicPartitions (key 75): metadata in pages."""

from __future__ import annotations

from typing import Any

from broker_sim.core.controller import Topic
from broker_sim.core.effects import Request
from broker_sim.core.handlers._access import TOPIC, authorized_operations, topic_allowed
from broker_sim.core.handlers._lookup import (
    ZERO_ID,
    missing_topic_error,
    partition_fields,
    topic_fields,
)
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DESCRIBE_TOPIC_PARTITIONS].response
_Topic = _Response.DescribeTopicPartitionsResponseTopic

LIMIT_MAX = 2000
"""Kafka's max.request.partition.size.limit."""


def handle(parts: BrokerParts, request: Request) -> Message:
    """Topics in the order of their names, from the cursor on, up to the limit of partitions; those
    that may not be described come after them, or not at all where all are asked for."""
    message = request.message
    asked = {topic.name for topic in message.topics}
    names = sorted(asked or parts.image.topics)
    hidden = [name for name in names if not topic_allowed(parts, request, name)]
    if message.cursor is not None and not _is_valid(message.cursor, message.topics, names):
        topics, cursor = [_error(name, ErrorCode.INVALID_REQUEST) for name in names], None
        hidden = []
    else:
        unseen = frozenset(hidden)
        topics, cursor = _page(parts, message, [name for name in names if name not in unseen])
    for topic in topics:
        topic.topic_authorized_operations = authorized_operations(parts, request, TOPIC, topic.name)
    if asked:
        topics += [_error(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for name in hidden]
    following = None
    if cursor is not None:
        following = _Response.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    return _Response(topics=topics, next_cursor=following)


def _page(
    parts: BrokerParts, message: Any, names: list[str]
) -> tuple[list[Any], tuple[str, int] | None]:
    """The topics, and where the next page begins, if there is one."""
    cursor = message.cursor
    first = (cursor.topic_name, cursor.partition_index) if cursor is not None else ("", 0)
    left = max(1, min(message.response_partition_limit, LIMIT_MAX))
    topics: list[Any] = []
    for name in names:
        if name < first[0]:
            continue
        topic = parts.image.topics.get(name)
        if topic is None:
            topics.append(_error(name, missing_topic_error(name)))
            continue
        start = first[1] if name == first[0] else 0
        if left == 0:
            return topics, (name, start)
        end = min(topic.partition_count, start + left)
        topics.append(_topic(parts, topic, start, end))
        left -= max(0, end - start)
        if end < topic.partition_count:
            return topics, (name, end)
    return topics, None


def _is_valid(cursor: Any, asked: list[Any], names: list[str]) -> bool:
    """A cursor points into the topics asked for; among all topics its own may be gone since."""
    return cursor.partition_index >= 0 and (not asked or cursor.topic_name in names)


def _error(name: str, error: ErrorCode) -> Any:
    return _Topic(error_code=int(error), name=name, topic_id=ZERO_ID)


def _topic(parts: BrokerParts, topic: Topic, start: int, end: int) -> Any:
    made = _Topic.DescribeTopicPartitionsResponsePartition
    partitions = [
        made(
            eligible_leader_replicas=[],
            last_known_elr=[],
            **partition_fields(parts.image, topic, number),
        )
        for number in range(start, end)
    ]
    return _Topic(partitions=partitions, **topic_fields(topic))
