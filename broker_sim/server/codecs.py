"""The compressed records of a batch, for the few that look into them: lookups by time, the cleaner.

pyarrow has the codecs; it is imported when the first compressed batch is looked into, because most
brokers never do. What comes out is limited, so that a batch made to explode costs an error. The
framings are those that Kafka's clients read and write: gzip, LZ4 frames, Zstandard frames, and
Snappy as Java's `SnappyOutputStream` frames it or as librdkafka's single raw block. LZ4 frames are
written here block by block: Kafka's reader takes no linked blocks, the only ones Arrow makes.
"""

from __future__ import annotations

import struct
from typing import Any

from broker_sim.core.log.compression import Codecs
from txnlog_spark.wire.records import Compression, CorruptBatch

DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_BLOCK_LENGTH = struct.Struct(">i")
_XERIAL_VERSIONS = struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 << 10
_LZ4_HEADER = bytes.fromhex("04224d18604082")
"""Magic, version 1 with independent blocks, blocks of 64 KiB, header checksum."""
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_STORED = 1 << 31
_LZ4_LENGTH = struct.Struct("<I")


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


def compress(codec: int, data: bytes) -> bytes:
    """The records as a producer would have compressed them."""
    import pyarrow

    if codec == Compression.SNAPPY:
        return _to_snappy(pyarrow.Codec("snappy"), data)
    if codec == Compression.LZ4:
        return _to_lz4(pyarrow.Codec("lz4_raw"), data)
    return bytes(pyarrow.Codec(Compression(codec).name.lower()).compress(data, asbytes=True))


def _to_snappy(codec: Any, data: bytes) -> bytes:
    parts = [_XERIAL_MAGIC, _XERIAL_VERSIONS]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = codec.compress(data[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _to_lz4(codec: Any, data: bytes) -> bytes:
    parts = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = codec.compress(plain, asbytes=True)
        if len(block) < len(plain):
            parts += (_LZ4_LENGTH.pack(len(block)), block)
        else:
            parts += (_LZ4_LENGTH.pack(len(plain) | _LZ4_STORED), plain)
    parts.append(_LZ4_LENGTH.pack(0))
    return b"".join(parts)


CODECS = Codecs(decompress, compress)
