"""Finding the first record at or after a timestamp (ListOffsets; Kafka's `searchForTimestamp`).

Batches are found by the header's max timestamp. Within a batch the records are read when they are
not compressed, or when the caller gives a way to decompress. Otherwise the answer is the batch's
first offset: never too late, and at most one batch early.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_sim.core.effects import Storage
from broker_sim.core.log.compression import Decompress
from broker_sim.core.log.segment import Segment
from txnlog_spark.wire.records import (
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

_LENGTH = slice(8, 12)
_AFTER_LENGTH = 12


def find_timestamp(
    segments: Sequence[Segment],
    timestamp_ms: int,
    *,
    start_offset: int,
    storage: Storage | None,
    decompress: Decompress | None,
) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record from `start_offset` on that is not older."""
    for segment in segments:
        wanted_offset = max(start_offset, segment.base_offset)
        while True:
            position = segment.first_with_timestamp(timestamp_ms, wanted_offset, storage)
            if position is None:
                break
            batch = b""
            if storage is not None:
                end = segment.batch_end(position, storage)
                batch = storage.read(segment.path(), position, end - position)
            if len(batch) < HEADER_BYTES:
                return segment.batch_at(position)
            header = parse_header(batch)
            found = _find_in_batch(header, batch, timestamp_ms, start_offset, decompress)
            if found is not None:
                return found
            wanted_offset = header.next_offset
    return None


def _find_in_batch(
    header: BatchHeader,
    batch: bytes,
    timestamp_ms: int,
    start_offset: int,
    decompress: Decompress | None,
) -> tuple[int, int] | None:
    if header.record_count == 0:
        return None
    if header.is_log_append_time:
        return header.max_timestamp, max(header.base_offset, start_offset)
    try:
        for record in _records(header, batch, decompress):
            if record.timestamp >= timestamp_ms and record.record_offset >= start_offset:
                return record.timestamp, record.record_offset
    except ValueError:
        return header.max_timestamp, max(header.base_offset, start_offset)
    return None


def _records(header: BatchHeader, batch: bytes, decompress: Decompress | None) -> list[Record]:
    if header.compression == Compression.NONE:
        return list(decode_records(batch, 0, header))
    if decompress is None:
        raise CorruptBatch("the batch is compressed")
    plain = bytearray(batch[:HEADER_BYTES] + decompress(header.compression, batch[HEADER_BYTES:]))
    plain[_LENGTH] = (len(plain) - _AFTER_LENGTH).to_bytes(4, "big")
    plain[ATTRIBUTES_AT + 1] &= ~COMPRESSION_MASK & 0xFF
    return list(decode_records(plain, 0, parse_header(plain)))
