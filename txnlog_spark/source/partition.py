"""One task's share of a read: fetch ranges of partitions and give them as Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.cluster_view import NO_TOPIC_ID
from txnlog_kafka.operations.fetch import FetchCursor, FetchedBatches, fetch_together
from txnlog_kafka.wire.invariants import present
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.client_cache import client_for
from txnlog_spark.codec.decode import CorruptRange, FetchedRange, iter_decoded
from txnlog_spark.errors import CorruptData, OffsetOutOfRange, UnknownTopic
from txnlog_spark.process_local import Frozen, process_local
from txnlog_spark.source.columns import to_arrow
from txnlog_spark.source.data_loss import clip_to_log
from txnlog_spark.source.planning import OffsetRange
from txnlog_spark.source.settings import SourceSettings

TOGETHER_MIN, TOGETHER_MAX = 2, 500
"""Ranges that begin with one common Fetch; the answer's bytes are limited by `max_bytes`."""
SMALL_BYTES = 256 * 1024
SMALL_TOGETHER_MAX = 128
"""So many answers of at most SMALL_BYTES are decoded together: by itself each would cost half a
millisecond, and an Arrow batch."""

logger = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """What Spark hands to a task: its ranges, and the address that the driver resolved.

    `topic_ids` are those of the topics that the ranges are of, where they are known: another topic
    of the same name is not read for them.
    """

    def __init__(
        self,
        ranges: tuple[OffsetRange, ...],
        bootstrap_servers: str,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> None:
        self.ranges = ranges
        self.bootstrap_servers = bootstrap_servers
        self.topic_ids = topic_ids or {}

    def topic_id(self, wanted: OffsetRange) -> bytes:
        """Of the topic of one of the ranges; 16 zero bytes when it is not known."""
        return self.topic_ids.get(wanted.topic_partition.topic, NO_TOPIC_ID)


def read_ranges(settings: SourceSettings, share: RangePartition) -> Iterator[Any]:
    """The records of the ranges as `pyarrow.RecordBatch`es: range by range, in offset order.

    Raises DataLoss when a part of a range is gone and failOnDataLoss is set; else it reads what
    is left. Raises CorruptData for bytes that fail their checks.
    """
    process_local(Frozen)
    connection = settings.connection
    if settings.poll_timeout_ms is not None:
        connection = connection.with_timeouts(settings.poll_timeout_ms)
    client = client_for(connection, share.bootstrap_servers)
    cursors = [_cursor(settings, each, share.topic_id(each)) for each in share.ranges]
    first = FirstAnswers(client, cursors)
    small: list[tuple[OffsetRange, FetchedBatches]] = []
    for index, (wanted, cursor) in enumerate(zip(share.ranges, cursors, strict=True)):
        answer = first.take(index)
        is_small = answer is not None and cursor.is_done and len(answer.data) <= SMALL_BYTES
        if is_small:
            small.append((wanted, present(answer, "an answer that is small")))
        if small and (not is_small or len(small) == SMALL_TOGETHER_MAX):
            yield from _decoded(settings, small)
            small = []
        if not is_small:
            yield from _read_range(settings, client, wanted, cursor, answer)
    if small:
        yield from _decoded(settings, small)


class FirstAnswers:
    """The beginnings of ranges that are read in this order, fetched many at a time: one round trip
    for each would be most of the time of many small ranges.

    In memory are those of one common Fetch to each leader. It asks for twice as many as the one
    before has brought: what does not fit into an answer is asked for again, and where batches are
    large that would be most of the ranges each time.
    """

    def __init__(self, client: Client, cursors: Sequence[FetchCursor]) -> None:
        self._client = client
        self._cursors = cursors
        self._found: dict[TopicPartition, FetchedBatches] = {}
        self._together = TOGETHER_MAX

    def take(self, index: int) -> FetchedBatches | None:
        """The first answer for the range with this index; None where no common Fetch brought it."""
        cursor = self._cursors[index]
        if cursor.partition not in self._found:
            window = self._cursors[index : index + self._together]
            missing = [each for each in window if each.partition not in self._found]
            if len(missing) > 1:
                brought = self._client.run(fetch_together(self._client.session, missing))
                self._found |= brought
                self._together = min(max(TOGETHER_MIN, 2 * len(brought)), TOGETHER_MAX)
        return self._found.pop(cursor.partition, None)


def _cursor(settings: SourceSettings, wanted: OffsetRange, topic_id: bytes) -> FetchCursor:
    return FetchCursor(
        wanted.topic_partition,
        wanted.start_offset,
        wanted.end_offset,
        settings.read_committed,
        min(settings.partition_fetch_bytes_max, settings.fetch_bytes_max),
        topic_id,
    )


def _read_range(
    settings: SourceSettings,
    client: Client,
    wanted: OffsetRange,
    cursor: FetchCursor,
    answer: FetchedBatches | None = None,
) -> Iterator[Any]:
    """One range, from the cursor's last answer on, if it had one."""
    left: OffsetRange | None = wanted
    while left is not None:
        position = left.start_offset
        try:
            for each in client.fetch_rest(cursor, answer):
                part = replace(left, start_offset=position)
                yield from _decoded(settings, [(part, each)])
                position = max(position, each.next_offset)
            return
        except OffsetOutOfRange as error:
            left, answer = _after_loss(settings, left, error), None
            if left is not None:
                cursor = _cursor(settings, left, cursor.topic_id)
        except UnknownTopic as error:
            if settings.fail_on_data_loss:
                raise
            logger.warning("skipped %s: %s", left, error)
            return


def _after_loss(
    settings: SourceSettings, wanted: OffsetRange, error: OffsetOutOfRange
) -> OffsetRange | None:
    """The readable rest of a range after an out-of-range answer, None when nothing is left."""
    if settings.fail_on_data_loss:
        raise error
    unread = replace(wanted, start_offset=max(wanted.start_offset, error.start_offset))
    clipped, loss = clip_to_log(unread, error.log_start_offset, error.log_end_offset)
    logger.warning("records are gone, going on with what is left: %s", loss or error)
    return None if clipped.offset_count == 0 or clipped == unread else clipped


def _decoded(
    settings: SourceSettings, answers: Sequence[tuple[OffsetRange, FetchedBatches]]
) -> Iterator[Any]:
    """What is wanted of these answers, together: small ones cost little more than one does."""
    ranges = [
        FetchedRange(answer.data, wanted.start_offset, wanted.end_offset, answer.aborted)
        for wanted, answer in answers
    ]
    partitions = [wanted.topic_partition for wanted, _ in answers]
    try:
        for columns in iter_decoded(ranges, include_headers=settings.include_headers):
            if len(columns.offsets):
                yield to_arrow(columns, partitions, settings.formats)
    except CorruptRange as error:
        wanted, _ = answers[error.range_index]
        raise _corrupt(wanted.topic_partition, wanted.start_offset, error) from error


def _corrupt(partition: TopicPartition, position: int, error: CorruptRange) -> CorruptData:
    return CorruptData(
        f"{partition} at offset {position}: {error}. The broker's copy of the log is damaged: "
        "restore the partition from a replica, or start after it with startingOffsets"
    )
