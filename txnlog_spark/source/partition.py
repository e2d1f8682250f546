"""One task's share of a read: fetch ranges of partitions and give them as Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql.datasource import InputPartition

from txnlog_kafka.host.client import Client
from txnlog_kafka.host.fetcher import FirstAnswers
from txnlog_kafka.operations.fetch import FetchCursor, FetchedBatches
from txnlog_kafka.wire.records import CorruptBatch
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.client_cache import client_for
from txnlog_spark.codec.decode import iter_decoded
from txnlog_spark.errors import CorruptData, OffsetOutOfRange, UnknownTopic
from txnlog_spark.source.columns import to_arrow
from txnlog_spark.source.data_loss import clip_to_log
from txnlog_spark.source.planning import OffsetRange
from txnlog_spark.source.settings import SourceSettings

DECODED_BYTES_MAX = 16 * 1024 * 1024
"""Decompressed bytes of one Arrow batch, about: bounds a task's memory."""

logger = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """What Spark hands to a task: its ranges, and the address that the driver resolved."""

    def __init__(self, ranges: tuple[OffsetRange, ...], bootstrap_servers: str) -> None:
        self.ranges = ranges
        self.bootstrap_servers = bootstrap_servers


def read_ranges(settings: SourceSettings, share: RangePartition) -> Iterator[Any]:
    """The records of the ranges as `pyarrow.RecordBatch`es: range by range, in offset order.

    Raises DataLoss when a part of a range is gone and failOnDataLoss is set; else it reads what
    is left. Raises CorruptData for bytes that fail their checks.
    """
    connection = settings.connection
    if settings.poll_timeout_ms is not None:
        connection = connection.with_timeouts(settings.poll_timeout_ms)
    client = client_for(connection, share.bootstrap_servers)
    first = FirstAnswers(client, [_cursor(settings, each) for each in share.ranges])
    for index, wanted in enumerate(share.ranges):
        yield from _read_range(settings, client, wanted, partial(first.fetch, index))


def _cursor(settings: SourceSettings, wanted: OffsetRange) -> FetchCursor:
    return FetchCursor(
        wanted.topic_partition,
        wanted.start_offset,
        wanted.end_offset,
        settings.read_committed,
        min(settings.partition_fetch_bytes_max, settings.fetch_bytes_max),
    )


def _read_range(
    settings: SourceSettings,
    client: Client,
    wanted: OffsetRange,
    fetch: Callable[[], Iterator[FetchedBatches]],
) -> Iterator[Any]:
    left: OffsetRange | None = wanted
    while left is not None:
        try:
            yield from _decoded(settings, left, fetch())
            return
        except OffsetOutOfRange as error:
            left = _after_loss(settings, left, error)
            if left is not None:
                fetch = partial(client.fetch_rest, _cursor(settings, left))
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
    settings: SourceSettings, wanted: OffsetRange, answers: Iterator[FetchedBatches]
) -> Iterator[Any]:
    position = wanted.start_offset
    for answer in answers:
        try:
            for columns in iter_decoded(
                answer.data,
                start_offset=position,
                end_offset=wanted.end_offset,
                aborted=answer.aborted,
                include_headers=settings.include_headers,
                group_bytes_max=DECODED_BYTES_MAX,
            ):
                if len(columns.offsets):
                    yield to_arrow(columns, wanted.topic_partition, settings.formats)
        except CorruptBatch as error:
            raise _corrupt(wanted.topic_partition, position, error) from error
        position = max(position, answer.next_offset)


def _corrupt(partition: TopicPartition, position: int, error: CorruptBatch) -> CorruptData:
    return CorruptData(
        f"{partition} at offset {position}: {error}. The broker's copy of the log is damaged: "
        "restore the partition from a replica, or start after it with startingOffsets"
    )
