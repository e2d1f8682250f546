"""Positions of header fields of a record batch that the product reads only with all others, and the
bytes of a batch at its place in a log."""

from __future__ import annotations

from txnlog_kafka.wire.records import stamp_offsets

LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
BASE_SEQUENCE_AT = 53


def stamped(batch: bytes | bytearray, base_offset: int, leader_epoch: int = 0) -> bytes:
    """Return the batch as a log holds it."""
    data = bytearray(batch)
    stamp_offsets(data, 0, base_offset=base_offset, leader_epoch=leader_epoch)
    return bytes(data)
