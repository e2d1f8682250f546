"""DeleteRecords (key 21): move the start of a log up, by which older records are gone."""

from __future__ import annotations

from typing import Any

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers.common import find_topic
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DELETE_RECORDS].response
_Topic = _Response.DeleteRecordsTopicResult
_Partition = _Topic.DeleteRecordsPartitionResult

INVALID_LOW_WATERMARK = -1


def handle(state: BrokerState, request: Request, effects: Effects) -> Message:
    """Each partition on its own; internal topics are refused (Kafka's `ReplicaManager`)."""
    topics = []
    for topic in request.message.topics:
        partitions = [_partition(state, topic.name, entry, effects) for entry in topic.partitions]
        topics.append(_Topic(name=topic.name, partitions=partitions))
    return _Response(throttle_time_ms=0, topics=topics)


def _partition(state: BrokerState, name: str, entry: Any, effects: Effects) -> Any:
    topic, error = find_topic(state, name, None)
    log = state.partitions.get(name, entry.partition_index)
    low_watermark = INVALID_LOW_WATERMARK
    if topic is None or log is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif topic.is_internal:
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        error, low_watermark = state.partitions.delete_records(log, entry.offset, effects)
    return _Partition(
        partition_index=entry.partition_index, low_watermark=low_watermark, error_code=int(error)
    )
