"""AddPartitionsToTxn (key 24): one transaction below version 4, batches of brokers from then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers.transactional import fenced_error, flatten
from broker_sim.core.partitions import TopicPartition
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.ADD_PARTITIONS_TO_TXN].response
_TopicResult = _Response.AddPartitionsToTxnTopicResult
_PartitionResult = _TopicResult.AddPartitionsToTxnPartitionResult

BATCH_VERSION = 4
FENCED_VERSION = 2


def handle(state: BrokerState, request: Request, effects: Effects) -> Message:
    """All partitions of a transaction are added, or none (source: Kafka's `KafkaApis`)."""
    message = request.message
    if request.api_version >= BATCH_VERSION:
        return _handle_batch(state, message, effects)
    partitions = flatten(message.v3_and_below_topics)
    errors = _add(
        state,
        message.v3_and_below_transactional_id,
        (message.v3_and_below_producer_id, message.v3_and_below_producer_epoch),
        partitions,
        effects,
    )
    answers = {
        partition: fenced_error(error, request.api_version, known_from=FENCED_VERSION)
        for partition, error in errors.items()
    }
    return _Response(
        throttle_time_ms=0,
        results_by_topic_v3_and_below=_topic_results(message.v3_and_below_topics, answers),
    )


def _handle_batch(state: BrokerState, message: Any, effects: Effects) -> Message:
    results = []
    for transaction in message.transactions:
        partitions = flatten(transaction.topics)
        producer = (transaction.producer_id, transaction.producer_epoch)
        if transaction.verify_only:
            errors = state.transactions.verify_partitions(
                transaction.transactional_id,
                partitions,
                producer_id=producer[0],
                producer_epoch=producer[1],
            )
        else:
            errors = _add(state, transaction.transactional_id, producer, partitions, effects)
        results.append(
            _Response.AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=_topic_results(transaction.topics, errors),
            )
        )
    return _Response(throttle_time_ms=0, error_code=0, results_by_transaction=results)


def _add(
    state: BrokerState,
    transactional_id: str,
    producer: tuple[int, int],
    partitions: Sequence[TopicPartition],
    effects: Effects,
) -> dict[TopicPartition, ErrorCode]:
    unknown = [p for p in partitions if state.partitions.get(*p) is None]
    if unknown:
        errors = dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED)
        errors.update(dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        return errors
    error = state.transactions.add_partitions(
        transactional_id,
        partitions,
        effects,
        producer_id=producer[0],
        producer_epoch=producer[1],
    )
    return dict.fromkeys(partitions, error)


def _topic_results(topics: Sequence[Any], errors: Mapping[TopicPartition, ErrorCode]) -> list[Any]:
    return [
        _TopicResult(
            name=topic.name,
            results_by_partition=[
                _PartitionResult(
                    partition_index=partition,
                    partition_error_code=int(errors[topic.name, partition]),
                )
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]
