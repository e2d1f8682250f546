"""The records of a compressed batch, for the one place that looks into them: ListOffsets by time.

pyarrow has the codecs; it is imported when the first compressed batch is looked into, because most
brokers never do. What comes out is limited, so that a batch made to explode costs an error. The
framings are those that Kafka's clients write: gzip, LZ4 frames, Zstandard frames, and Snappy as
Java's `SnappyOutputStream` frames it or as librdkafka's single raw block.
"""

from __future__ import annotations

import struct
from typing import Any

from txnlog_spark.wire.records import Compression, CorruptBatch

DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_BLOCK_LENGTH = struct.Struct(">i")


def decompress(codec: int, data: bytes) -> bytes:
    """The records before compression. Raises CorruptBatch, also for more than the limit."""
    import pyarrow

    try:
        if codec == Compression.SNAPPY:
            return _snappy(pyarrow, data)
        name = Compression(codec).name.lower()
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(data), name) as stream:
            plain = bytes(stream.read(DECOMPRESSED_BYTES_MAX + 1))
    except (ValueError, OSError, IndexError, struct.error) as error:
        raise CorruptBatch(f"records cannot be decompressed: {error}") from error
    _check_size(len(plain))
    return plain


def _snappy(pyarrow: Any, data: bytes) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _snappy_block(pyarrow, data, 0)
    parts: list[bytes] = []
    size_bytes = 0
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        (length,) = _BLOCK_LENGTH.unpack_from(data, position)
        position += _BLOCK_LENGTH.size
        if not 0 <= length <= len(data) - position:
            raise CorruptBatch(f"a Snappy block of {length} bytes is out of the batch")
        parts.append(_snappy_block(pyarrow, data[position : position + length], size_bytes))
        size_bytes += len(parts[-1])
        position += length
    return b"".join(parts)


def _snappy_block(pyarrow: Any, block: bytes, before_bytes: int) -> bytes:
    size_bytes = _unsigned_varint(block)
    _check_size(before_bytes + size_bytes)
    return bytes(pyarrow.Codec("snappy").decompress(block, size_bytes, asbytes=True))


def _unsigned_varint(data: bytes) -> int:
    """The length that a raw Snappy block begins with: at most 32 bits."""
    value = 0
    for position in range(5):
        value |= (data[position] & 0x7F) << (7 * position)
        if data[position] < 0x80:
            return value
    raise CorruptBatch("a Snappy length of more than five bytes")


def _check_size(size_bytes: int) -> None:
    if size_bytes > DECOMPRESSED_BYTES_MAX:
        raise CorruptBatch(f"records of {size_bytes} bytes are over {DECOMPRESSED_BYTES_MAX}")
