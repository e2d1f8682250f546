"""Rules that find records which are gone unread.

Gaps inside the log are not loss: transaction markers, aborted and compacted records take offsets
that no reader gets (SPARK-25005). The log's bounds show loss if an offset that was still to be read
lies outside them. The topic's id shows loss if it is another topic of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.offsets import SourceOffset
from txnlog_spark.source.planning import OffsetRange


class Loss(NamedTuple):
    """Records of one partition that can no longer be read, and the reason to say so."""

    topic_partition: TopicPartition
    reason: str

    def __str__(self) -> str:
        return f"{self.topic_partition}: {self.reason}"


def find_deleted(
    start: SourceOffset, known: SourceOffset, selects: Callable[[TopicPartition], bool]
) -> list[Loss]:
    """Find partitions with a position of the query that are gone, or not selected any more."""
    gone = "the partition is gone, it was to be read from offset"
    left_out = "the query's options do not select it any more, it was read up to offset"
    return [
        Loss(p, f"{gone if selects(p) else left_out} {start[p]}")
        for p in sorted(start.keys() - known.keys())
    ]


def find_recreated(start: SourceOffset, topic_ids: Mapping[str, str]) -> list[Loss]:
    """Find partitions of topics that were deleted and created again, by their present ids."""
    again = "its topic was deleted and created again (topic id"
    return [
        Loss(p, f"{again} {topic_ids[p.topic]} now): the former was read up to offset {at}")
        for p, at in sorted(start.items())
        if p.topic in topic_ids
    ]


def find_late_additions(added_earliest: SourceOffset) -> list[Loss]:
    """Find partitions that appeared while the query ran, and lack their first records already."""
    return [
        Loss(p, f"a new partition starts at offset {earliest} instead of 0")
        for p, earliest in sorted(added_earliest.items())
        if earliest > 0
    ]


def find_rewound(start: SourceOffset, latest: SourceOffset) -> list[Loss]:
    """Find partitions that end before the next offset to read: recreated or truncated."""
    return [
        Loss(p, f"the log ends at offset {latest[p]}, before the next offset to read {start[p]}")
        for p in sorted(latest)
        if p in start and latest[p] < start[p]
    ]


def clip_to_log(
    wanted: OffsetRange, log_start_offset: int, log_end_offset: int
) -> tuple[OffsetRange, Loss | None]:
    """Return the part of a range that can still be read, and the loss if a part is gone."""
    left = wanted.within(log_start_offset, log_end_offset)
    if left == wanted:
        return wanted, None
    partition, first, end = wanted
    log = f"the log holds {log_start_offset} to {log_end_offset}"
    return left, Loss(partition, f"offsets {first} to {end} (exclusive) were to be read, {log}")
