"""EndTxn decided: which answer for which state, request and epoch. Two tables and their guards.

Rules for this file: pure functions over values; nothing is appended or changed here. A client
below EndTxn version 5 is judged by the first table, from version 5 on by the second (KIP-890).

With version 2 the epoch rises at every end, so it tells a retry (the epoch before the bump) from
the next call (the present epoch). Source: Kafka's `TransactionCoordinator.endTransaction`, 4.x:
a transition under way is looked at first there (KAFKA-18660), since it may be about to change the
producer id.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_sim.core.transaction.metadata import EPOCH_LAST, TransactionMetadata
from broker_sim.core.transaction.states import (
    COMPLETED,
    NEVER_STORED,
    PREPARED,
    TransactionState,
)
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.records import PRODUCER_EPOCH_MAX

_S = TransactionState
_E = ErrorCode

EndTxnDecision = ErrorCode | TransactionState
"""An answer at once (NONE included), or the state to prepare."""


@dataclass(frozen=True, slots=True)
class EndTxnRequest:
    """Request of a client: end the transaction of (producer id, epoch) this way."""

    producer_id: int
    producer_epoch: int
    committed: bool


DECISIONS_V1: dict[tuple[TransactionState, bool], EndTxnDecision] = {
    # (state, committed)
    (_S.EMPTY, True): _E.INVALID_TXN_STATE,
    (_S.EMPTY, False): _E.INVALID_TXN_STATE,
    (_S.ONGOING, True): _S.PREPARE_COMMIT,
    (_S.ONGOING, False): _S.PREPARE_ABORT,
    (_S.PREPARE_COMMIT, True): _E.CONCURRENT_TRANSACTIONS,
    (_S.PREPARE_COMMIT, False): _E.INVALID_TXN_STATE,
    (_S.PREPARE_ABORT, True): _E.INVALID_TXN_STATE,
    (_S.PREPARE_ABORT, False): _E.CONCURRENT_TRANSACTIONS,
    (_S.COMPLETE_COMMIT, True): _E.NONE,
    (_S.COMPLETE_COMMIT, False): _E.INVALID_TXN_STATE,
    (_S.COMPLETE_ABORT, True): _E.INVALID_TXN_STATE,
    (_S.COMPLETE_ABORT, False): _E.NONE,
}

DECISIONS_V2: dict[tuple[TransactionState, bool, bool], EndTxnDecision] = {
    # (state, committed, is a retry); other epochs are PRODUCER_FENCED before this table
    (_S.EMPTY, True, False): _E.INVALID_TXN_STATE,
    (_S.EMPTY, False, False): _S.PREPARE_ABORT,
    (_S.ONGOING, True, False): _S.PREPARE_COMMIT,
    (_S.ONGOING, False, False): _S.PREPARE_ABORT,
    (_S.PREPARE_COMMIT, True, True): _E.CONCURRENT_TRANSACTIONS,
    (_S.PREPARE_COMMIT, False, True): _E.INVALID_TXN_STATE,
    (_S.PREPARE_ABORT, True, True): _E.INVALID_TXN_STATE,
    (_S.PREPARE_ABORT, False, True): _E.CONCURRENT_TRANSACTIONS,
    (_S.COMPLETE_COMMIT, True, True): _E.NONE,
    (_S.COMPLETE_COMMIT, False, True): _E.INVALID_TXN_STATE,
    (_S.COMPLETE_COMMIT, True, False): _E.INVALID_TXN_STATE,
    (_S.COMPLETE_COMMIT, False, False): _S.PREPARE_ABORT,
    (_S.COMPLETE_ABORT, True, True): _E.INVALID_TXN_STATE,
    (_S.COMPLETE_ABORT, False, True): _E.NONE,
    (_S.COMPLETE_ABORT, True, False): _E.INVALID_TXN_STATE,
    (_S.COMPLETE_ABORT, False, False): _S.PREPARE_ABORT,
}


def _check_storable(metadata: TransactionMetadata) -> None:
    check(
        metadata.state not in NEVER_STORED,
        "a transaction is in a state that is never stored",
        metadata=metadata,
    )


def decide_end_txn_v1(
    metadata: TransactionMetadata, request: EndTxnRequest, *, is_pending: bool
) -> EndTxnDecision:
    """EndTxn version 0 - 4. `is_pending`: another transition is under way."""
    _check_storable(metadata)
    if request.producer_id != metadata.producer_id:
        return _E.INVALID_PRODUCER_ID_MAPPING
    if request.producer_epoch != metadata.producer_epoch:
        return _E.PRODUCER_FENCED
    if is_pending:
        return _E.CONCURRENT_TRANSACTIONS
    return DECISIONS_V1[metadata.state, request.committed]


def decide_end_txn_v2(
    metadata: TransactionMetadata,
    request: EndTxnRequest,
    *,
    is_pending: bool,
    fence_commit_after_abort: bool = False,
) -> EndTxnDecision:
    """EndTxn version 5 on. `fence_commit_after_abort` is an option of the broker."""
    _check_storable(metadata)
    if is_pending:
        return _E.CONCURRENT_TRANSACTIONS
    retries_overflow = is_overflow_retry(metadata, request)
    if request.producer_id != metadata.producer_id and not retries_overflow:
        return _E.INVALID_PRODUCER_ID_MAPPING
    is_retry = retries_overflow or metadata.producer_epoch == request.producer_epoch + 1
    if not _is_epoch_valid_v2(metadata, request, is_retry=is_retry):
        return _E.PRODUCER_FENCED
    key = (metadata.state, request.committed, is_retry)
    if fence_commit_after_abort and key == (_S.COMPLETE_ABORT, True, True):
        return _E.PRODUCER_FENCED
    decision = DECISIONS_V2[key]
    if decision is _S.PREPARE_COMMIT and metadata.producer_epoch == PRODUCER_EPOCH_MAX:
        # Only a forged epoch gets here: none is left to raise it to.
        return _E.UNKNOWN_SERVER_ERROR
    return decision


def is_overflow_retry(metadata: TransactionMetadata, request: EndTxnRequest) -> bool:
    """True if this is the retry of an end that used up the epoch and moved to a new id."""
    return (
        request.producer_id == metadata.previous_producer_id
        and request.producer_epoch == EPOCH_LAST
        and metadata.producer_epoch == 0
    )


def _is_epoch_valid_v2(
    metadata: TransactionMetadata, request: EndTxnRequest, *, is_retry: bool
) -> bool:
    is_current = request.producer_epoch == metadata.producer_epoch
    if metadata.state in PREPARED:
        return is_retry
    if metadata.state in COMPLETED:
        return is_retry or is_current
    return is_current
