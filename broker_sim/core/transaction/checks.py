"""Checks that may refuse a request, decided from the entry alone; in Kafka's order.

Rules for this file: pure functions; NONE accepts the request.
"""

from __future__ import annotations

from broker_sim.core.transaction.metadata import (
    TransactionEntry,
    TransactionMetadata,
    is_epoch_exhausted,
)
from broker_sim.core.transaction.states import PREPARED
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import NO_PRODUCER_EPOCH


def refuse_init(entry: TransactionEntry, expected: tuple[int, int] | None) -> ErrorCode:
    """InitProducerId; `expected` is the (producer id, epoch) that the client holds (KIP-360)."""
    current = entry.committed
    if entry.pending is not None:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if expected is not None and not _may_hold(current, expected):
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.CONCURRENT_TRANSACTIONS if current.state in PREPARED else ErrorCode.NONE


def _may_hold(current: TransactionMetadata, expected: tuple[int, int]) -> bool:
    expected_id, expected_epoch = expected
    if current.producer_epoch == NO_PRODUCER_EPOCH or expected_id == current.producer_id:
        return True
    # The previous id with its last epoch may be the retry of a bump whose answer was lost.
    return expected_id == current.previous_producer_id and is_epoch_exhausted(expected_epoch)


def refuse_producer(
    current: TransactionMetadata, producer_id: int, producer_epoch: int
) -> ErrorCode:
    """The producer is not the present holder of its transactional id."""
    if current.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if current.producer_epoch != producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def refuse_add(entry: TransactionEntry, producer_id: int, producer_epoch: int) -> ErrorCode:
    """AddPartitionsToTxn and AddOffsetsToTxn.

    The transition under way is looked at first: it may be about to change the producer id
    (KAFKA-18660), and then the client that has the new one would be refused for good.
    """
    if entry.pending is not None:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return refuse_verify(entry.committed, producer_id, producer_epoch)


def refuse_verify(current: TransactionMetadata, producer_id: int, producer_epoch: int) -> ErrorCode:
    """Verify-only AddPartitionsToTxn: a transition under way does not matter (KAFKA-14904)."""
    refusal = refuse_producer(current, producer_id, producer_epoch)
    if refusal is ErrorCode.NONE and current.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return refusal
