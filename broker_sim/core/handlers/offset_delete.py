"""OffsetDelete (key 47): forget committed offsets of a group."""

from __future__ import annotations

from typing import Any

from broker_sim.core.effects import Effects, Request
from broker_sim.core.group.requests import OffsetDeleteResult, OffsetErrors
from broker_sim.core.handlers._access import group_allowed, topic_allowed
from broker_sim.core.parts import BrokerParts, respond
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.topic_partition import TopicPartition

_Response = APIS[ApiKey.OFFSET_DELETE].response
_Topic = _Response.OffsetDeleteResponseTopic


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """Refused for topics that the group is subscribed to."""
    message = request.message
    partitions = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in message.topics
        for partition in topic.partitions
    ]
    allowed = {t.name for t in message.topics if topic_allowed(parts, request, t.name)}
    known = [p for p in partitions if p.topic in allowed and parts.image.has_partition(p)]

    def answer(result: OffsetDeleteResult, effects: Effects) -> None:
        errors = {
            p: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if p.topic in allowed
            else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            for p in partitions
        } | result.partitions
        topics = [] if result.error is not ErrorCode.NONE else message.topics
        response = _Response(
            error_code=int(result.error), topics=[_topic(topic, errors) for topic in topics]
        )
        respond(request, response, effects)

    if not group_allowed(parts, request, message.group_id):
        return answer(OffsetDeleteResult(ErrorCode.GROUP_AUTHORIZATION_FAILED), effects)
    return parts.groups.offset_delete(message.group_id, known, answer, effects)


def _topic(topic: Any, errors: OffsetErrors) -> Any:
    indexes = [partition.partition_index for partition in topic.partitions]
    return _Topic(
        name=topic.name,
        partitions=[
            _Topic.OffsetDeleteResponsePartition(
                partition_index=index, error_code=int(errors[TopicPartition(topic.name, index)])
            )
            for index in indexes
        ],
    )
