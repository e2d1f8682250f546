"""Checks of the leader on the bytes of an append, without decoding a record.

The order of checks and the error codes are Kafka's (`UnifiedLog.analyzeAndValidateRecords`,
`LogValidator`). Records stay opaque, except for their keys in a compacted topic. Offsets are
assigned from the last offset delta, so a batch with a wrong header hurts only its own readers.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_sim.core.effects import Effects
from broker_sim.core.log.batch_filter import raw_records
from broker_sim.core.log.compression import NO_CODECS, Codecs
from broker_sim.core.log.config import INT64_MAX, LogConfig
from broker_sim.core.log.values import AppendOrigin, Rejection
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import (
    HEADER_BYTES,
    MAGIC,
    MAGIC_AT,
    NO_TIMESTAMP,
    BatchHeader,
    Compression,
    CorruptBatch,
    TransactionMarker,
    check_crc,
    check_shape,
    decode_marker,
    parse_header,
)

_COMPRESSION_MAX = max(Compression)
KEYED_RECORDS_MAX = 200_000
"""Records whose keys are looked at for one request: those of a compressed batch of a few hundred
bytes could keep the broker busy for minutes, and a request has many batches."""
DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
"""Decompressed bytes of a single request; a batch that begins below the limit may exceed it."""
KEYLESS_NAMED_MAX = 1000
"""Records without a key that the answer names at most."""


@dataclass(slots=True)
class IncomingBatch:
    """A batch of an append: its header as sent and its position in the bytes."""

    header: BatchHeader
    position: int
    marker: TransactionMarker | None = None


def parse_append(
    data: bytes,
    *,
    origin: AppendOrigin,
    config: LogConfig,
    effects: Effects,
    codecs: Codecs = NO_CODECS,
) -> list[IncomingBatch] | Rejection:
    """The batches of `data`, each whole and valid, or why the append is refused.

    `effects` are of the step: its time, and what it has looked at before.
    """
    batches: list[IncomingBatch] = []
    position = 0
    while position < len(data):
        if len(data) - position > MAGIC_AT and data[position + MAGIC_AT] != MAGIC:
            magic = data[position + MAGIC_AT]
            return Rejection(ErrorCode.INVALID_RECORD, f"magic {magic} is not {MAGIC}")
        try:
            batch = _parse_batch(data, position, origin)
        except CorruptBatch as corrupt:
            return Rejection(ErrorCode.CORRUPT_MESSAGE, str(corrupt))
        rejection = _check_batch(batch.header, origin, config, effects.now_ms)
        if rejection is None and config.compacts and origin is AppendOrigin.CLIENT:
            rejection = _check_keys(batch, data, codecs, effects)
        if rejection is not None:
            return rejection
        batches.append(batch)
        position += batch.header.size_bytes
    if not batches:
        return Rejection(ErrorCode.INVALID_RECORD, "an append holds at least one record batch")
    if len(data) > config.segment_bytes:
        text = f"{len(data)} bytes are over segment.bytes={config.segment_bytes}"
        return Rejection(ErrorCode.RECORD_LIST_TOO_LARGE, text)
    return batches


def _parse_batch(data: bytes, position: int, origin: AppendOrigin) -> IncomingBatch:
    header = parse_header(data, position)
    check_shape(header)
    if position + header.size_bytes > len(data):
        raise CorruptBatch(
            f"a batch of {header.size_bytes} bytes has {len(data) - position} bytes left"
        )
    check_crc(data, position, header)
    # A client's is refused whatever is in it.
    is_marker = header.is_control and origin is not AppendOrigin.CLIENT
    marker = decode_marker(data, position, header) if is_marker else None
    return IncomingBatch(header, position, marker)


def _check_batch(
    header: BatchHeader, origin: AppendOrigin, config: LogConfig, now_ms: int
) -> Rejection | None:
    if origin is AppendOrigin.REPLICATION:
        return None
    if header.size_bytes > config.max_message_bytes:
        return Rejection(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a record batch of {header.size_bytes} bytes is over "
            f"max.message.bytes={config.max_message_bytes}",
        )
    if origin is not AppendOrigin.CLIENT:
        return None
    text = _shape_fault(header) or _producer_fault(header)
    if text is not None:
        return Rejection(ErrorCode.INVALID_RECORD, text)
    if header.compression > _COMPRESSION_MAX:
        return Rejection(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {header.compression} is not known"
        )
    return _check_timestamps(header, config, now_ms)


def _shape_fault(header: BatchHeader) -> str | None:
    if header.base_offset != 0:
        return f"base offset {header.base_offset} of a produced batch should be 0"
    if header.is_control:
        return "clients are not allowed to write control batches"
    if header.record_count <= 0:
        return f"record count {header.record_count} is not positive"
    if header.last_offset_delta + 1 != header.record_count:
        return (
            f"last offset delta {header.last_offset_delta} does not fit "
            f"record count {header.record_count}"
        )
    if header.size_bytes == HEADER_BYTES:
        return f"{header.record_count} records in no bytes"
    return None


def _producer_fault(header: BatchHeader) -> str | None:
    if not header.has_producer_id:
        return "a transactional batch has no producer id" if header.is_transactional else None
    if header.producer_epoch < 0 or header.base_sequence < 0:
        return (
            f"epoch {header.producer_epoch} or sequence {header.base_sequence} of producer "
            f"{header.producer_id} is negative"
        )
    return None


def _check_keys(
    batch: IncomingBatch, data: bytes, codecs: Codecs, effects: Effects
) -> Rejection | None:
    """A compacted topic takes no record without a key. The only look into records there is."""
    header, position = batch.header, batch.position
    if not codecs.can_read(header):
        return None
    effects.keyed_records += header.record_count
    if effects.keyed_records > KEYED_RECORDS_MAX:
        return Rejection(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{effects.keyed_records} records of compacted topics in one request are over "
            f"{KEYED_RECORDS_MAX}",
        )
    if effects.decompressed_bytes > DECOMPRESSED_BYTES_MAX:
        return Rejection(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batches of compacted topics in one request are over {DECOMPRESSED_BYTES_MAX} "
            "bytes before compression",
        )
    try:
        plain = codecs.plain_records(header, data[position : position + header.size_bytes])
        effects.decompressed_bytes += len(plain)
        keyless = [i for i, r in enumerate(raw_records(plain, header)) if r.key is None]
    except CorruptBatch as corrupt:
        return Rejection(ErrorCode.CORRUPT_MESSAGE, str(corrupt))
    if not keyless:
        return None
    return Rejection(
        ErrorCode.INVALID_RECORD,
        "Compacted topic cannot accept message without key",
        tuple(keyless[:KEYLESS_NAMED_MAX]),
    )


def _check_timestamps(header: BatchHeader, config: LogConfig, now_ms: int) -> Rejection | None:
    if config.is_log_append_time:
        return None
    if header.is_log_append_time:
        text = "a producer should not set the timestamp type LogAppendTime"
        return Rejection(ErrorCode.INVALID_TIMESTAMP, text)
    newest, oldest = header.max_timestamp, header.base_timestamp
    if newest != NO_TIMESTAMP and newest - now_ms > config.message_timestamp_after_max_ms:
        text = f"timestamp {newest} is over message.timestamp.after.max.ms after {now_ms}"
        return Rejection(ErrorCode.INVALID_TIMESTAMP, text)
    before_max_ms = config.message_timestamp_before_max_ms
    if before_max_ms != INT64_MAX and oldest != NO_TIMESTAMP and now_ms - oldest > before_max_ms:
        text = f"timestamp {oldest} is over message.timestamp.before.max.ms before {now_ms}"
        return Rejection(ErrorCode.INVALID_TIMESTAMP, text)
    return None
