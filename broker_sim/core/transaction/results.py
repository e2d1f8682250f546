"""Answers of the transaction coordinator, as plain values, and the replies that give them. Handlers
turn them into messages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from broker_sim.core.effects import Effects
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from txnlog_kafka.wire.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class ProducerIdResult:
    """Answer to InitProducerId and EndTxn. The ids are -1 on an error and in EndTxn before v5."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """Answer to DescribeTransactions for a transactional id. `state` is Kafka's name."""

    error: ErrorCode
    transactional_id: str
    state: str = ""
    timeout_ms: int = 0
    start_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """Row of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """Answer to ListTransactions."""

    error: ErrorCode
    unknown_state_filters: tuple[str, ...] = ()
    transactions: tuple[ListedTransaction, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionFilters:
    """Filters of ListTransactions. An empty filter or a negative duration passes everything.

    `running_for_ms` passes transactions that run for longer; `id_pattern` is a regular expression
    for whole transactional ids (KIP-1152).
    """

    states: Collection[str] = ()
    producer_ids: Collection[int] = ()
    running_for_ms: int = -1
    id_pattern: str | None = None


def given(
    reply: Reply[ProducerIdResult], ids: ProducerIdResult, error: ErrorCode, effects: Effects
) -> None:
    """InitProducerId: the ids, when they are committed."""
    reply(ids if error is ErrorCode.NONE else ProducerIdResult(error), effects)


def aborted(reply: Reply[ProducerIdResult], result: ProducerIdResult, effects: Effects) -> None:
    """InitProducerId over an ongoing transaction: the client asks again when it is aborted."""
    error = ErrorCode.CONCURRENT_TRANSACTIONS if result.error is ErrorCode.NONE else result.error
    reply(ProducerIdResult(error), effects)


def trace_abort(
    why: str, transactional_id: str, result: ProducerIdResult, effects: Effects
) -> None:
    """Why a transaction was aborted without its client."""
    effects.trace(why, transactional_id=transactional_id, error=result.error.name)
