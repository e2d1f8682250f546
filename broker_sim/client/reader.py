"""Offsets of partitions, and the records of a range, as an isolation level shows them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from broker_sim.server.codecs import CODECS
from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.fetch_cursor import FetchedBatches
from txnlog_kafka.wire.records import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LENGTH_END,
    BatchHeader,
    Compression,
    MarkerType,
    Record,
    check_crc,
    decode_marker,
    decode_records,
    encode_header,
    iter_batches,
)
from txnlog_kafka.wire.topic_partition import TopicPartition

Found = tuple[TopicPartition, BatchHeader, Record]


def offsets_at(
    client: Client,
    partitions: Iterable[TopicPartition],
    timestamp: int,
    *,
    is_committed: bool = False,
) -> dict[TopicPartition, int]:
    """Return the first offset of each partition at a time in milliseconds, or at EARLIEST_TIMESTAMP
    or LATEST_TIMESTAMP; the latest that `is_committed` is the last stable offset."""
    specs = dict.fromkeys(partitions, timestamp)
    found = client.list_offsets(specs, read_committed=is_committed) if specs else {}
    return {partition: each.offset for partition, each in found.items()}


def read_range(
    client: Client, partition: TopicPartition, start: int, end: int, is_committed: bool
) -> Generator[Found]:
    """Yield the records of [start, end) that this isolation level shows."""
    answers = client.fetch_range(
        *partition, start_offset=start, end_offset=end, read_committed=is_committed
    )
    for answer in answers:
        for header, at in _visible(answer):
            batch = bytes(memoryview(answer.data)[at : at + header.size_bytes])
            check_crc(batch, 0, header)
            for record in plain_records(header, batch):
                if start <= record.record_offset < end:
                    yield partition, header, record


def _visible(answer: FetchedBatches) -> Iterator[tuple[BatchHeader, int]]:
    """Yield data batches, without the aborted transactions that the answer lists.

    A listed transaction reaches from its first offset to its ABORT marker (Kafka's `Fetcher`).
    """
    listed = sorted(answer.aborted or (), key=lambda each: each[1])
    aborted: set[int] = set()
    for header, at in iter_batches(answer.data):
        while listed and listed[0][1] <= header.last_offset:
            aborted.add(listed.pop(0)[0])
        if header.is_control:
            marker = decode_marker(answer.data, at, header)
            if marker is not None and marker.marker_type == MarkerType.ABORT:
                aborted.discard(marker.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            yield header, at


def plain_records(header: BatchHeader, batch: bytes) -> Iterator[Record]:
    """Yield the records of a batch, with any codec. Raises CorruptBatch."""
    if header.compression == Compression.NONE:
        yield from decode_records(batch, 0, header)
        return
    plain = CODECS.plain_records(header, batch)
    length = HEADER_BYTES - LENGTH_END + len(plain)
    bare = header._replace(attributes=header.attributes & ~COMPRESSION_MASK, length=length)
    yield from decode_records(encode_header(bare) + plain, 0, bare)
