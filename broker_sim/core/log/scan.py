"""Walking a log file on disk, batch by batch, through the read-only `Storage`.

Two walks: headers only (finding a position in a part of the log that is not held in memory) and
whole batches with their CRC checked (recovery). Both stop at `end`, read the file in chunks, and
raise CorruptBatch at bytes that are no batch; what was yielded before is good.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker_sim.core.effects import Storage
from txnlog_spark.wire.records import (
    HEADER_BYTES,
    LENGTH_END,
    BatchHeader,
    CorruptBatch,
    check_crc,
    check_shape,
    parse_header,
)

_HEADERS_CHUNK_BYTES = 16 << 10
_BATCHES_CHUNK_BYTES = 1 << 20


def scan_headers(
    storage: Storage, path: str, start: int, end: int
) -> Iterator[tuple[BatchHeader, int]]:
    """Each batch's header and position in [start, end). Batches are not read, CRCs not checked."""
    chunk, chunk_at, position = b"", start, start
    length = _HEADERS_CHUNK_BYTES
    while position < end:
        if position + HEADER_BYTES > chunk_at + len(chunk):
            chunk, chunk_at = storage.read(path, position, length), position
        header = _header(chunk, position - chunk_at, position, end)
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
        header = _header(chunk, position - chunk_at, position, end)
        if position + header.size_bytes > chunk_at + len(chunk):
            length = max(_BATCHES_CHUNK_BYTES, header.size_bytes)
            chunk, chunk_at = storage.read(path, position, length), position
        at = position - chunk_at
        batch = chunk[at : at + header.size_bytes]
        if len(batch) < header.size_bytes:
            raise CorruptBatch(f"the batch at position {position} is torn")
        check_crc(batch, 0, header)
        yield header, position, batch
        position += header.size_bytes


def _header(chunk: bytes, at: int, position: int, end: int) -> BatchHeader:
    header = parse_header(chunk, at)
    check_shape(header)
    if header.base_offset < 0:
        raise CorruptBatch(f"base offset {header.base_offset} is negative")
    if position + LENGTH_END + header.length > end:
        raise CorruptBatch(f"the batch at position {position} ends after {end}")
    return header
