"""Common parts of the transaction handlers: joining a transaction, and old names of errors.

The coordinator of the transaction may be on any broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker_sim.apis import AnyApiKey
from broker_sim.core.effects import Effects, Request
from broker_sim.core.handlers._lookup import leader_of
from broker_sim.core.parts import BrokerParts, respond
from broker_sim.core.replies import Reply
from broker_sim.core.transaction import ProducerIdResult
from broker_sim.core.transaction.metadata import TRANSACTION_VERSION_2
from broker_sim.core.transaction.verifier import Question
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.topic_partition import TRANSACTION_STATE_TOPIC, TopicPartition


@dataclass(frozen=True, slots=True)
class Producer:
    """The producer that writes in a transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


def needs_verification(parts: BrokerParts, *, adds: bool) -> bool:
    """True if the transaction coordinator must verify or add the partitions (KIP-890).

    Added partitions always need it; older requests need it unless verification is switched off.
    """
    return adds or parts.config.boolean("transaction.partition.verification.enable")


def join_transaction(
    parts: BrokerParts,
    producer: Producer,
    partitions: Sequence[TopicPartition],
    reply: Reply[dict[TopicPartition, ErrorCode]],
    effects: Effects,
    *,
    adds: bool,
) -> None:
    """The coordinator's answer for partitions where no transaction of the producer is open, of a
    request that `needs_verification`.

    `adds`: the request's version is one that adds them to the transaction (KIP-890 part 2);
    otherwise they must have been added before (part 1).
    """
    # If the coordinator is another broker, ask it.
    coordinator = leader_of(
        parts, TRANSACTION_STATE_TOPIC, parts.transactions.partition_for(producer.transactional_id)
    )
    if coordinator is not None and coordinator.leader != parts.node_id:
        question = Question(
            producer.transactional_id,
            producer.producer_id,
            producer.producer_epoch,
            partitions,
            adds,
        )
        return parts.verifier.ask(coordinator.leader, question, reply, effects)
    # If it is this broker, add the partitions, or check that they were added.
    if adds:
        return parts.transactions.add_partitions(
            producer.transactional_id,
            partitions,
            lambda error, effects: reply(dict.fromkeys(partitions, error), effects),
            effects,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            client_transaction_version=TRANSACTION_VERSION_2,
        )
    verdicts = parts.transactions.verify_partitions(
        producer.transactional_id,
        partitions,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
    )
    return reply(verdicts, effects)


_KNOWS_FENCED: Mapping[AnyApiKey, int] = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""Versions from which on clients know PRODUCER_FENCED (KIP-588)."""


def fenced_error(error: ErrorCode, request: Request) -> ErrorCode:
    """PRODUCER_FENCED as the client knows it: an older one as INVALID_PRODUCER_EPOCH."""
    is_known = request.api_version >= _KNOWS_FENCED[request.api_key]
    if error is ErrorCode.PRODUCER_FENCED and not is_known:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def respond_with_ids(request: Request, result: ProducerIdResult, effects: Effects) -> None:
    """Answer InitProducerId or EndTxn: with a producer's id and epoch."""
    message = APIS[ApiKey(request.api_key)].response(
        error_code=int(fenced_error(result.error, request)),
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
    )
    respond(request, message, effects)


def flatten(topics: Iterable[Any]) -> list[TopicPartition]:
    """The partitions of `AddPartitionsToTxnTopic`s, in order."""
    return [TopicPartition(topic.name, p) for topic in topics for p in topic.partitions]
