"""Whole topics as columns, for an auditor: data records and control records.

Reads through the connector's client, a Fetch answer at a time, and keeps only the requested
columns. Decisions come from the markers in the log itself, never from the broker's list of aborted
transactions: a read_committed consumer relies on that list, so it is to be checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from jobs.audit_checks import Int64s, Markers, decide
from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.fetch_cursor import FetchedBatches
from txnlog_kafka.operations.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from txnlog_kafka.operations.producer import Bytes
from txnlog_kafka.wire.records import MarkerType, decode_marker, iter_batches
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.codec.decode import decode_batches


@dataclass(frozen=True, slots=True)
class TopicColumns:
    """Records of a topic, partition by partition in offset order. Keys and values are binary."""

    partitions: Int64s
    offsets: Int64s
    keys: pa.Array
    values: pa.Array


@dataclass(frozen=True, slots=True)
class LogColumns:
    """Topic under read_uncommitted: records, each with its producer and decision, and markers."""

    records: TopicColumns
    producer_ids: Int64s
    producer_epochs: Int64s
    decisions: Int64s
    markers: Markers


def end_offsets(client: Client, topic: str, *, read_committed: bool) -> dict[int, int]:
    """Return the end by partition: the last stable offset under read_committed, else the high
    watermark."""
    return _offsets(client, topic, LATEST_TIMESTAMP, read_committed=read_committed)


def read_committed(client: Client, topic: str) -> TopicColumns:
    """Return the records, without values, that a read_committed consumer gets up to now."""
    parts = []
    for partition, start, end in _ranges(client, topic, read_committed=True):
        for answer, position in _answers(client, (topic, partition), (start, end), committed=True):
            columns = decode_batches(
                answer.data, start_offset=position, end_offset=end, aborted=answer.aborted or []
            )
            no_values = columns.values.slice(0, 0)
            parts.append((partition, columns.offsets, columns.keys, no_values))
    return _concat(parts)


def read_log(client: Client, topic: str) -> LogColumns:
    """Return the whole log of a topic up to now, committed or not."""
    parts, producers, markers = [], [], []
    for partition, start, end in _ranges(client, topic, read_committed=False):
        batches = _Batches(partition)
        for answer, position in _answers(client, (topic, partition), (start, end), committed=False):
            batches.add(answer.data, position, end)
            columns = decode_batches(
                answer.data, start_offset=position, end_offset=end, aborted=None
            )
            parts.append((partition, columns.offsets, columns.keys, columns.values))
            batches.offsets.append(columns.offsets)
        per_record, ends = batches.decide()
        producers.append(per_record)
        markers.append(ends)
    producer_ids, epochs, decisions = (_join(p[i] for p in producers) for i in range(3))
    return LogColumns(_concat(parts), producer_ids, epochs, decisions, _concat_markers(markers))


class _Batches:
    """Batch headers and markers of one partition, until its end is reached."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.offsets: list[Int64s] = []
        self._data: list[tuple[int, int, int, bool]] = []
        self._markers: list[tuple[int, int, int, bool]] = []

    def add(self, data: Bytes, start_offset: int, end_offset: int) -> None:
        """Note every batch of a Fetch answer that reaches into the range."""
        for header, position in iter_batches(data):
            if header.last_offset < start_offset or header.base_offset >= end_offset:
                continue
            producer = (header.base_offset, header.producer_id, header.producer_epoch)
            if not header.is_control:
                self._data.append((*producer, header.is_transactional))
                continue
            marker = decode_marker(data, position, header)
            if marker is not None:
                self._markers.append((*producer, marker.marker_type == MarkerType.COMMIT))

    def decide(self) -> tuple[tuple[Int64s, Int64s, Int64s], Markers]:
        """Return, per record, producer id, epoch, decision; and the partition's markers."""
        base, ids, epochs, transactional = _columns(self._data)
        places, marker_ids, marker_epochs, committed = _columns(self._markers)
        decisions, index = decide(
            base, ids, transactional.astype(bool), places, marker_ids, committed.astype(bool)
        )
        data_epochs = np.full(len(places), -1, dtype=np.int64)
        decided = index >= 0
        data_epochs[index[decided]] = epochs[decided]
        markers = Markers(
            partitions=np.full(len(places), self.partition, dtype=np.int64),
            offsets=places,
            producer_ids=marker_ids,
            producer_epochs=marker_epochs,
            data_epochs=data_epochs,
            committed=committed.astype(bool),
        )
        at = np.searchsorted(base, _join(self.offsets), side="right") - 1
        return (ids[at], epochs[at], decisions[at]), markers


def _columns(rows: list[tuple[int, int, int, bool]]) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def _offsets(client: Client, topic: str, spec: int, *, read_committed: bool) -> dict[int, int]:
    partitions = client.topic_partitions([topic])[topic]
    specs = {TopicPartition(topic, partition): spec for partition in partitions}
    found = client.list_offsets(specs, read_committed=read_committed)
    return {partition: place.offset for (_, partition), place in sorted(found.items())}


def _ranges(client: Client, topic: str, *, read_committed: bool) -> Iterator[tuple[int, int, int]]:
    starts = _offsets(client, topic, EARLIEST_TIMESTAMP, read_committed=read_committed)
    for partition, end in end_offsets(client, topic, read_committed=read_committed).items():
        if starts[partition] < end:
            yield partition, starts[partition], end


def _answers(
    client: Client, where: tuple[str, int], span: tuple[int, int], *, committed: bool
) -> Iterator[tuple[FetchedBatches, int]]:
    """Yield Fetch answers, each with the offset from which its records count."""
    position, end = span
    answers = client.fetch_range(
        *where, start_offset=position, end_offset=end, read_committed=committed
    )
    for answer in answers:
        yield answer, position
        position = answer.next_offset


def _concat(parts: list[tuple[int, Int64s, pa.Array, pa.Array]]) -> TopicColumns:
    return TopicColumns(
        partitions=_join(np.full(len(part[1]), part[0], dtype=np.int64) for part in parts),
        offsets=_join(part[1] for part in parts),
        keys=_join_arrays([part[2] for part in parts]),
        values=_join_arrays([part[3] for part in parts]),
    )


def _concat_markers(parts: list[Markers]) -> Markers:
    return Markers(
        partitions=_join(m.partitions for m in parts),
        offsets=_join(m.offsets for m in parts),
        producer_ids=_join(m.producer_ids for m in parts),
        producer_epochs=_join(m.producer_epochs for m in parts),
        data_epochs=_join(m.data_epochs for m in parts),
        committed=_join(m.committed.astype(np.int64) for m in parts).astype(bool),
    )


def _join(arrays: Iterable[Int64s]) -> Int64s:
    return np.concatenate([np.zeros(0, dtype=np.int64), *arrays])


def _join_arrays(arrays: list[pa.Array]) -> pa.Array:
    return pa.chunked_array(arrays, type=pa.binary()).combine_chunks()
