"""DescribeTransactions and ListTransactions: entries shown, nothing changed.

Source: KIP-664, KIP-994 (duration), KIP-1152 (pattern).
"""

from __future__ import annotations

from broker_sim.core.coordinator.patterns import compiled
from broker_sim.core.transaction.metadata import TransactionEntry, TransactionMetadata
from broker_sim.core.transaction.results import (
    ListedTransaction,
    TransactionDescription,
    TransactionFilters,
    TransactionListing,
)
from broker_sim.core.transaction.state_manager import TransactionStateManager
from broker_sim.core.transaction.states import PREPARED, STATE_OF_LABEL, TransactionState
from txnlog_kafka.wire.error_codes import ErrorCode


def describe_transaction(
    manager: TransactionStateManager, transactional_id: str
) -> TransactionDescription:
    """Describe a transaction; while markers are written, with the partitions still to come."""
    if not transactional_id:
        return TransactionDescription(ErrorCode.INVALID_REQUEST, transactional_id)
    shard = manager.find(transactional_id)
    if isinstance(shard, ErrorCode):
        return TransactionDescription(shard, transactional_id)
    entry = shard.entries.get(transactional_id)
    if entry is None:
        return TransactionDescription(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id)
    return _describe_entry(entry)


def _describe_entry(entry: TransactionEntry) -> TransactionDescription:
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


def list_transactions(
    manager: TransactionStateManager, now_ms: int, filters: TransactionFilters
) -> TransactionListing:
    """List the transactions that pass every filter, and the state names that are not Kafka's."""
    pattern = compiled(filters.id_pattern) if filters.id_pattern else None
    if filters.id_pattern and pattern is None:
        return TransactionListing(ErrorCode.INVALID_REGULAR_EXPRESSION)
    states = {STATE_OF_LABEL[name] for name in filters.states if name in STATE_OF_LABEL}
    unknown = tuple(name for name in dict.fromkeys(filters.states) if name not in STATE_OF_LABEL)

    def passes(current: TransactionMetadata) -> bool:
        if current.state is TransactionState.DEAD:
            return False
        if filters.producer_ids and current.producer_id not in filters.producer_ids:
            return False
        if filters.states and current.state not in states:
            return False
        if filters.running_for_ms >= 0 and now_ms - current.start_ms <= filters.running_for_ms:
            return False
        return pattern is None or bool(pattern.fullmatch(current.transactional_id))

    listed = tuple(
        ListedTransaction(transactional_id, current.producer_id, current.state.label)
        for shard in manager.runtime.shards()
        for transactional_id, current in sorted(
            (transactional_id, entry.committed) for transactional_id, entry in shard.entries.items()
        )
        if passes(current)
    )
    return TransactionListing(ErrorCode.NONE, unknown, listed)
