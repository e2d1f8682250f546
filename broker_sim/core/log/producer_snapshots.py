"""Producer snapshots: the producer states of a partition at one offset, as Kafka writes them.

`<offset>.snapshot`, version 1, big-endian (Kafka's `ProducerStateManager`):

    int16 version, uint32 CRC-32C over all that follows, int32 entry count, entries of
    (int64 producer id, int16 epoch, int32 last sequence, int64 last offset, int32 offset delta,
     int64 timestamp, int32 coordinator epoch, int64 first offset of the open transaction or -1)

Only the newest batch of each producer is kept, so after a reload without replay the window of
duplicates is 1 instead of 5. A last offset of -1 says that only a marker was seen.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from crc32c_rs import crc32c

from broker_sim.core.log.producer_state import BatchMetadata, ProducerStateEntry

SUFFIX = ".snapshot"
_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class CorruptSnapshot(ValueError):
    """Bytes that are not a valid snapshot; recovery goes on with an older one."""


def snapshot_name(next_offset: int) -> str:
    """The file name of the state before `next_offset` is appended."""
    return f"{next_offset:020d}{SUFFIX}"


def encode_snapshot(entries: Iterable[ProducerStateEntry]) -> bytes:
    """The whole file; producers by id, so that one state has one encoding."""
    ordered = sorted(entries, key=lambda entry: entry.producer_id)
    body = b"".join([_COUNT.pack(len(ordered)), *map(_encode_entry, ordered)])
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def _encode_entry(entry: ProducerStateEntry) -> bytes:
    last = entry.batches[-1] if entry.batches else BatchMetadata(-1, -1, 0, -1)
    first_offset = entry.current_txn_first_offset
    return _ENTRY.pack(
        entry.producer_id,
        entry.producer_epoch,
        last.last_sequence,
        last.last_offset,
        last.offset_delta,
        entry.last_timestamp,
        entry.coordinator_epoch,
        -1 if first_offset is None else first_offset,
    )


def decode_snapshot(data: bytes) -> list[ProducerStateEntry]:
    """The entries. Raises CorruptSnapshot for a wrong CRC, version or length."""
    head_bytes = _HEAD.size + _COUNT.size
    if len(data) < head_bytes:
        raise CorruptSnapshot(f"{len(data)} bytes are not a snapshot")
    version, crc = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptSnapshot(f"version {version} is not known")
    if crc32c(data[_HEAD.size :]) != crc:
        raise CorruptSnapshot("the CRC is wrong")
    (count,) = _COUNT.unpack_from(data, _HEAD.size)
    if len(data) != head_bytes + count * _ENTRY.size:
        raise CorruptSnapshot(f"{len(data)} bytes do not hold {count} entries")
    return [_decode_entry(fields) for fields in _ENTRY.iter_unpack(data[head_bytes:])]


def _decode_entry(fields: tuple[int, ...]) -> ProducerStateEntry:
    producer_id, epoch, sequence, last_offset, delta, timestamp, coordinator, first = fields
    last = BatchMetadata(sequence, last_offset, delta, timestamp)
    return ProducerStateEntry(
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator,
        last_timestamp=timestamp,
        current_txn_first_offset=first if first >= 0 else None,
        batches=(last,) if last_offset >= 0 else (),
    )
