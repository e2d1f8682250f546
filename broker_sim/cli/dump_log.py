"""Dump of a segment, batch by batch: headers, CRCs, rising offsets, and records on request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from broker_sim.cli.dump_records import decode_control, decode_record
from broker_sim.cli.dump_values import Damage, Item
from broker_sim.client.reader import plain_records
from txnlog_kafka.wire.records import (
    HEADER_BYTES,
    BatchHeader,
    Compression,
    CorruptBatch,
    check_crc,
    check_shape,
    encode_header,
    parse_header,
)


def scan_batches(path: Path) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Yield (position, header, bytes) of each batch. Raises Damage at the first incomplete
    batch."""
    size_bytes = path.stat().st_size
    position = 0
    next_offset = -1
    with path.open("rb") as file:
        while position < size_bytes:
            header, batch = _read_batch(file, position, size_bytes)
            if header.base_offset < next_offset:
                reason = f"base offset {header.base_offset} after offset {next_offset - 1}"
                raise Damage(position, reason)
            next_offset = header.next_offset
            yield position, header, batch
            position += header.size_bytes


def _read_batch(file: BinaryIO, position: int, size_bytes: int) -> tuple[BatchHeader, bytes]:
    try:
        header = parse_header(file.read(HEADER_BYTES))
        check_shape(header)
        if position + header.size_bytes > size_bytes:
            left = size_bytes - position
            raise CorruptBatch(f"{left} bytes are left of a batch of {header.size_bytes}")
        batch = encode_header(header) + file.read(header.size_bytes - HEADER_BYTES)
        check_crc(batch, 0, header)
    except CorruptBatch as corrupt:
        raise Damage(position, str(corrupt)) from corrupt
    return header, batch


def dump_segment(path: Path, decoder: str, *, deep: bool) -> Iterator[Item]:
    """Yield every batch; with `deep` its records too."""
    for position, header, batch in scan_batches(path):
        yield Item("batch", _header_fields(position, header))
        if deep:
            yield from _record_items(position, header, batch, decoder)


def _header_fields(position: int, header: BatchHeader) -> dict[str, Any]:
    return {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "position": position,
        "LogAppendTime" if header.is_log_append_time else "CreateTime": header.max_timestamp,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": _codec(header),
        "crc": header.crc,
        "isvalid": True,
    }


def _codec(header: BatchHeader) -> str | int:
    try:
        return Compression(header.compression).name.lower()
    except ValueError:
        return header.compression


def _record_items(position: int, header: BatchHeader, batch: bytes, decoder: str) -> Iterator[Item]:
    sequence = header.base_sequence
    try:
        for record in plain_records(header, batch):
            delta = record.record_offset - header.base_offset
            fields: dict[str, Any] = {
                "offset": record.record_offset,
                "timestamp": record.timestamp,
                "keySize": -1 if record.key is None else len(record.key),
                "valueSize": -1 if record.value is None else len(record.value),
                "sequence": sequence + delta if sequence >= 0 else sequence,
            }
            if record.headers:
                fields["headers"] = [
                    f"{name}={None if value is None else value.decode(errors='replace')}"
                    for name, value in record.headers
                ]
            meaning = (
                decode_control(record) if header.is_control else decode_record(record, decoder)
            )
            yield Item("record", {**fields, **meaning})
    except CorruptBatch as corrupt:
        raise Damage(position, str(corrupt)) from corrupt
