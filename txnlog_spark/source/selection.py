"""The options of a read that planning needs, in the product and in the simulator: no connection."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from txnlog_kafka.wire.topic_partition import TopicPartition

COMMITTED = "committed"
COMMITTED_WORDS = {
    COMMITTED: None,
    "committedOrEarliest": "earliest",
    "committedOrLatest": "latest",
}
"""Words of startingOffsets for a group, with the start if it has no position (None: refuse)."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The partitions that a query reads: exactly one of the three fields is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()

    def selects(self, topic: str) -> bool:
        """True if `topic` is read; a pattern matches the whole name, as Java's `matches` does."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or any(topic == p.topic for p in self.assigned)

    def reads(self, partition: TopicPartition) -> bool:
        """True if `partition` is read, provided that it exists."""
        return partition in self.assigned if self.assigned else self.selects(partition.topic)


@dataclass(frozen=True, slots=True)
class PositionRequest:
    """A place to start or end: `word`, `offsets` or timestamps in ms; the last that is set wins."""

    word: str | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    timestamps_ms: Mapping[TopicPartition, int] | int | None = None
    latest_if_none: bool = False
    """Meaning of a timestamp after the last record: the end; else an error."""
    option: str = "startingOffsets"

    def narrowed(self, partitions: Collection[TopicPartition]) -> PositionRequest:
        """Return the request for these partitions only, if each has a position of its own."""
        times = self.timestamps_ms
        if isinstance(times, Mapping):
            times = {p: at for p, at in times.items() if p in partitions}
        offsets = self.offsets and {p: at for p, at in self.offsets.items() if p in partitions}
        return replace(self, offsets=offsets, timestamps_ms=times)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """The settings that plan a read's offsets."""

    selection: Selection
    starting: PositionRequest
    group_id: str | None
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    isolation_level: str
    metadata_max_age_ms: int
    """Age at which all topics are listed again for a pattern."""
    partition_cache_ms: int
    """Age at which a stream looks for partitions again; -1: a second."""
    min_offsets_per_trigger: int | None
    trigger_delay_ms_max: int
    """Longest wait of a batch for `min_offsets_per_trigger`."""
    offset_attempts: int
    """Number of times that partitions and offsets are asked for, each until the API timeout."""
    offset_retry_ms: int

    @property
    def read_committed(self) -> bool:
        """True if records of open and aborted transactions are left out."""
        return self.isolation_level == "read_committed"
