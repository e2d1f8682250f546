"""Whether the staged batches will be produced before the transaction times out."""

from __future__ import annotations

from dataclasses import dataclass

from txnlog_kafka.operations.session import Session
from txnlog_kafka.operations.transaction import Transaction

FORECAST_AFTER_MS = 5_000
"""Producing for so long shows how long all will take; less when the transaction times out soon."""
FORECAST_SPARE = 0.1
"""Of the transaction timeout, for what comes after the last batch."""
TIMEOUT_ROUND_MS = 60_000


@dataclass(slots=True)
class TimeoutForecast:
    """Says once, while there is time, that at this pace the transaction times out.

    The broker will abort it, and so it will every replay of the same batch: better to hear it from
    us, with the option to change, than from a refused request.
    """

    session: Session
    staged_bytes: int
    timeout_ms: int
    started_ms: int = -1
    is_reported: bool = False

    def __post_init__(self) -> None:
        self.started_ms = self.session.monotonic_ms()

    def look(self, transaction: Transaction, done: int) -> None:
        """Estimate the whole from the bytes that are done."""
        elapsed_ms = self.session.monotonic_ms() - self.started_ms
        if self.is_reported or elapsed_ms < min(FORECAST_AFTER_MS, self.timeout_ms // 4):
            return
        total = self.staged_bytes
        if not 0 < done < total or not elapsed_ms:
            return
        needed_ms = elapsed_ms * total // done
        if needed_ms <= self.timeout_ms * (1 - FORECAST_SPARE):
            return
        self.is_reported = True
        rounded_ms = -(-int(needed_ms * (1 + 2 * FORECAST_SPARE)) // TIMEOUT_ROUND_MS)
        self.session.notice(
            f"this batch will not be done within its transaction timeout: after "
            f"{elapsed_ms / 1000:.1f} s {done / 1e6:.1f} of {total / 1e6:.1f} MB are produced "
            f"({done / 1e3 / elapsed_ms:.1f} MB/s), which makes {needed_ms / 1000:.0f} s in all, "
            f"and the broker aborts the transaction ({transaction.who}) after "
            f"{self.timeout_ms / 1000:.0f} s. Set kafka.transaction.timeout.ms to "
            f"{rounded_ms * TIMEOUT_ROUND_MS} or more (the broker's transaction.max.timeout.ms is "
            "its limit), or make batches smaller"
        )
