"""Retention: choose the old segments to delete (Kafka's `UnifiedLog.deleteOldSegments`)."""

from __future__ import annotations

from collections.abc import Sequence

from broker_sim.core.effects import Delete, Effects
from broker_sim.core.log.config import LogConfig
from broker_sim.core.log.segment import SUFFIXES, Segment


def due_count(
    segments: Sequence[Segment], config: LogConfig, *, high_watermark: int, now_ms: int
) -> int:
    """Count the oldest segments that may go, the active segment included.

    A segment goes when its newest record is older than retention.ms, or while the log without it
    still has retention.bytes. A segment above the high watermark stays, and so does an empty active
    segment.
    """
    if not config.deletes:
        return 0
    over_bytes = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    count = 0
    for at, segment in enumerate(segments):
        if segment.size_bytes == 0 or segment.next_offset > high_watermark:
            break
        by_size = config.retention_bytes >= 0 and over_bytes >= segment.size_bytes
        if not by_size and not _is_expired(segments, at, config, now_ms):
            break
        over_bytes -= segment.size_bytes
        count += 1
    return count


def remove_segments(segments: Sequence[Segment], effects: Effects) -> None:
    """Delete their files, oldest segment first and the log file before its indexes.

    So after a crash in between the log begins at a segment's base, and what is left of a removed
    one is recognised by its missing log file.
    """
    for segment in segments:
        effects.storage.extend(Delete(segment.path(suffix)) for suffix in SUFFIXES)


def _is_expired(segments: Sequence[Segment], at: int, config: LogConfig, now_ms: int) -> bool:
    """True if the segment is too old. Without timestamps it is as old as the next segment with any.

    Otherwise a single record without a timestamp would keep all segments after it.
    """
    stamps = (segments[later].max_timestamp for later in range(at, len(segments)))
    newest = next((stamp for stamp in stamps if stamp >= 0), None)
    return config.retention_ms >= 0 and newest is not None and now_ms - newest > config.retention_ms
