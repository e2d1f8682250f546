"""WriteTxnMarkers (key 27): markers from another coordinator, or from an administrator's tool."""

from __future__ import annotations

from typing import Any

from broker_sim.core.effects import Effects, Request
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message
from txnlog_spark.wire.records import MarkerType, TransactionMarker

_Response = APIS[ApiKey.WRITE_TXN_MARKERS].response
_MarkerResult = _Response.WritableTxnMarkerResult
_TopicResult = _MarkerResult.WritableTxnMarkerTopicResult
_PartitionResult = _TopicResult.WritableTxnMarkerPartitionResult


def handle(state: BrokerState, request: Request, effects: Effects) -> Message:
    """Each partition on its own; durable before the answer."""
    results = []
    for entry in request.message.markers:
        marker = TransactionMarker(
            entry.producer_id,
            entry.producer_epoch,
            MarkerType.COMMIT if entry.transaction_result else MarkerType.ABORT,
            entry.coordinator_epoch,
        )
        topics = [_topic_result(state, topic, marker, effects) for topic in entry.topics]
        results.append(_MarkerResult(producer_id=entry.producer_id, topics=topics))
    if state.config.boolean("flush.on.commit"):
        named = [
            state.partitions.get(topic.name, partition)
            for entry in request.message.markers
            for topic in entry.topics
            for partition in topic.partition_indexes
        ]
        state.partitions.flush([log for log in named if log is not None], effects)
    return _Response(markers=results)


def _topic_result(
    state: BrokerState, topic: Any, marker: TransactionMarker, effects: Effects
) -> Any:
    return _TopicResult(
        name=topic.name,
        partitions=[
            _PartitionResult(
                partition_index=partition,
                error_code=int(_append(state, topic.name, partition, marker, effects)),
            )
            for partition in topic.partition_indexes
        ],
    )


def _append(
    state: BrokerState, topic: str, partition: int, marker: TransactionMarker, effects: Effects
) -> ErrorCode:
    # Version 1 has no transaction version, so the epoch rule is the one before KIP-1228.
    return state.host.append_marker(topic, partition, marker, effects, transaction_version=0)
