"""What the handlers of transactions share: joining one, old names of errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from broker_sim.core.effects import Effects
from broker_sim.core.partitions import TopicPartition
from broker_sim.core.state import BrokerState
from txnlog_spark.wire.errors import ErrorCode

EPOCH_BUMP_VERSION = 2
"""The transaction.version whose clients let the requests that write to partitions add them. It is
the version of the request that counts, as in Kafka, whatever the cluster was finalized at."""


@dataclass(frozen=True, slots=True)
class Producer:
    """Who writes in a transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


def is_asked(state: BrokerState, *, adds: bool) -> bool:
    """Whether the transaction coordinator must verify or add the partitions (KIP-890): always when
    they are added, and for older requests unless verification is switched off."""
    return adds or state.config.boolean("transaction.partition.verification.enable")


def join_transaction(
    state: BrokerState,
    producer: Producer,
    partitions: Sequence[TopicPartition],
    effects: Effects,
    *,
    adds: bool,
) -> dict[TopicPartition, ErrorCode]:
    """The coordinator's answer for partitions where no transaction of the producer is open.

    `adds`: the request's version is one that adds them to the transaction (KIP-890 part 2);
    otherwise they must have been added before (part 1), unless verification is switched off.
    """
    if adds:
        error = state.transactions.add_partitions(
            producer.transactional_id,
            partitions,
            effects,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            client_transaction_version=EPOCH_BUMP_VERSION,
        )
        return dict.fromkeys(partitions, error)
    if not is_asked(state, adds=adds):
        return dict.fromkeys(partitions, ErrorCode.NONE)
    return state.transactions.verify_partitions(
        producer.transactional_id,
        partitions,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
    )


def fenced_error(error: ErrorCode, api_version: int, *, known_from: int) -> ErrorCode:
    """PRODUCER_FENCED as clients before `known_from` know it: INVALID_PRODUCER_EPOCH (KIP-588)."""
    if error is ErrorCode.PRODUCER_FENCED and api_version < known_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def flatten(topics: Iterable[Any]) -> list[TopicPartition]:
    """The partitions of `AddPartitionsToTxnTopic`s, in order."""
    return [(topic.name, partition) for topic in topics for partition in topic.partitions]
