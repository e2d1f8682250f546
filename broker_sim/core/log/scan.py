"""Walking a log file on disk, batch by batch, through the read-only `Storage`.

Two walks: headers only (finding a position in a part of the log that is not held in memory) and
whole batches with their CRC checked (recovery). Both stop at `end`, read the file in chunks, and
raise CorruptBatch at bytes that are not a batch; what was yielded before is good.
"""

from __future__ import annotations

from collections.abc import Iterator

from crc32c_rs import crc32c

from broker_sim.core.effects import Storage
from txnlog_kafka.wire.records import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    CorruptBatch,
    check_crc,
    check_shape,
    parse_header,
)

_HEADERS_CHUNK_BYTES = 16 << 10
_BATCHES_CHUNK_BYTES = 1 << 20
_TEAR_BYTES_MAX = 16 << 20
"""Bytes behind a torn batch that are searched for a whole batch."""


def scan_headers(
    storage: Storage, path: str, start: int, end: int
) -> Iterator[tuple[BatchHeader, int]]:
    """Each batch's header and position in [start, end). Batches are not read, CRCs not checked."""
    chunk, chunk_at, position = b"", start, start
    length = _HEADERS_CHUNK_BYTES
    while position < end:
        if position + HEADER_BYTES > chunk_at + len(chunk):
            chunk, chunk_at = storage.read(path, position, length), position
        header = _header(chunk, position - chunk_at, path, position, end)
        yield header, position
        position += header.size_bytes
        # Behind a big batch the rest of a chunk would be read for nothing.
        big = header.size_bytes > _HEADERS_CHUNK_BYTES
        length = HEADER_BYTES if big else _HEADERS_CHUNK_BYTES


def scan_batches(
    storage: Storage, path: str, start: int, end: int
) -> Iterator[tuple[BatchHeader, int, bytes]]:
    """Each batch's header, position and bytes in [start, end), CRC checked."""
    chunk, chunk_at, position = b"", start, start
    while position < end:
        if position + HEADER_BYTES > chunk_at + len(chunk):
            chunk, chunk_at = storage.read(path, position, _BATCHES_CHUNK_BYTES), position
        header = _header(chunk, position - chunk_at, path, position, end)
        if position + header.size_bytes > chunk_at + len(chunk):
            length = max(_BATCHES_CHUNK_BYTES, header.size_bytes)
            chunk, chunk_at = storage.read(path, position, length), position
        at = position - chunk_at
        batch = chunk[at : at + header.size_bytes]
        if len(batch) < header.size_bytes:
            raise _damaged(path, position, "it is torn")
        try:
            check_crc(batch, 0, header)
        except CorruptBatch as corrupt:
            raise _damaged(path, position, str(corrupt)) from corrupt
        yield header, position, batch
        position += header.size_bytes


def _header(chunk: bytes, at: int, path: str, position: int, end: int) -> BatchHeader:
    try:
        header = parse_header(chunk, at)
        check_shape(header)
    except CorruptBatch as corrupt:
        raise _damaged(path, position, str(corrupt)) from corrupt
    if header.base_offset < 0:
        raise _damaged(path, position, f"base offset {header.base_offset} is negative")
    if position + LENGTH_END + header.length > end:
        raise _damaged(path, position, f"it ends after {end}")
    return header


def _damaged(path: str, position: int, reason: str) -> CorruptBatch:
    return CorruptBatch(f"{path}: no valid batch at position {position}: {reason}")


def is_torn(storage: Storage, path: str, position: int, end: int) -> bool:
    """True if the bytes from `position` on, where no valid batch is, look like an incomplete write.

    A write that a crash interrupted leaves the first part of its last batch, or zeros, and nothing
    after it. Any other bytes have changed later: a whole batch that is not valid, or a valid batch
    somewhere behind. That is damage, and truncating it would lose more than an unfinished write.
    """
    rest = storage.read(path, position, min(end - position, _TEAR_BYTES_MAX))
    if len(rest) < HEADER_BYTES or not any(rest):
        return True
    length = parse_header(rest).length
    if 0 <= length <= end - position - LENGTH_END:
        return False
    if crc32c(rest[ATTRIBUTES_AT:]) == parse_header(rest).crc:
        return False  # the length is wrong: the batch is whole
    return not _holds_batch(rest)


def _holds_batch(data: bytes) -> bool:
    """A valid batch begins somewhere after the first byte."""
    at = data.find(MAGIC, MAGIC_AT + 1)
    while at >= 0:
        start = at - MAGIC_AT
        if len(data) - start >= HEADER_BYTES:
            header = parse_header(data, start)
            fits = HEADER_BYTES - LENGTH_END <= header.length <= len(data) - start - LENGTH_END
            checked = data[start + ATTRIBUTES_AT : start + header.size_bytes]
            if fits and crc32c(checked) == header.crc:
                return True
        at = data.find(MAGIC, at + 1)
    return False
