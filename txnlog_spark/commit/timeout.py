"""A transaction that was open longer than transaction.timeout.ms: recognised, and explained.

The coordinator aborts it and raises the producer epoch, so that the next request is refused with an
epoch's error code, which says nothing of time. What tells is our own clock: a refusal of that kind
after the timeout has passed is the timeout. (Another driver may have taken over as well; then there
is nothing to write either, and the next start finds out.) The same batch with the same timeout ends
in the same way, so it is not tried again.
"""

from __future__ import annotations

from txnlog_kafka.operations.broker_config import fetch_broker_config
from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.produce import staged_totals
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_spark.commit.plan import CommitPlan
from txnlog_spark.errors import BrokerError, TransactionTimedOut, TxnLogError

OPTION = "kafka.transaction.timeout.ms"
BROKER_CONFIG = "transaction.max.timeout.ms"
_MARGIN = 1.5
"""Of the time that the whole batch would have taken at the rate that was seen."""
_ROUND_MS = 60_000

_CODES = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)


def is_timeout(plan: CommitPlan, error: TxnLogError, elapsed_ms: int) -> bool:
    """Whether `error`, `elapsed_ms` after the transaction's begin, is the transaction timeout."""
    return (
        isinstance(error, BrokerError)
        and error.code in _CODES
        and elapsed_ms >= plan.committer.options.transaction_timeout_ms
    )


def needed_timeout_ms(elapsed_ms: int, done_bytes: int, staged_bytes: int) -> int:
    """The transaction timeout that the batch needs at this rate, in whole minutes."""
    if not done_bytes:
        estimate_ms = 2.0 * elapsed_ms
    else:
        estimate_ms = _MARGIN * elapsed_ms * max(1.0, staged_bytes / done_bytes)
    return _ROUND_MS * (int(estimate_ms) // _ROUND_MS + 1)


def timeout_error(
    session: Session, plan: CommitPlan, elapsed_ms: int, done_bytes: int
) -> Operation[TransactionTimedOut]:
    """What happened, how long the batch would have needed, and how much the broker allows."""
    staged_bytes = staged_totals(plan.batch.staged).bytes
    needed_ms = needed_timeout_ms(elapsed_ms, done_bytes, staged_bytes)
    maximum = yield from fetch_broker_config(session, BROKER_CONFIG)
    allowed = f"{maximum} here" if maximum is not None else "900000 by default"
    return TransactionTimedOut(
        f"{plan.name}: its transaction was open for {elapsed_ms} ms, longer than "
        f"{OPTION}={plan.committer.options.transaction_timeout_ms}, and the coordinator aborted it "
        f"(transactional id {plan.committer.transactional_id!r}); {done_bytes} of {staged_bytes} "
        f"staged bytes were produced. Nothing of the batch is visible. Set {OPTION} to at least "
        f"{needed_ms} (the brokers allow up to {BROKER_CONFIG}, {allowed}) and start the query "
        "again: the same batch is then committed once. Smaller batches (maxOffsetsPerTrigger) help "
        "from the next one on"
    )
