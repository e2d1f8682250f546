"""The record batch (magic 2): header layout, CRC, stamping, control records, and a plain codec.

Layout, big-endian, 61 bytes before the records (source: Kafka's `DefaultRecordBatch`, KIP-98):

    offset  size  field                     in CRC
    0       8     base offset               no: the leader assigns it
    8       4     length of all after it    no
    12      4     partition leader epoch    no: the leader assigns it without recomputing
    16      1     magic                     no
    17      4     CRC-32C of [21, end)      -
    21      2     attributes                yes
    23      4     last offset delta         yes
    27      8     base timestamp            yes
    35      8     max timestamp             yes
    43      8     producer id               yes
    51      2     producer epoch            yes
    53      4     base sequence             yes
    57      4     record count              yes

The scalar codec here serves control records, internal topics and tests: small batches, read for
their meaning. Data on the hot path goes through `txnlog_spark.codec`, whole columns at a time.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c_rs import crc32c

from txnlog_kafka.wire.varint import decode_signed, encode_signed

HEADER_BYTES = 61
RECORD_BYTES_MIN = 7
"""Size of a record without key, value and headers: seven fields of one byte."""
LENGTH_AT = 8
LENGTH_END = 12
"""Position after which `length` counts the bytes."""
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
RECORD_COUNT_AT = 57

MAGIC = 2
OLD_MAGICS = (0, 1)
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
PRODUCER_EPOCH_MAX = 32767
"""Largest epoch; no client ever gets it, so that fencing stays possible."""
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1
SEQUENCE_MAX = 2**31 - 1
SHOWN_KEY_BYTES_MAX = 40

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40

HEADER_FORMAT = ">qiibIhiqqqhii"
"""Fields of `BatchHeader`, as a format of `struct`."""
_HEADER = struct.Struct(HEADER_FORMAT)
_PRODUCER = struct.Struct(">qhi")
_OLD_START = struct.Struct(">qi")
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT16 = struct.Struct(">h")
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")


class Compression(enum.IntEnum):
    """Codec numbers in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class MarkerType(enum.IntEnum):
    """Types of control records. A COMMIT or ABORT marker ends a transaction in one partition."""

    ABORT = 0
    COMMIT = 1


class CorruptBatch(ValueError):
    """Bytes that are not a whole, valid record batch; the text says which check failed."""


class OldFormat(CorruptBatch):
    """Records of message format v0 or v1, which have no batch as it is read here."""


class BatchHeader(NamedTuple):
    """Header with its 13 fields as stored, and values computed from them."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return LENGTH_END + self.length

    @property
    def last_offset(self) -> int:
        """Last offset of the batch, inclusive."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """First offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Last sequence of the batch, inclusive, with the wrap from 2^31-1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def compression(self) -> int:
        """Codec number."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        """True for a part of a transaction: data or marker."""
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        """True for a marker, which an application never gets."""
        return bool(self.attributes & CONTROL_MASK)

    @property
    def is_log_append_time(self) -> bool:
        """True if all records carry `max_timestamp`, set by the broker."""
        return bool(self.attributes & TIMESTAMP_TYPE_MASK)

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time when tombstones and markers in the batch may be deleted; stored in the base
        timestamp.

        The cleaner sets it when it first sees them (KIP-534), None before.
        """
        return self.base_timestamp if self.attributes & DELETE_HORIZON_MASK else None

    @property
    def has_producer_id(self) -> bool:
        """True if an idempotent or transactional producer wrote the batch."""
        return self.producer_id >= 0


def increment_sequence(sequence: int, increment: int) -> int:
    """Return `sequence + increment` on the circle 0 .. 2^31-1 (Kafka's `incrementSequence`)."""
    return (sequence + increment) & SEQUENCE_MAX


def to_int64(value: int) -> int:
    """Return the value as 64 bits hold it: sums of a lying producer's numbers wrap, as in Java."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def parse_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """Return the header at `position`. Raises CorruptBatch if fewer than 61 bytes are left."""
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptBatch(f"{len(buffer) - position} bytes are left, a header takes 61")
    return BatchHeader._make(_HEADER.unpack_from(buffer, position))


def record_count_of(buffer: bytes | bytearray | memoryview, position: int = 0) -> int:
    """Return the record count of the whole batch at `position`, without any check."""
    count: int = _INT32.unpack_from(buffer, position + RECORD_COUNT_AT)[0]
    return count


def encode_header(header: BatchHeader) -> bytes:
    """Return the 61 bytes of a header, its CRC field unchanged; the inverse of `parse_header`."""
    return _HEADER.pack(*header)


def iter_batches(
    buffer: bytes | bytearray | memoryview, position: int = 0
) -> Iterator[tuple[BatchHeader, int]]:
    """Yield each whole batch's header and position; a torn last batch ends the walk silently.

    A Fetch answer may end in the middle of a batch: that is not corruption (KIP-74). Raises
    OldFormat, and CorruptBatch for an impossible magic or length.
    """
    end = len(buffer)
    while end - position > MAGIC_AT:
        if buffer[position + MAGIC_AT] in OLD_MAGICS:
            _refuse_old_format(buffer, position)
        if end - position < HEADER_BYTES:
            return
        header = parse_header(buffer, position)
        after = position + header.size_bytes
        if after > end:
            return
        check_shape(header)
        yield header, position
        position = after


def _refuse_old_format(buffer: bytes | bytearray | memoryview, position: int) -> None:
    """Raise OldFormat if the record is whole and valid in message format v0 or v1.

    In these formats the CRC-32 stands before the magic and covers all bytes from the magic on; a
    record may be shorter than a header of today. An invalid record is a batch of today with a
    damaged magic.
    """
    magic = buffer[position + MAGIC_AT]
    offset, length = _OLD_START.unpack_from(buffer, position)
    (crc,) = _UINT32.unpack_from(buffer, position + LENGTH_END)
    with memoryview(buffer) as view:
        if zlib.crc32(view[position + MAGIC_AT : position + LENGTH_END + length]) == crc:
            raise OldFormat(f"the record at offset {offset} is of message format v{magic}")


def check_shape(header: BatchHeader) -> None:
    """Raise CorruptBatch for a header whose own fields cannot be true."""
    if header.magic != MAGIC:
        raise CorruptBatch(f"magic {header.magic} is not {MAGIC}")
    if header.length < HEADER_BYTES - LENGTH_END:
        raise CorruptBatch(f"batch length {header.length} is shorter than a header")
    if header.last_offset_delta < 0:
        raise CorruptBatch(f"last offset delta {header.last_offset_delta} is negative")


def check_crc(buffer: bytes | bytearray | memoryview, position: int, header: BatchHeader) -> None:
    """Raise CorruptBatch unless the CRC-32C over [attributes, end) is the stored CRC."""
    with memoryview(buffer) as view:
        computed = crc32c(view[position + ATTRIBUTES_AT : position + header.size_bytes])
    if computed != header.crc:
        raise CorruptBatch(
            f"CRC {computed:#010x} of the batch at base offset {header.base_offset} is not the "
            f"stored {header.crc:#010x}"
        )


def stamp_offsets(
    buffer: bytearray | memoryview, position: int, *, base_offset: int, leader_epoch: int
) -> None:
    """Set the fields that the leader assigns. Both fields lie outside the CRC."""
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + LEADER_EPOCH_AT, leader_epoch)


def stamp_producer(
    buffer: bytearray | memoryview,
    position: int,
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> None:
    """Make a staged batch a transactional batch of this producer, and recompute its CRC."""
    header = parse_header(buffer, position)
    _PRODUCER.pack_into(
        buffer, position + PRODUCER_ID_AT, producer_id, producer_epoch, base_sequence
    )
    attributes = header.attributes | TRANSACTIONAL_MASK
    _INT16.pack_into(buffer, position + ATTRIBUTES_AT, attributes)
    refresh_crc(buffer, position, header.size_bytes)


def refresh_crc(buffer: bytearray | memoryview, position: int, size_bytes: int) -> None:
    """Recompute and store the CRC of the batch at `position`."""
    with memoryview(buffer) as view:
        crc = crc32c(view[position + ATTRIBUTES_AT : position + size_bytes])
    _UINT32.pack_into(buffer, position + CRC_AT, crc)


def shown_key(key: bytes | None) -> str:
    """Return a record's key for a text."""
    return "null" if key is None else repr(key[:SHOWN_KEY_BYTES_MAX])


@dataclass(frozen=True, slots=True)
class Record:
    """Record of a small batch, as a plain value. Offsets are absolute, timestamps in ms."""

    key: bytes | None
    value: bytes | None
    timestamp: int = NO_TIMESTAMP
    headers: tuple[tuple[str, bytes | None], ...] = ()
    record_offset: int = 0


@dataclass(frozen=True, slots=True)
class TransactionMarker:
    """Marker (COMMIT or ABORT) of one producer, written by a transaction coordinator."""

    producer_id: int
    producer_epoch: int
    marker_type: MarkerType
    coordinator_epoch: int


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """Return an uncompressed batch; record i gets offset delta i. At least one record is needed."""
    if not records:
        raise ValueError("a record batch holds at least one record")
    base_timestamp = records[0].timestamp
    body = bytearray()
    for delta, record in enumerate(records):
        _encode_record(body, record, delta, base_timestamp)
    attributes = TRANSACTIONAL_MASK * transactional | CONTROL_MASK * control
    header = _HEADER.pack(
        base_offset, HEADER_BYTES - LENGTH_END + len(body), leader_epoch, MAGIC, 0, attributes,
        len(records) - 1, base_timestamp, max(r.timestamp for r in records),
        producer_id, producer_epoch, base_sequence, len(records),
    )  # fmt: skip
    batch = bytearray(header + body)
    refresh_crc(batch, 0, len(batch))
    return bytes(batch)


def encode_marker(marker: TransactionMarker, *, timestamp: int) -> bytes:
    """Return the control batch of a marker: one record, key (version, type), value (version,
    epoch)."""
    key = _MARKER_KEY.pack(0, marker.marker_type)
    value = _MARKER_VALUE.pack(0, marker.coordinator_epoch)
    return encode_batch(
        [Record(key, value, timestamp)],
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transactional=True,
        control=True,
    )


def decode_marker(
    buffer: bytes | bytearray | memoryview, position: int, header: BatchHeader
) -> TransactionMarker | None:
    """Return the marker of a control batch; None for an emptied batch or another control type."""
    if header.record_count < 0:
        raise CorruptBatch(
            f"control batch at offset {header.base_offset} has {header.record_count} records"
        )
    if header.record_count == 0:
        return None
    record = next(iter(decode_records(buffer, position, header)))
    if record.key is None or len(record.key) < _MARKER_KEY.size:
        raise CorruptBatch(f"control record at offset {header.base_offset} has no key")
    _, kind = _MARKER_KEY.unpack_from(record.key)
    if kind not in (MarkerType.ABORT, MarkerType.COMMIT):
        return None
    if record.value is None or len(record.value) < _MARKER_VALUE.size:
        raise CorruptBatch(f"marker at offset {header.base_offset} has no coordinator epoch")
    _, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
    return TransactionMarker(
        header.producer_id, header.producer_epoch, MarkerType(kind), coordinator_epoch
    )


def decode_records(
    buffer: bytes | bytearray | memoryview, position: int, header: BatchHeader
) -> Iterator[Record]:
    """Yield the records of an uncompressed batch. Raises CorruptBatch, also if compressed."""
    if header.compression != Compression.NONE:
        raise CorruptBatch(f"batch at {header.base_offset} is compressed, expected a plain one")
    data = bytes(memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes])
    at = 0
    try:
        for _ in range(header.record_count):
            record, at = _decode_record(data, at, header)
            yield record
    except (IndexError, ValueError) as error:
        raise CorruptBatch(f"records of the batch at {header.base_offset}: {error}") from error
    if at != len(data):
        raise CorruptBatch(f"{len(data) - at} bytes after the last record")


def _encode_nullable(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out += encode_signed(-1)
    else:
        out += encode_signed(len(data))
        out += data


def _encode_record(out: bytearray, record: Record, delta: int, base_timestamp: int) -> None:
    body = bytearray(b"\x00")
    body += encode_signed(record.timestamp - base_timestamp)
    body += encode_signed(delta)
    _encode_nullable(body, record.key)
    _encode_nullable(body, record.value)
    body += encode_signed(len(record.headers))
    for name, value in record.headers:
        _encode_nullable(body, name.encode())
        _encode_nullable(body, value)
    out += encode_signed(len(body))
    out += body


def _decode_nullable(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = decode_signed(data, position)
    if length < 0:
        return None, position
    if position + length > len(data):
        raise ValueError(f"a field of {length} bytes is out of the batch")
    return data[position : position + length], position + length


def _decode_record(data: bytes, position: int, header: BatchHeader) -> tuple[Record, int]:
    length, position = decode_signed(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise ValueError(f"a record of {length} bytes is out of the batch")
    timestamp_delta, position = decode_signed(data, position + 1)
    offset_delta, position = decode_signed(data, position)
    key, position = _decode_nullable(data, position)
    value, position = _decode_nullable(data, position)
    header_count, position = decode_signed(data, position)
    headers = []
    for _ in range(header_count):
        name, position = _decode_nullable(data, position)
        header_value, position = _decode_nullable(data, position)
        headers.append(((name or b"").decode(), header_value))
    if position != end:
        raise ValueError(f"a record ends at {position}, its length says {end}")
    timestamp = (
        header.max_timestamp
        if header.is_log_append_time
        else to_int64(header.base_timestamp + timestamp_delta)
    )
    offset = header.base_offset + offset_delta
    return Record(key, value, timestamp, tuple(headers), offset), position
