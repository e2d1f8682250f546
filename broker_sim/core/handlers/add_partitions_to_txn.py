"""AddPartitionsToTxn (key 24): one transaction below version 4, batches of brokers from then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._access import (
    cluster_allowed,
    topic_allowed,
    transactional_id_allowed,
)
from broker_sim.core.handlers._verification import fenced_error, flatten
from broker_sim.core.parts import BrokerParts, respond
from broker_sim.core.replies import Reply, gather
from broker_sim.core.transaction.metadata import TRANSACTION_VERSION_2
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.topic_partition import INTERNAL_TOPICS, TopicPartition

_Response = APIS[ApiKey.ADD_PARTITIONS_TO_TXN].response
_TopicResult = _Response.AddPartitionsToTxnTopicResult
_PartitionResult = _TopicResult.AddPartitionsToTxnPartitionResult

BATCH_VERSION = 4


def handle(parts: BrokerParts, request: Request, effects: Effects) -> None:
    """Add all partitions of a transaction, or none (source: Kafka's `KafkaApis`)."""
    message = request.message
    if request.api_version >= BATCH_VERSION:
        return _handle_batch(parts, request, effects)
    partitions = flatten(message.v3_and_below_topics)

    def answer(errors: dict[TopicPartition, ErrorCode], effects: Effects) -> None:
        answers = {place: fenced_error(error, request) for place, error in errors.items()}
        results = _topic_results(message.v3_and_below_topics, answers)
        response = _Response(results_by_topic_v3_and_below=results)
        respond(request, response, effects)

    errors = _refused_partitions(parts, partitions, request)
    if not transactional_id_allowed(parts, request, message.v3_and_below_transactional_id):
        refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        errors = dict.fromkeys(partitions, refused)
    if errors:
        return answer(errors, effects)
    return parts.transactions.add_partitions(
        message.v3_and_below_transactional_id,
        partitions,
        lambda error, effects: answer(dict.fromkeys(partitions, error), effects),
        effects,
        producer_id=message.v3_and_below_producer_id,
        producer_epoch=message.v3_and_below_producer_epoch,
    )


def _handle_batch(parts: BrokerParts, request: Request, effects: Effects) -> None:
    transactions = request.message.transactions
    if not cluster_allowed(parts, request):
        refused = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        response = _Response(error_code=refused, results_by_transaction=[])
        return respond(request, response, effects)

    def answer(errors: dict[int, dict[TopicPartition, ErrorCode]], effects: Effects) -> None:
        results = [
            _Response.AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=_topic_results(transaction.topics, errors[number]),
            )
            for number, transaction in enumerate(transactions)
        ]
        response = _Response(results_by_transaction=results)
        respond(request, response, effects)

    asks = {
        number: partial(_handle_transaction, parts, transaction)
        for number, transaction in enumerate(transactions)
    }
    return gather(asks, answer, effects)


def _handle_transaction(
    parts: BrokerParts,
    transaction: Any,
    reply: Reply[dict[TopicPartition, ErrorCode]],
    effects: Effects,
) -> None:
    partitions = flatten(transaction.topics)
    ids = {"producer_id": transaction.producer_id, "producer_epoch": transaction.producer_epoch}
    errors = _refused_partitions(parts, partitions, None)
    if not errors and transaction.verify_only:
        errors = parts.transactions.verify_partitions(
            transaction.transactional_id, partitions, **ids
        )
    if errors or transaction.verify_only:
        return reply(errors, effects)
    return parts.transactions.add_partitions(
        transaction.transactional_id,
        partitions,
        lambda error, effects: reply(dict.fromkeys(partitions, error), effects),
        effects,
        client_transaction_version=TRANSACTION_VERSION_2,
        **ids,
    )


def _refused_partitions(
    parts: BrokerParts, partitions: Sequence[TopicPartition], client: Request | None
) -> dict[TopicPartition, ErrorCode]:
    """Errors for all partitions when one of them cannot be in a transaction, else nothing.

    `client` is its request; None for a broker's. A client may not name partitions of the
    coordinators, also with every right: AddOffsetsToTxn is how a group joins, and what is written
    to the transaction log is not for clients.
    """
    refused: dict[TopicPartition, ErrorCode] = {}
    for place in partitions:
        if client is not None and (
            place.topic in INTERNAL_TOPICS or not topic_allowed(parts, client, place.topic)
        ):
            refused[place] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not parts.image.has_partition(place):
            refused[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not refused:
        return {}
    return dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | refused


def _topic_results(topics: Sequence[Any], errors: Mapping[TopicPartition, ErrorCode]) -> list[Any]:
    return [
        _TopicResult(
            name=topic.name,
            results_by_partition=[
                _PartitionResult(
                    partition_index=partition,
                    partition_error_code=int(errors[TopicPartition(topic.name, partition)]),
                )
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]
