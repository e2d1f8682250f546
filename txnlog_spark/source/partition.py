"""Fetch of one task's ranges of partitions, as Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import InputPartition

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.cluster_view import NO_TOPIC_ID
from txnlog_kafka.operations.fetch import fetch_together
from txnlog_kafka.operations.fetch_cursor import FetchCursor, FetchedBatches
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.client_cache import client_for
from txnlog_spark.codec.decode import CorruptRange, FetchedRange, iter_decoded
from txnlog_spark.errors import CorruptData, DataLoss, OffsetOutOfRange, UnknownTopic
from txnlog_spark.process_local import Frozen, process_local
from txnlog_spark.source.columns import to_arrow
from txnlog_spark.source.data_loss import clip_to_log
from txnlog_spark.source.planning import OffsetRange
from txnlog_spark.source.settings import SourceSettings

TOGETHER_MIN, TOGETHER_MAX = 2, 500
"""Ranges that begin with one common Fetch; the answer's bytes are limited by `max_bytes`."""
SMALL_BYTES = 256 * 1024
SMALL_TOGETHER_MAX = 128
"""Small answers that are decoded together: each decoding costs 0.5 ms and an Arrow batch."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RangePartition(InputPartition):
    """Spark's hand-over to a task: its ranges, and the address that the driver resolved."""

    ranges: tuple[OffsetRange, ...]
    bootstrap_servers: str
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)
    """Known ids of the topics. A topic of the same name with another id is not read."""


def task_client(settings: SourceSettings, bootstrap_servers: str) -> Client:
    """Return the client of a task's process."""
    process_local(Frozen)
    connection = settings.connection
    if settings.poll_timeout_ms is not None:
        connection = connection.with_timeouts(settings.poll_timeout_ms)
    return client_for(connection, bootstrap_servers)


def read_ranges(settings: SourceSettings, share: RangePartition) -> Iterator[Any]:
    """Read the ranges as `pyarrow.RecordBatch`es: range by range, in offset order.

    Raises CorruptData for bytes that fail their checks. Unless failOnDataLoss=false, also DataLoss
    if a part of a range or its topic of before is gone, and UnknownTopic if there is no topic.
    """
    client = task_client(settings, share.bootstrap_servers)
    ids = [share.topic_ids.get(each.topic_partition.topic, NO_TOPIC_ID) for each in share.ranges]
    cursors = [_cursor(settings, *each) for each in zip(share.ranges, ids, strict=True)]
    answers = first_answers(client, cursors)
    small: list[tuple[OffsetRange, FetchedBatches]] = []
    gone: set[str] = set()
    for wanted, cursor, answer in zip(share.ranges, cursors, answers, strict=True):
        if answer is not None and cursor.is_done and len(answer.data) <= SMALL_BYTES:
            small.append((wanted, answer))
            if len(small) < SMALL_TOGETHER_MAX:
                continue
            yield from _decoded(settings, small)
        else:
            yield from _decoded(settings, small)
            yield from _read_range(settings, client, wanted, cursor, answer, gone)
        small = []
    yield from _decoded(settings, small)


def first_answers(
    client: Client, cursors: Sequence[FetchCursor]
) -> Iterator[FetchedBatches | None]:
    """Fetch the first answer of each range, many at a time; None if no common Fetch brought it.

    A round trip for each range would take most of the time of small ranges. Memory holds the
    answers of one common Fetch to each leader. It asks for twice as many ranges as the Fetch before
    has brought; batches that do not fit into an answer are asked for again.
    """
    found: dict[TopicPartition, FetchedBatches] = {}
    together = TOGETHER_MAX
    for index, cursor in enumerate(cursors):
        if cursor.partition not in found:
            window = cursors[index : index + together]
            missing = [each for each in window if each.partition not in found]
            if len(missing) > 1:
                brought = client.run(fetch_together(client.session, missing))
                found |= brought
                together = min(max(TOGETHER_MIN, 2 * len(brought)), TOGETHER_MAX)
        yield found.pop(cursor.partition, None)


def _cursor(settings: SourceSettings, wanted: OffsetRange, topic_id: bytes) -> FetchCursor:
    max_bytes = min(settings.partition_fetch_bytes_max, settings.fetch_bytes_max)
    return FetchCursor(*wanted, settings.read_committed, max_bytes, topic_id)


def _read_range(
    settings: SourceSettings,
    client: Client,
    wanted: OffsetRange,
    cursor: FetchCursor,
    answer: FetchedBatches | None,
    gone: set[str],
) -> Iterator[Any]:
    """Read one range, beginning with the cursor's last answer if it had one; skip `gone` topics."""
    left: OffsetRange | None = None if wanted.topic_partition.topic in gone else wanted
    while left is not None:
        position = left.start_offset
        try:
            for each in client.fetch_rest(cursor, answer):
                part = left._replace(start_offset=position)
                yield from _decoded(settings, [(part, each)])
                position = max(position, each.next_offset)
            return
        except OffsetOutOfRange as error:
            left, answer = _after_loss(settings, left, error), None
            if left is not None:
                cursor = _cursor(settings, left, cursor.topic_id)
        except (UnknownTopic, DataLoss) as error:
            if settings.fail_on_data_loss:
                raise
            logger.warning("skipped %s and the rest of its topic in this task: %s", left, error)
            gone.add(left.topic_partition.topic)
            return


def _after_loss(
    settings: SourceSettings, wanted: OffsetRange, error: OffsetOutOfRange
) -> OffsetRange | None:
    """Return the rest of a range after an out-of-range answer, None if nothing is left."""
    if settings.fail_on_data_loss:
        raise error
    unread = wanted._replace(start_offset=max(wanted.start_offset, error.start_offset))
    clipped, loss = clip_to_log(unread, error.log_start_offset, error.log_end_offset)
    logger.warning("records are gone, going on with what is left: %s", loss or error)
    return None if clipped.offset_count == 0 or clipped == unread else clipped


def _decoded(
    settings: SourceSettings, answers: Sequence[tuple[OffsetRange, FetchedBatches]]
) -> Iterator[Any]:
    """Decode the answers together: several small ones cost little more than one."""
    if not answers:
        return
    ranges = [
        FetchedRange(answer.data, wanted.start_offset, wanted.end_offset, answer.aborted)
        for wanted, answer in answers
    ]
    partitions = [wanted.topic_partition for wanted, _ in answers]
    try:
        for columns in iter_decoded(ranges, settings.formats.id_headers, settings.include_headers):
            if len(columns.offsets):
                yield to_arrow(columns, partitions, settings.formats)
    except CorruptRange as error:
        wanted, _ = answers[error.range_index]
        raise CorruptData(
            f"{wanted.topic_partition} at offset {wanted.start_offset}: {error}. The broker's copy "
            "of the log is damaged: restore the partition from a replica, or start after it with "
            "startingOffsets"
        ) from error
