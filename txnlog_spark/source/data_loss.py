"""When are records gone unread? Pure rules; what to do about it is `failOnDataLoss`.

Gaps inside the log are not loss: transaction markers, aborted and compacted records take offsets
that no reader gets (SPARK-25005 and its neighbours). Loss is only what the log's bounds show: an
offset that was still to be read lies before the log start offset, or after the end; or what the
topic's id shows: it is another topic of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.offsets import SourceOffset
from txnlog_spark.source.planning import OffsetRange

REMEDY = (
    "set failOnDataLoss=false to go on with what is left, a recreated topic from its beginning, or "
    "start a new checkpoint"
)


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of one partition that can no longer be read, and what shows it."""

    topic_partition: TopicPartition
    reason: str

    def __str__(self) -> str:
        return f"{self.topic_partition}: {self.reason}"


def find_deleted(
    start: SourceOffset, known: SourceOffset, selects: Callable[[TopicPartition], bool]
) -> list[Loss]:
    """Partitions that the query has a position in, and no longer exist or are not selected."""
    return [
        Loss(
            p,
            f"the partition is gone, it was to be read from offset {start[p]}"
            if selects(p)
            else f"the query's options do not select it any more, it was read up to "
            f"offset {start[p]}",
        )
        for p in sorted(set(start) - set(known))
    ]


def find_recreated(start: SourceOffset, topic_ids: Mapping[str, str]) -> list[Loss]:
    """Partitions of topics that were deleted and created again, by their ids now."""
    return [
        Loss(
            p,
            "its topic was deleted and created again (topic id "
            f"{topic_ids[p.topic]} now): the one before was read up to offset {start[p]}",
        )
        for p in sorted(start)
        if p.topic in topic_ids
    ]


def find_late_additions(added_earliest: SourceOffset) -> list[Loss]:
    """Partitions that appeared while the query ran and whose first records are already gone."""
    return [
        Loss(p, f"a new partition starts at offset {earliest} instead of 0")
        for p, earliest in sorted(added_earliest.items())
        if earliest > 0
    ]


def find_rewound(start: SourceOffset, latest: SourceOffset) -> list[Loss]:
    """Partitions that end before the offset that is next to be read: recreated or truncated."""
    return [
        Loss(p, f"the log ends at offset {latest[p]}, before the next offset to read {start[p]}")
        for p in sorted(latest)
        if p in start and latest[p] < start[p]
    ]


def clip_to_log(
    wanted: OffsetRange, log_start_offset: int, log_end_offset: int
) -> tuple[OffsetRange, Loss | None]:
    """The part of a range that can still be read, and the loss if a part cannot."""
    first, end = wanted.start_offset, wanted.end_offset
    low, high = max(first, log_start_offset), min(end, log_end_offset)
    if low == first and high == end:
        return wanted, None
    partition = wanted.topic_partition
    loss = Loss(
        partition,
        f"offsets {first} to {end} (exclusive) were to be read, "
        f"the log holds {log_start_offset} to {log_end_offset}",
    )
    return OffsetRange(partition, min(low, max(low, high)), max(low, high)), loss
