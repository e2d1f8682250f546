"""DeleteRecords (key 21): move the start of a log up, by which older records are gone."""

from __future__ import annotations

from typing import Any

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import topic_allowed
from broker_sim.core.handlers._lookup import find_led
from broker_sim.core.log import PartitionLog
from broker_sim.core.parts import BrokerParts, respond
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.topic_partition import INTERNAL_TOPICS, TopicPartition

_Response = APIS[ApiKey.DELETE_RECORDS].response
_Topic = _Response.DeleteRecordsTopicResult
_Partition = _Topic.DeleteRecordsPartitionResult

INVALID_LOW_WATERMARK = -1
_Results = dict[TopicPartition, tuple[ErrorCode, int]]


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """Each partition on its own, once: the last offset counts. Internal topics are refused
    (Kafka's `ReplicaManager`). Answered when the followers that are up have moved, too."""
    results, allowed = _checked(parts, request)
    moved: dict[TopicPartition, tuple[PartitionLog, int]] = {}
    deleted = parts.replicas.delete_records(allowed.values(), effects)
    for place, (error, start_offset) in zip(allowed, deleted, strict=True):
        results[place] = error, INVALID_LOW_WATERMARK
        if error is ErrorCode.NONE:
            moved[place] = allowed[place][0], start_offset

    def answer(outcomes: dict[TopicPartition, ErrorCode], effects: Effects) -> None:
        for place, error in outcomes.items():
            low_watermark = INVALID_LOW_WATERMARK
            if error is ErrorCode.NONE:
                low_watermark = parts.replicas.low_watermark(moved[place][0])
            results[place] = error, low_watermark
        respond(request, _answer(results), effects)

    if not moved:
        return answer({}, effects)
    return parts.replicas.when_all_deleted(moved, request.message.timeout_ms, answer, effects)


def _checked(
    parts: BrokerParts, request: Request
) -> tuple[_Results, dict[TopicPartition, tuple[PartitionLog, int]]]:
    """The results as far as they are known, and what is to be deleted."""
    wanted = {
        (topic.name, entry.partition_index): entry.offset
        for topic in request.message.topics
        for entry in topic.partitions
    }
    results: _Results = {}
    allowed: dict[TopicPartition, tuple[PartitionLog, int]] = {}
    for (name, partition), before_offset in wanted.items():
        log, error = find_led(parts, name, None, partition)
        if not topic_allowed(parts, request, name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif log is not None and name in INTERNAL_TOPICS:
            error = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif log is not None:
            allowed[TopicPartition(name, partition)] = log, before_offset
        results[TopicPartition(name, partition)] = error, INVALID_LOW_WATERMARK
    return results, allowed


def _answer(results: _Results) -> Message:
    by_topic: dict[str, list[Any]] = {}
    for (name, partition), (error, low_watermark) in results.items():
        by_topic.setdefault(name, []).append(
            _Partition(
                partition_index=partition, low_watermark=low_watermark, error_code=int(error)
            )
        )
    topics = [_Topic(name=name, partitions=partitions) for name, partitions in by_topic.items()]
    return _Response(topics=topics)
