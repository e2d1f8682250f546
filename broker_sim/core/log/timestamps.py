"""Finding the first record at or after a timestamp (ListOffsets; Kafka's `searchForTimestamp`).

Batches are found by the header's max timestamp. Within a batch the records are read when they are
not compressed, or when the caller gives a way to decompress. Otherwise the answer is the batch's
first offset: never too late, and at most one batch early. So it is, too, when the lookups of a
request have read as much as they may: batches whose headers promise a timestamp that no record of
theirs has, or which were made to explode, cost what honest ones cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from broker_sim.core.effects import Storage
from broker_sim.core.log.compression import Decompress
from broker_sim.core.log.segment import Segment
from txnlog_kafka.wire.records import (
    ATTRIBUTES_AT,
    COMPRESSION_MASK,
    HEADER_BYTES,
    BatchHeader,
    Compression,
    CorruptBatch,
    Record,
    decode_records,
    parse_header,
)

RECORDS_READ_MAX = 200_000
BYTES_READ_MAX = 128 * 1024 * 1024
"""Bytes of records, after decompression, that the lookups of a single request may read."""

_LENGTH = slice(8, 12)
_AFTER_LENGTH = 12


@dataclass(slots=True)
class ReadBudget:
    """Records and bytes that the lookups of a single request may still read."""

    records: int = RECORDS_READ_MAX
    size_bytes: int = BYTES_READ_MAX


def find_timestamp(
    segments: Sequence[Segment],
    timestamp_ms: int,
    *,
    start_offset: int,
    storage: Storage,
    decompress: Decompress | None,
    budget: ReadBudget,
) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record from `start_offset` on that is not older."""
    for segment in segments:
        wanted_offset = max(start_offset, segment.base_offset)
        while True:
            position = segment.first_with_timestamp(timestamp_ms, wanted_offset, storage)
            if position is None:
                break
            end = segment.batch_end(position, storage)
            batch = storage.read(segment.path(), position, end - position)
            if len(batch) < HEADER_BYTES:
                return segment.batch_at(position)
            wanted = (timestamp_ms, start_offset)
            header = parse_header(batch)
            found = _find_in_batch(header, batch, wanted, decompress, budget)
            if found is not None:
                return found
            # A base offset that changed on disk may not lead back to what was looked at.
            wanted_offset = max(header.next_offset, wanted_offset + 1)
    return None


def _find_in_batch(
    header: BatchHeader,
    batch: bytes,
    wanted: tuple[int, int],
    decompress: Decompress | None,
    budget: ReadBudget,
) -> tuple[int, int] | None:
    """`wanted` is the least timestamp and the least offset."""
    if header.record_count == 0:
        return None
    timestamp_ms, start_offset = wanted
    coarse = header.max_timestamp, max(header.base_offset, start_offset)
    if header.is_log_append_time:
        return coarse
    try:
        for record in _records(header, batch, decompress, budget):
            budget.records -= 1
            if record.timestamp >= timestamp_ms and record.record_offset >= start_offset:
                return record.timestamp, record.record_offset
            if budget.records <= 0:
                return coarse
    except ValueError:
        return coarse
    return None


def _records(
    header: BatchHeader, batch: bytes, decompress: Decompress | None, budget: ReadBudget
) -> Iterator[Record]:
    """Yield the records one by one: a batch may hold millions. Raises CorruptBatch."""
    if header.compression == Compression.NONE:
        budget.size_bytes -= len(batch)
        return decode_records(batch, 0, header)
    if decompress is None or budget.size_bytes <= 0 or budget.records <= 0:
        raise CorruptBatch("the batch is compressed")
    plain = bytearray(batch[:HEADER_BYTES] + decompress(header.compression, batch[HEADER_BYTES:]))
    budget.size_bytes -= len(plain)
    plain[_LENGTH] = (len(plain) - _AFTER_LENGTH).to_bytes(4, "big")
    plain[ATTRIBUTES_AT + 1] &= ~COMPRESSION_MASK & 0xFF
    return decode_records(plain, 0, parse_header(plain))
