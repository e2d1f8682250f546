"""OffsetForLeaderEpoch (key 23): where an epoch ended, to find a truncation (KIP-101, KIP-320)."""

from __future__ import annotations

from typing import Any

from broker_sim.core.effects import Request
from broker_sim.core.handlers._access import cluster_allowed, topic_allowed
from broker_sim.core.handlers._lookup import find_led
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.OFFSET_FOR_LEADER_EPOCH].response
_Topic = _Response.OffsetForLeaderTopicResult

UNDEFINED = (-1, -1)


def handle(parts: BrokerParts, request: Request) -> Message:
    """The largest epoch not above the one asked for, and its end offset (exclusive)."""
    sees_all = cluster_allowed(parts, request)
    topics = []
    for topic in request.message.topics:
        allowed = sees_all or topic_allowed(parts, request, topic.topic)
        ends = [_end(parts, topic.topic, p) if allowed else _refused(p) for p in topic.partitions]
        topics.append(_Topic(topic=topic.topic, partitions=ends))
    return _Response(topics=topics)


def _end(parts: BrokerParts, topic: str, entry: Any) -> Any:
    log, error = find_led(parts, topic, None, entry.partition, entry.current_leader_epoch)
    found = UNDEFINED if log is None else log.end_offset_for_epoch(entry.leader_epoch)
    return _Topic.EpochEndOffset(
        error_code=int(error), partition=entry.partition, leader_epoch=found[0], end_offset=found[1]
    )


def _refused(entry: Any) -> Any:
    return _Topic.EpochEndOffset(
        error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        partition=entry.partition,
        leader_epoch=UNDEFINED[0],
        end_offset=UNDEFINED[1],
    )
