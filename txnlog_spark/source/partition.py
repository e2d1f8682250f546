"""One task's share of a read: fetch a range of one partition and give it as Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from txnlog_spark.client.fetcher import fetch_range
from txnlog_spark.codec.decode import iter_decoded
from txnlog_spark.connection import client_for
from txnlog_spark.errors import CorruptData, OffsetOutOfRange, UnknownTopic
from txnlog_spark.offsets import TopicPartition
from txnlog_spark.source.columns import to_arrow
from txnlog_spark.source.data_loss import clip_to_log
from txnlog_spark.source.planning import OffsetRange
from txnlog_spark.source.settings import SourceSettings
from txnlog_spark.wire.records import CorruptBatch

DECODED_BYTES_MAX = 16 * 1024 * 1024
"""Decompressed bytes of one Arrow batch, about: bounds a task's memory."""

logger = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """What Spark hands to a task: the range, and the address that the driver resolved."""

    def __init__(self, offset_range: OffsetRange, bootstrap_servers: str) -> None:
        self.offset_range = offset_range
        self.bootstrap_servers = bootstrap_servers


def read_range(settings: SourceSettings, share: RangePartition) -> Iterator[Any]:
    """The records of the range as `pyarrow.RecordBatch`es, in offset order.

    Raises DataLoss when a part of the range is gone and failOnDataLoss is set; else it reads what
    is left. Raises CorruptData for bytes that fail their checks.
    """
    left: OffsetRange | None = share.offset_range
    while left is not None:
        try:
            yield from _read_existing(settings, share.bootstrap_servers, left)
            return
        except OffsetOutOfRange as error:
            left = _after_loss(settings, left, error)
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


def _read_existing(
    settings: SourceSettings, bootstrap_servers: str, wanted: OffsetRange
) -> Iterator[Any]:
    topic_partition = wanted.topic_partition
    position = wanted.start_offset
    answers = fetch_range(
        client_for(settings.connection, bootstrap_servers),
        topic_partition.topic,
        topic_partition.partition,
        start_offset=wanted.start_offset,
        end_offset=wanted.end_offset,
        read_committed=settings.read_committed,
        max_bytes=min(settings.partition_fetch_bytes_max, settings.fetch_bytes_max),
    )
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
                    yield to_arrow(columns, topic_partition)
        except CorruptBatch as error:
            raise _corrupt(topic_partition, position, error) from error
        position = max(position, answer.next_offset)


def _corrupt(partition: TopicPartition, position: int, error: CorruptBatch) -> CorruptData:
    return CorruptData(
        f"{partition} at offset {position}: {error}. The broker's copy of the log is damaged: "
        "restore the partition from a replica, or start after it with startingOffsets"
    )
