"""A transaction that is open longer than transaction.timeout.ms: foreseen, recognised, explained.

The coordinator aborts the transaction and raises the producer epoch. It then refuses the next
request with an epoch's error code, which does not mention time. If such a refusal arrives after the
timeout has passed, by our own clock, the timeout is its cause. The same batch would end in the same
way, so it is not tried again.
"""

from __future__ import annotations

from dataclasses import dataclass

from txnlog_kafka.errors import BrokerError, TransactionTimedOut, TxnLogError
from txnlog_kafka.operations.calls import fetch_broker_config
from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.producer import ProducePlan
from txnlog_kafka.operations.session import Session
from txnlog_kafka.operations.transaction import Transaction
from txnlog_kafka.wire.error_codes import ErrorCode

OPTION = "kafka.transaction.timeout.ms"
BROKER_CONFIG = "transaction.max.timeout.ms"
FORECAST_AFTER_MS = 5_000
"""Time of producing before the forecast; less if the transaction times out soon."""
FORECAST_SPARE = 0.1
"""Part of the transaction timeout for the steps after the last batch."""
_MARGIN = 1.5
"""Factor on the time that the whole batch would have taken at the rate that was seen."""
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


@dataclass(slots=True)
class TimeoutForecast:
    """Warns once, while there is time, that at this pace the transaction times out.

    The broker will abort the transaction, and every replay of the same batch: a warning that names
    the option is better than a refused request.
    """

    session: Session
    staged_bytes: int
    timeout_ms: int
    started_ms: int = -1
    is_reported: bool = False

    def __post_init__(self) -> None:
        self.started_ms = self.session.monotonic_ms()

    def look(self, transaction: Transaction, done: int) -> None:
        """Estimate the whole time from the bytes that are done."""
        elapsed_ms = self.session.monotonic_ms() - self.started_ms
        if self.is_reported or elapsed_ms < min(FORECAST_AFTER_MS, self.timeout_ms // 4):
            return
        total = self.staged_bytes
        if not 0 < done < total or not elapsed_ms:
            return
        whole_ms = elapsed_ms * total // done
        if whole_ms <= self.timeout_ms * (1 - FORECAST_SPARE):
            return
        self.is_reported = True
        self.session.notice(
            f"this batch will not be done within its transaction timeout: after "
            f"{elapsed_ms / 1000:.1f} s {done / 1e6:.1f} of {total / 1e6:.1f} MB are produced "
            f"({done / 1e3 / elapsed_ms:.1f} MB/s), which makes {whole_ms / 1000:.0f} s in all, "
            f"and the broker aborts the transaction ({transaction.who}) after "
            f"{self.timeout_ms / 1000:.0f} s. Set {OPTION} to "
            f"{needed_timeout_ms(elapsed_ms, done, total)} or more (the broker's {BROKER_CONFIG} "
            "is its limit), or make batches smaller"
        )


def needed_timeout_ms(elapsed_ms: int, done_bytes: int, staged_bytes: int) -> int:
    """Return the transaction timeout that the batch needs at this rate, in whole minutes."""
    whole_ms = elapsed_ms * max(1.0, staged_bytes / done_bytes if done_bytes else 1.0)
    return -(-int(_MARGIN * whole_ms) // _ROUND_MS) * _ROUND_MS


def is_timeout(error: TxnLogError, elapsed_ms: int, timeout_ms: int) -> bool:
    """True if `error`, `elapsed_ms` after the transaction's begin, is the transaction timeout."""
    is_refusal = isinstance(error, BrokerError) and error.code in _CODES
    return is_refusal and elapsed_ms >= timeout_ms


def timeout_error(
    session: Session, transaction: Transaction, plan: ProducePlan, elapsed_ms: int, done_bytes: int
) -> Operation[TransactionTimedOut]:
    """Return the error: what happened, how long the batch needed, and what the broker allows."""
    timeout_ms, staged_bytes = plan.transaction_timeout_ms, sum(p.size_bytes for p in plan.staged)
    needed_ms = needed_timeout_ms(elapsed_ms, done_bytes, staged_bytes)
    maximum = yield from fetch_broker_config(session, BROKER_CONFIG)
    allowed = f"{maximum} here" if maximum is not None else "900000 by default"
    return TransactionTimedOut(
        f"the transaction of batch {plan.batch_id} was open for {elapsed_ms} ms, longer than "
        f"{OPTION}={timeout_ms}, and the coordinator aborted it ({transaction.who}); "
        f"{done_bytes} of {staged_bytes} staged bytes were produced. No record of the batch is "
        f"visible. Set {OPTION} to at least {needed_ms} (the brokers allow up to {BROKER_CONFIG}, "
        f"{allowed}) and start the query again: the same batch is then committed once. Smaller "
        "batches (maxOffsetsPerTrigger) help from the next batch on"
    )
