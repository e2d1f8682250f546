"""DescribeProducers (key 61): the producer state of partitions (KIP-664)."""

from __future__ import annotations

from typing import Any

from broker_sim.core.controller.topic_rules import TopicRefused, check_topic_name
from broker_sim.core.effects import Request
from broker_sim.core.handlers._access import topic_allowed
from broker_sim.core.handlers._lookup import find_log
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.DESCRIBE_PRODUCERS].response
_Topic = _Response.TopicResponse
_Partition = _Topic.PartitionResponse


def handle(parts: BrokerParts, request: Request) -> Message:
    """Shows which producer holds the last stable offset back; each partition once."""
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.message.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = [
        _Topic(name=name, partitions=[_partition(parts, request, name, p) for p in partitions])
        for name, partitions in wanted.items()
    ]
    return _Response(topics=topics)


def _partition(parts: BrokerParts, request: Request, topic: str, partition: int) -> Any:
    log, error = find_log(parts, topic, None, partition)
    message = None
    if not topic_allowed(parts, request, topic):
        log, error = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    try:
        check_topic_name(topic)
    except TopicRefused as refused:
        error, message = refused.error, refused.message
    producers = log.producers() if log is not None else ()
    return _Partition(
        partition_index=partition,
        error_code=int(error),
        error_message=message,
        active_producers=[
            _Partition.ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.current_txn_start_offset,
            )
            for producer in producers
        ],
    )
