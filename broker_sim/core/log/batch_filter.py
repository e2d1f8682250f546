"""Batches with some records taken out: what compaction writes.

What is left keeps its place: base offset, last offset delta, base sequence, producer and leader
epoch stay, so no offset moves and no sequence is lost. Kept records are copied as bytes, for their
offset deltas count from the same base. Only when a delete horizon is set are timestamps written
again: the horizon stands in the base timestamp, from which their deltas count (KIP-534).

Sources: Kafka's `MemoryRecords.filterTo`, `DefaultRecordBatch.writeEmptyHeader`. Unlike there the
base timestamp of a filtered batch stays what it was, not that of its first record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker_sim.core.log.compression import Codecs
from txnlog_kafka.wire.records import (
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER_BYTES,
    LENGTH_END,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    Compression,
    CorruptBatch,
    encode_header,
    refresh_crc,
    to_int64,
)
from txnlog_kafka.wire.varint import MalformedVarint, decode_signed, encode_signed

_EMPTY_MASK = TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK


class RawRecord(NamedTuple):
    """Bounds and key of a record in the plain records of a batch."""

    record_offset: int
    key: bytes | None
    has_value: bool
    timestamp_delta: int
    start: int
    """Position of the record's length field."""
    after_timestamp: int
    """Position of the offset delta: a new timestamp leaves the bytes from here on unchanged."""
    end: int


def raw_records(plain: bytes, header: BatchHeader) -> Iterator[RawRecord]:
    """The records of a batch. Raises CorruptBatch where they are not what the header says.

    One that claims an offset outside of its batch gets the nearest inside: it would else count as
    the latest of its key for ever, and later records of others would go in its favour.
    """
    position = 0
    for _ in range(header.record_count):
        try:
            length, body = decode_signed(plain, position)
            end = body + length
            timestamp_delta, after_timestamp = decode_signed(plain, body + 1)
            offset_delta, at = decode_signed(plain, after_timestamp)
            key_length, at = decode_signed(plain, at)
            key = None
            if key_length >= 0:
                key = plain[at : at + key_length]
                at += key_length
            value_length, at = decode_signed(plain, at)
        except MalformedVarint as error:
            raise CorruptBatch(f"a record of the batch at {header.base_offset} is torn") from error
        if length < 0 or at + max(value_length, 0) > end or end > len(plain):
            raise CorruptBatch(f"a record of the batch at {header.base_offset} is out of bounds")
        yield RawRecord(
            header.base_offset + min(max(offset_delta, 0), header.last_offset_delta),
            key,
            value_length >= 0,
            timestamp_delta,
            position,
            after_timestamp,
            end,
        )
        position = end
    if position != len(plain):
        raise CorruptBatch(f"bytes after the last record of the batch at {header.base_offset}")


def empty_batch(header: BatchHeader) -> bytes:
    """The batch without records: a header that keeps offsets, sequence, epochs and newest time."""
    return _encode(
        header._replace(
            attributes=header.attributes & _EMPTY_MASK,
            base_timestamp=NO_TIMESTAMP,
            record_count=0,
        ),
        b"",
    )


def filtered_batch(
    header: BatchHeader,
    plain: bytes,
    kept: Sequence[RawRecord],
    codecs: Codecs,
    *,
    new_delete_horizon_ms: int | None,
) -> bytes:
    """The batch with these of its records, compressed as before. At least one record.

    Raises CorruptBatch when it has to be compressed and the host cannot.
    """
    if new_delete_horizon_ms is None:
        records = b"".join(plain[record.start : record.end] for record in kept)
        base_timestamp, attributes = header.base_timestamp, header.attributes
    else:
        base_timestamp, attributes = new_delete_horizon_ms, header.attributes | DELETE_HORIZON_MASK
        shift_ms = header.base_timestamp - base_timestamp
        records = b"".join(_restamped(plain, record, shift_ms) for record in kept)
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        stamps = (to_int64(header.base_timestamp + record.timestamp_delta) for record in kept)
        max_timestamp = max(stamps)
    if header.compression != Compression.NONE:
        if codecs.compress is None:
            raise CorruptBatch(f"the batch at {header.base_offset} cannot be compressed here")
        records = codecs.compress(header.compression, records)
    return _encode(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=len(kept),
        ),
        records,
    )


def _restamped(plain: bytes, record: RawRecord, shift_ms: int) -> bytes:
    delta = encode_signed(to_int64(record.timestamp_delta + shift_ms))
    rest = plain[record.after_timestamp : record.end]
    return encode_signed(1 + len(delta) + len(rest)) + b"\x00" + delta + rest


def _encode(header: BatchHeader, records: bytes) -> bytes:
    length = HEADER_BYTES - LENGTH_END + len(records)
    batch = bytearray(encode_header(header._replace(length=length)) + records)
    refresh_crc(batch, 0, len(batch))
    return bytes(batch)
