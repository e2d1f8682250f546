"""Choose the part of a log to compact, judge its urgency, and group segments to be merged.

Below the first dirty offset the log was compacted before. Compaction never touches the active
segment, segments with a record younger than min.compaction.lag.ms, or anything above the last
stable offset. So every transaction in the range is decided.

Sources: Kafka's `LogCleanerManager.cleanableOffsets`, `LogToClean`, `Cleaner.groupSegmentsBySize`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker_sim.core.log.config import LogConfig
from broker_sim.core.log.indexes import RELATIVE_OFFSET_MAX
from broker_sim.core.log.segment import Segment


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The range of one round: of the dirty part the keys are learned, all of it is rewritten."""

    first_dirty_offset: int
    end_offset: int
    """Exclusive; the base of a segment."""
    dirty_bytes: int
    total_bytes: int
    overdue: bool
    """A dirty segment is older than max.compaction.lag.ms."""

    @property
    def dirty_ratio(self) -> float:
        """The part of the log below the end that is new since the last round."""
        return self.dirty_bytes / self.total_bytes if self.total_bytes else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """True if it is time to compact the log."""
        if self.overdue and self.dirty_bytes > 0:
            return True
        return self.dirty_ratio > config.min_cleanable_dirty_ratio


def find_cleanable(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    cleaned_to: int | None,
    log_start_offset: int,
    last_stable_offset: int,
    now_ms: int,
) -> Cleanable:
    """The range that the cleaner may work on. `cleaned_to` is where it stopped last, if it did.

    A checkpoint outside the log is of another life of it: then everything is dirty.
    """
    first_dirty = log_start_offset if cleaned_to is None else cleaned_to
    if not log_start_offset <= first_dirty <= segments[-1].next_offset:
        first_dirty = log_start_offset
    sealed = segments[:-1]
    dirty = [segment for segment in sealed if segment.next_offset > first_dirty]
    uncleanable = min(last_stable_offset, segments[-1].base_offset)
    if config.min_compaction_lag_ms > 0:
        newest = now_ms - config.min_compaction_lag_ms
        young = [s.base_offset for s in dirty if s.max_timestamp > newest]
        uncleanable = min([uncleanable, *young])
    uncleanable = max(first_dirty, uncleanable)
    end_offset = max(s.base_offset for s in segments if s.base_offset <= uncleanable)
    first_stamps = [s.first_timestamp or 0 for s in dirty]
    oldest = min((stamp for stamp in first_stamps if stamp > 0), default=now_ms)
    range_ = [s for s in sealed if s.base_offset < end_offset]
    return Cleanable(
        first_dirty,
        end_offset,
        sum(s.size_bytes for s in range_ if s.next_offset > first_dirty),
        sum(s.size_bytes for s in range_),
        oldest < now_ms - config.max_compaction_lag_ms,
    )


def group_segments(segments: Sequence[Segment], config: LogConfig) -> list[list[Segment]]:
    """Neighbours that together are not larger than one segment may be."""
    groups: list[list[Segment]] = []
    log_bytes = index_bytes = time_index_bytes = 0
    for segment in segments:
        log_bytes += segment.size_bytes
        index_bytes += segment.offset_index.size_bytes
        time_index_bytes += segment.time_index.size_bytes
        fits = (
            log_bytes <= config.segment_bytes
            and max(index_bytes, time_index_bytes) <= config.segment_index_bytes
        )
        if (
            groups
            and fits
            and segment.next_offset - groups[-1][0].base_offset <= (RELATIVE_OFFSET_MAX)
        ):
            groups[-1].append(segment)
            continue
        groups.append([segment])
        log_bytes = segment.size_bytes
        index_bytes = segment.offset_index.size_bytes
        time_index_bytes = segment.time_index.size_bytes
    return groups
