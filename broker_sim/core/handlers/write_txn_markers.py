"""WriteTxnMarkers (key 27): markers from another coordinator, or from an administrator's tool."""

from __future__ import annotations

from functools import partial
from typing import Any

from broker_sim.core.controller.acls import AclOperation
from broker_sim.core.coordinator.partition_writer import PartitionMarker
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import CLUSTER, cluster_allowed, may
from broker_sim.core.parts import BrokerParts, respond
from broker_sim.core.replies import Reply, gather
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.records import MarkerType, TransactionMarker
from txnlog_kafka.wire.topic_partition import TopicPartition

_Response = APIS[ApiKey.WRITE_TXN_MARKERS].response
_MarkerResult = _Response.WritableTxnMarkerResult
_TopicResult = _MarkerResult.WritableTxnMarkerTopicResult
_PartitionResult = _TopicResult.WritableTxnMarkerPartitionResult

NO_PRODUCER = -1
"""No id, or no epoch."""


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """Each partition on its own; durable before the answer, which has one part per producer id."""
    markers = [
        (entry, TopicPartition(topic.name, partition))
        for entry in request.message.markers
        for topic in entry.topics
        for partition in topic.partition_indexes
    ]
    asks = {
        number: partial(_append_marker, parts, partition, entry)
        for number, (entry, partition) in enumerate(markers)
    }

    def on_written(errors: dict[int, ErrorCode], effects: Effects) -> None:
        if parts.config.boolean("flush.on.commit"):
            logs = [parts.logs.get(*name) for name in sorted({name for _, name in markers})]
            parts.logs.flush([log for log in logs if log is not None], effects)
        respond(request, _answer(_by_producer(markers, errors)), effects)

    if may(parts, request, AclOperation.ALTER, CLUSTER) or cluster_allowed(parts, request):
        return gather(asks, on_written, effects)
    refused = dict.fromkeys(range(len(markers)), ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return respond(request, _answer(_by_producer(markers, refused)), effects)


def _by_producer(
    markers: list[tuple[Any, TopicPartition]], errors: dict[int, ErrorCode]
) -> dict[int, dict[str, dict[int, ErrorCode]]]:
    answers: dict[int, dict[str, dict[int, ErrorCode]]] = {}
    for number, (entry, (topic, partition)) in enumerate(markers):
        topics = answers.setdefault(entry.producer_id, {})
        topics.setdefault(topic, {})[partition] = errors[number]
    return answers


def _answer(answers: dict[int, dict[str, dict[int, ErrorCode]]]) -> Message:
    return _Response(
        markers=[
            _MarkerResult(
                producer_id=producer_id,
                topics=[_topic_result(topic, errors) for topic, errors in topics.items()],
            )
            for producer_id, topics in answers.items()
        ]
    )


def _topic_result(topic: str, errors: dict[int, ErrorCode]) -> Any:
    return _TopicResult(
        name=topic,
        partitions=[
            _PartitionResult(partition_index=partition, error_code=int(error))
            for partition, error in errors.items()
        ],
    )


def _append_marker(
    parts: BrokerParts, name: TopicPartition, entry: Any, reply: Reply[ErrorCode], effects: Effects
) -> None:
    """The entry says which transaction version's epoch rule holds (KIP-1228); version 1 of the
    request, and with it every administrator's abort, has the rule before that.

    A marker of no producer or no epoch cannot be written, and Kafka has no better word for it.
    """
    is_known = parts.logs.get(*name) is not None
    if is_known and NO_PRODUCER in (entry.producer_id, entry.producer_epoch):
        return reply(ErrorCode.UNKNOWN_SERVER_ERROR, effects)
    marker = TransactionMarker(
        entry.producer_id,
        entry.producer_epoch,
        MarkerType.COMMIT if entry.transaction_result else MarkerType.ABORT,
        entry.coordinator_epoch,
    )
    what = PartitionMarker(name, marker, entry.transaction_version)
    return parts.markers.append_here(what, reply, effects)
