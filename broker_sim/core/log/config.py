"""The configuration of one partition's log: Kafka's topic settings, as plain values.

Names are Kafka's topic configuration names with underscores; defaults are Kafka's
(`LogConfig`, `ServerLogConfigs`). Parsing and validation belong to `broker_sim.core.config`.
"""

from __future__ import annotations

from dataclasses import dataclass

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
UNLIMITED = -1
INT64_MAX = 2**63 - 1
DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Limits and policies of one log. `-1` means no limit where Kafka says so."""

    segment_bytes: int = 1 << 30
    """A segment is rolled before it would grow over this size."""
    segment_ms: int = 7 * DAY_MS
    """A segment is rolled when its first batch is older than this, in the records' own time."""
    segment_index_bytes: int = 10 << 20
    """The offset index of a segment is full at this size; then the segment is rolled."""
    index_interval_bytes: int = 4096
    """At least so many log bytes lie between two entries of the offset index."""
    max_message_bytes: int = 1_048_588
    """The largest record batch, header included."""
    message_timestamp_type: str = CREATE_TIME
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = 60 * 60 * 1000
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = UNLIMITED
    cleanup_policy: str = "delete"
    """Retention applies only where it names `delete`; internal topics say `compact`."""
    min_cleanable_dirty_ratio: float = 0.5
    """A log is compacted when a larger part of it than this is new since the last time."""
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    delete_retention_ms: int = DAY_MS
    """Milliseconds that tombstones and markers stay after the cleaner first saw them."""
    producer_id_expiration_ms: int = DAY_MS
    min_insync_replicas: int = 1
    """An append that waits for all replicas needs so many in the ISR."""
    flush_messages: int = INT64_MAX
    """The log is flushed when so many records are not."""
    flush_ms: int = INT64_MAX
    """The log is flushed when the last time was so long ago and the scheduler looks."""

    @property
    def is_log_append_time(self) -> bool:
        """The broker's clock stamps the batches, not the producer's."""
        return self.message_timestamp_type == LOG_APPEND_TIME

    @property
    def segment_ms_max(self) -> int:
        """When a segment is rolled: not later than its records must be compacted."""
        if self.compacts and self.max_compaction_lag_ms > 0:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @property
    def compacts(self) -> bool:
        """True if the cleaner keeps only the latest record of each key."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Old segments may go."""
        return "delete" in self.cleanup_policy
