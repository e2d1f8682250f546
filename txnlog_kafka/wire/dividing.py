"""Divide a record batch into smaller batches, as Java's producer does with a batch that is too
large.

Records are not encoded again. Only the offset delta of a record changes, which counts from the
batch's first record, and with it the record's length. Timestamps stay relative to the base
timestamp, which all parts take over. Layouts are in `wire.records`.
"""

from __future__ import annotations

from collections.abc import Iterator

from txnlog_kafka.wire.compression import compress, decompress
from txnlog_kafka.wire.records import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LENGTH_END,
    NO_TIMESTAMP,
    BatchHeader,
    Compression,
    encode_header,
    increment_sequence,
    parse_header,
    refresh_crc,
)
from txnlog_kafka.wire.varint import decode_signed, encode_signed


def divide_batch(batch: bytearray | memoryview, bytes_max: int) -> list[bytearray]:
    """Return the same records in batches of at most `bytes_max`; a larger batch has a single
    record.

    The parts are few, and alike in size if their records are. They have the batch's producer and
    codec, and their sequences follow one another. Raises CorruptBatch for records that cannot be
    decompressed.
    """
    header = parse_header(batch)
    if len(batch) <= bytes_max or header.record_count == 1:
        return [bytearray(batch)]
    records = decompress(header.compression, memoryview(batch)[HEADER_BYTES:])
    # How large a part may be before it is compressed, if it is compressed as well as the whole.
    free_bytes = (bytes_max - HEADER_BYTES) * len(records) // (len(batch) - HEADER_BYTES)
    parts: list[bytearray] = []
    base_sequence = header.base_sequence
    for count, max_timestamp, part in _cut_records(records, header.base_timestamp, free_bytes):
        head = header._replace(
            last_offset_delta=count - 1,
            max_timestamp=max_timestamp,
            base_sequence=base_sequence,
            record_count=count,
        )
        parts += divide_batch(_joined(head, part), bytes_max)
        base_sequence = increment_sequence(base_sequence, count)
    return parts


def plain_batch(batch: bytearray | memoryview) -> bytearray:
    """Return the batch without compression."""
    header = parse_header(batch)
    records = decompress(header.compression, memoryview(batch)[HEADER_BYTES:])
    return _joined(header._replace(attributes=header.attributes & ~COMPRESSION_MASK), records)


def _cut_records(
    records: bytes, base_timestamp: int, free_bytes: int
) -> Iterator[tuple[int, int, bytearray]]:
    """Yield record count, maximum timestamp and records of each part."""
    part_count = -(-len(records) // max(1, free_bytes))
    wanted_bytes = -(-len(records) // part_count)
    part, count, max_timestamp = bytearray(), 0, NO_TIMESTAMP
    position = 0
    while position < len(records):
        length, start = decode_signed(records, position)
        position = start + length
        timestamp_delta, at = decode_signed(records, start + 1)
        _, rest = decode_signed(records, at)
        timestamp = base_timestamp + timestamp_delta
        record = _record(records[start:at], count, records[rest:position])
        if count and (len(part) >= wanted_bytes or len(part) + len(record) > free_bytes):
            yield count, max_timestamp, part
            part, count, max_timestamp = bytearray(), 0, timestamp
            record = _record(records[start:at], count, records[rest:position])
        part += record
        max_timestamp = max(max_timestamp, timestamp)
        count += 1
    yield count, max_timestamp, part


def _record(head: bytes, offset_delta: int, rest: bytes) -> bytes:
    body = head + encode_signed(offset_delta) + rest
    return encode_signed(len(body)) + body


def _joined(header: BatchHeader, records: bytes | bytearray) -> bytearray:
    """Return a whole batch in the header's codec, or plain if that is not larger."""
    packed = compress(header.compression, records)
    attributes = header.attributes
    if header.compression != Compression.NONE and len(packed) >= len(records):
        packed, attributes = bytes(records), attributes & ~COMPRESSION_MASK
    length = HEADER_BYTES - LENGTH_END + len(packed)
    batch = bytearray(encode_header(header._replace(length=length, attributes=attributes)))
    batch += packed
    refresh_crc(batch, 0, len(batch))
    return batch
