"""Asks the coordinator of a transaction, on another broker, about partitions that this one leads.

A batch that begins a transaction on a partition is appended only when the coordinator has it in
the transaction (KIP-890): by AddPartitionsToTxn it verifies, or adds, the partitions. Of each
transaction one question waits at a time.

Source: Kafka's `AddPartitionsToTxnManager`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from broker_sim.core.controller.image import ClusterImage
from broker_sim.core.coordinator.peer_batches import PeerBatches
from broker_sim.core.effects import Effects
from broker_sim.core.peers import Peers
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.topic_partition import TopicPartition

VERIFIER_TIMER = "add-partitions-to-txn"
VERSION = 5

_Request = APIS[ApiKey.ADD_PARTITIONS_TO_TXN].request

Verdicts = dict[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class Question:
    """About these partitions: are they in the producer's transaction, or, with `adds`, may they
    join it?"""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Collection[TopicPartition]
    adds: bool

    def all(self, error: ErrorCode) -> Verdicts:
        """Return the same answer for all partitions."""
        return dict.fromkeys(self.partitions, error)


@dataclass(frozen=True, slots=True)
class _Asked:
    coordinator: int
    question: Question
    reply: Reply[Verdicts]


class TransactionVerifier:
    """See the module."""

    def __init__(self, image: ClusterImage, peers: Peers) -> None:
        self._image = image
        self._batches: PeerBatches[_Asked] = PeerBatches(
            VERIFIER_TIMER, peers, VERSION, _request, _take_answer
        )
        self.on_timer = self._batches.on_timer

    def ask(
        self, coordinator: int, question: Question, reply: Reply[Verdicts], effects: Effects
    ) -> None:
        """`reply` gets the coordinator's error for each partition; COORDINATOR_NOT_AVAILABLE when
        that broker is not up, NETWORK_EXCEPTION when it has not answered.

        A question of the same transaction that has not left yet is answered INVALID_PRODUCER_EPOCH
        when its epoch is the older one, and NETWORK_EXCEPTION when it is the same: then its client
        asks once more.
        """
        if coordinator not in self._image.brokers:
            return reply(question.all(ErrorCode.COORDINATOR_NOT_AVAILABLE), effects)
        for before in self._batches.withdraw(
            lambda each: each.question.transactional_id == question.transactional_id
        ):
            epoch = before.question.producer_epoch
            if epoch > question.producer_epoch:
                self._batches.add(before.coordinator, before, effects)
                return reply(question.all(ErrorCode.INVALID_PRODUCER_EPOCH), effects)
            is_older = epoch < question.producer_epoch
            error = ErrorCode.INVALID_PRODUCER_EPOCH if is_older else ErrorCode.NETWORK_EXCEPTION
            before.reply(before.question.all(error), effects)
        return self._batches.add(coordinator, _Asked(coordinator, question, reply), effects)


def _request(batch: Sequence[_Asked]) -> Message:
    return _Request(transactions=[_transaction(asked.question) for asked in batch])


def _transaction(question: Question) -> Any:
    topics: dict[str, list[int]] = {}
    for topic, partition in question.partitions:
        topics.setdefault(topic, []).append(partition)
    return _Request.AddPartitionsToTxnTransaction(
        transactional_id=question.transactional_id,
        producer_id=question.producer_id,
        producer_epoch=question.producer_epoch,
        verify_only=not question.adds,
        topics=[
            _Request.AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic(
                name=name, partitions=partitions
            )
            for name, partitions in topics.items()
        ],
    )


def _take_answer(batch: Sequence[_Asked], answer: Message | None, effects: Effects) -> None:
    verdicts: dict[str, Verdicts] = {}
    error = ErrorCode.NETWORK_EXCEPTION
    if answer is not None:
        verdicts = _verdicts(answer)
        error = ErrorCode(answer.error_code) or error
    if error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        error = ErrorCode.INVALID_TXN_STATE  # of brokers among themselves no client should know
    for asked in batch:
        found = verdicts.get(asked.question.transactional_id, {})
        asked.reply(asked.question.all(error) | found, effects)


def _verdicts(answer: Any) -> dict[str, Verdicts]:
    return {
        transaction.transactional_id: {
            TopicPartition(topic.name, each.partition_index): ErrorCode(each.partition_error_code)
            for topic in transaction.topic_results
            for each in topic.results_by_partition
        }
        for transaction in answer.results_by_transaction
    }
