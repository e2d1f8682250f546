"""DescribeTransactions and ListTransactions: entries shown, nothing changed.

Source: KIP-664, KIP-994 (duration), KIP-1152 (pattern).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from broker_sim.core.patterns import Pattern
from broker_sim.core.transaction.metadata import TransactionEntry
from broker_sim.core.transaction.results import (
    ListedTransaction,
    TransactionDescription,
    TransactionListing,
)
from broker_sim.core.transaction.states import PREPARED, STATE_OF_LABEL, TransactionState
from txnlog_spark.wire.errors import ErrorCode


def describe_entry(entry: TransactionEntry) -> TransactionDescription:
    """All of one transaction; while markers are written, the partitions still without one."""
    current = entry.committed
    partitions = entry.unmarked if current.state in PREPARED else current.partitions
    return TransactionDescription(
        ErrorCode.NONE,
        current.transactional_id,
        state=current.state.label,
        timeout_ms=current.timeout_ms,
        start_ms=current.start_ms,
        producer_id=current.producer_id,
        producer_epoch=current.producer_epoch,
        partitions=tuple(sorted(partitions)),
    )


def list_entries(
    entries: Iterable[TransactionEntry],
    now_ms: int,
    *,
    state_filters: Collection[str],
    producer_id_filters: Collection[int],
    duration_filter_ms: int,
    id_pattern: Pattern | None,
) -> TransactionListing:
    """Those that pass every filter given; a state name that is not Kafka's is said back."""
    states = {STATE_OF_LABEL[name] for name in state_filters if name in STATE_OF_LABEL}
    unknown = tuple(name for name in state_filters if name not in STATE_OF_LABEL)

    def passes(entry: TransactionEntry) -> bool:
        current = entry.committed
        if current.state is TransactionState.DEAD:
            return False
        if producer_id_filters and current.producer_id not in producer_id_filters:
            return False
        if state_filters and current.state not in states:
            return False
        if duration_filter_ms >= 0 and now_ms - current.start_ms <= duration_filter_ms:
            return False
        return id_pattern is None or id_pattern.matches(current.transactional_id)

    listed = tuple(
        ListedTransaction(
            entry.committed.transactional_id,
            entry.committed.producer_id,
            entry.committed.state.label,
        )
        for entry in entries
        if passes(entry)
    )
    return TransactionListing(ErrorCode.NONE, unknown, listed)
