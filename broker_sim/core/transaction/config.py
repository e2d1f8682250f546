"""What the transaction coordinator is configured with; names and defaults are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """One value per Kafka config, in its comment; times in ms.

    `transaction_version` is the finalized feature: 0, 1 (flexible records) or 2 (KIP-890).
    `fence_commit_after_abort` chooses the newer answer (KAFKA-20785) to a retried commit of a
    transaction that the coordinator aborted: PRODUCER_FENCED, where 4.0 - 4.3 say
    INVALID_TXN_STATE.
    `flush_on_commit` makes every decision durable before it is answered: with one replica there
    is no other copy.
    """

    partition_count: int = 50
    """transaction.state.log.num.partitions"""
    offsets_partition_count: int = 50
    """offsets.topic.num.partitions"""
    timeout_ms_max: int = 900_000
    """transaction.max.timeout.ms"""
    id_expiration_ms: int = 604_800_000
    """transactional.id.expiration.ms"""
    abort_timed_out_interval_ms: int = 10_000
    """transaction.abort.timed.out.transaction.cleanup.interval.ms"""
    remove_expired_interval_ms: int = 3_600_000
    """transaction.remove.expired.transaction.cleanup.interval.ms"""
    transaction_version: int = 2
    """the feature transaction.version"""
    marker_retry_ms: int = 100
    """how soon refused markers are tried again"""
    fence_commit_after_abort: bool = False
    """transaction.fence.commit.after.abort"""
    flush_on_commit: bool = True
