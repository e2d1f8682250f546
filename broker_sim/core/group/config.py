"""What the group coordinator is configured with; names and defaults are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """One value per Kafka config, in its comment; times in ms."""

    partition_count: int = 50
    """offsets.topic.num.partitions"""
    offset_metadata_max_bytes: int = 4096
    """offset.metadata.max.bytes; Kafka compares it with the string's length"""
    offsets_retention_ms: int = 604_800_000
    """offsets.retention.minutes"""
    offsets_retention_check_interval_ms: int = 600_000
    """offsets.retention.check.interval.ms"""
    session_timeout_ms_min: int = 6_000
    """group.min.session.timeout.ms"""
    session_timeout_ms_max: int = 1_800_000
    """group.max.session.timeout.ms"""
    initial_rebalance_delay_ms: int = 3_000
    """group.initial.rebalance.delay.ms"""
    group_size_max: int = 2**31 - 1
    """group.max.size"""
    new_member_join_timeout_ms: int = 300_000
    """how long a new member's JoinGroup may be delayed; a constant in Kafka"""
    flush_on_commit: bool = True
    """flush committed offsets and deletions before they are answered"""
