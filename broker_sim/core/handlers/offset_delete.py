"""OffsetDelete (key 47): forget committed offsets of a group."""

from __future__ import annotations

from broker_sim.core.effects import Effects, Request
from broker_sim.core.parts import BrokerParts
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message
from txnlog_spark.wire.topics import TopicPartition

_Response = APIS[ApiKey.OFFSET_DELETE].response
_Topic = _Response.OffsetDeleteResponseTopic


def handle(parts: BrokerParts, request: Request, effects: Effects) -> Message:
    """Refused for topics that the group is subscribed to."""
    message = request.message
    partitions = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in message.topics
        for partition in topic.partitions
    ]
    known = [p for p in partitions if parts.logs.get(*p) is not None]
    result = parts.groups.offset_delete(message.group_id, known, effects)
    if result.error is not ErrorCode.NONE:
        return _Response(error_code=int(result.error), throttle_time_ms=0, topics=[])
    errors = dict.fromkeys(partitions, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) | result.partitions
    return _Response(
        error_code=0,
        throttle_time_ms=0,
        topics=[
            _Topic(
                name=topic.name,
                partitions=[
                    _Topic.OffsetDeleteResponsePartition(
                        partition_index=index,
                        error_code=int(errors[TopicPartition(topic.name, index)]),
                    )
                    for index in (partition.partition_index for partition in topic.partitions)
                ],
            )
            for topic in message.topics
        ],
    )
