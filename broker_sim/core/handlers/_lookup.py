"""What several handlers need: finding a topic by name or id, checking a leader epoch."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from broker_sim.core.controller import Topic
from broker_sim.core.effects import Effects, Request
from broker_sim.core.log import PartitionLog
from broker_sim.core.parts import BrokerParts
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import Message

Handler = Callable[[BrokerParts, Request, Effects], Message | None]
"""Gives the answer, or None when it went into the effects, or will at a later step."""

ZERO_ID = uuid.UUID(int=0)


def find_topic(
    parts: BrokerParts, name: str | None, topic_id: uuid.UUID | None
) -> tuple[Topic | None, ErrorCode]:
    """The topic a request names, by id when it has one; else None and why."""
    if topic_id is not None and topic_id != ZERO_ID:
        topic = parts.image.topic_of_id(topic_id)
        return topic, ErrorCode.NONE if topic else ErrorCode.UNKNOWN_TOPIC_ID
    topic = parts.image.topics.get(name or "")
    return topic, ErrorCode.NONE if topic else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def find_log(
    parts: BrokerParts, name: str | None, topic_id: uuid.UUID | None, partition: int
) -> tuple[PartitionLog | None, ErrorCode]:
    """The log of a partition that a request names; else None and why."""
    topic, error = find_topic(parts, name, topic_id)
    if topic is None:
        return None, error
    log = parts.logs.get(topic.name, partition)
    return log, ErrorCode.NONE if log else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def check_leader_epoch(log: PartitionLog, requested: int) -> ErrorCode:
    """What a client's idea of the leader epoch is worth; -1 means it has none (KIP-320)."""
    if requested in (-1, log.leader_epoch):
        return ErrorCode.NONE
    if requested < log.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH
