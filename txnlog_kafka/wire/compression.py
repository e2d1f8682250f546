"""The four compression codecs of record batches, in the framings that Kafka's clients read.

- gzip: RFC 1952. zstd: RFC 8878 frames.
- snappy: written in xerial framing as Kafka's Java client does (`SnappyOutputStream`); read in that
  framing or as one raw block, which librdkafka writes.
- lz4: the LZ4 frame format with independent blocks, the only kind that Kafka's
  `Lz4BlockInputStream` accepts; Arrow's own frame writer links blocks, so we frame raw blocks.

What decompresses to more than a limit is refused before it takes the memory. pyarrow has the
codecs; it is imported with the first compressed batch, because most brokers never see into one.
"""

from __future__ import annotations

import struct

from txnlog_kafka.wire.records import Compression, CorruptBatch
from txnlog_kafka.wire.varint import decode_unsigned

COMPRESSIONS = {codec.name.lower(): codec for codec in Compression}
"""Kafka's `compression.type` values and their numbers in a batch's attributes."""

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""Limit of one batch's decompressed records; Kafka's clients keep batches near 1 MiB."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BIG_INT32 = struct.Struct(">i")

_LZ4_HEADER = bytes.fromhex("04224d18604082")
"""Magic, FLG (version 1, independent blocks), BD (64 KiB blocks), header checksum."""
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 0x80000000
_LITTLE_UINT32 = struct.Struct("<I")

_READ_BYTES = 1024 * 1024


def compress(codec: int, data: bytes | bytearray | memoryview) -> bytes:
    """Return `data` in the codec's framing."""
    if codec == Compression.NONE:
        return bytes(data)
    if codec == Compression.SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec == Compression.LZ4:
        return _compress_lz4(memoryview(data))
    import pyarrow as pa

    return bytes(pa.Codec(Compression(codec).name.lower()).compress(data, asbytes=True))


def decompress(
    codec: int, data: bytes | bytearray | memoryview, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """Return the bytes before compression; `codec` is the number in the batch's attributes.

    Raises CorruptBatch for bytes that the codec refuses, for an unknown codec and for more than
    `bytes_max` of output.
    """
    try:
        if codec == Compression.NONE:
            return bytes(data)
        if codec == Compression.SNAPPY:
            return _decompress_snappy(memoryview(data), bytes_max)
        return _decompress_stream(Compression(codec).name.lower(), data, bytes_max)
    except CorruptBatch:
        raise
    except (ValueError, OSError, struct.error) as error:
        raise CorruptBatch(f"records cannot be decompressed: {error}") from error


def _decompress_stream(name: str, data: bytes | bytearray | memoryview, bytes_max: int) -> bytes:
    import pyarrow as pa

    chunks: list[bytes] = []
    size_bytes = 0
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), name) as stream:
        while chunk := stream.read(_READ_BYTES):
            size_bytes += len(chunk)
            _check_size(size_bytes, bytes_max)
            chunks.append(chunk)
    return b"".join(chunks)


def _check_size(size_bytes: int, bytes_max: int) -> None:
    if size_bytes > bytes_max:
        raise CorruptBatch(f"a batch decompresses to more than the limit of {bytes_max} bytes")


def _compress_snappy(data: memoryview) -> bytes:
    import pyarrow as pa

    codec = pa.Codec("snappy")
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = codec.compress(data[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        parts += (_BIG_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, bytes_max: int) -> bytes:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _snappy_block(data, bytes_max)
    parts: list[bytes] = []
    left = bytes_max
    position = len(_XERIAL_HEADER)
    while position < len(data):
        (length,) = _BIG_INT32.unpack_from(data, position)
        position += _BIG_INT32.size
        if length < 0 or position + length > len(data):
            raise CorruptBatch(f"a snappy block of {length} bytes is out of the batch")
        parts.append(_snappy_block(data[position : position + length], left))
        left -= len(parts[-1])
        position += length
    return b"".join(parts)


def _snappy_block(block: memoryview, bytes_max: int) -> bytes:
    import pyarrow as pa

    size_bytes, _ = decode_unsigned(block, 0)
    _check_size(size_bytes, bytes_max)
    # Snappy cannot expand by more than 64 / 3; a larger claim is a lie about the size.
    if size_bytes > 64 * len(block):
        raise CorruptBatch(f"a snappy block of {len(block)} bytes claims {size_bytes} bytes")
    plain = pa.Codec("snappy").decompress(block, decompressed_size=size_bytes, asbytes=True)
    return bytes(plain)


def _compress_lz4(data: memoryview) -> bytes:
    import pyarrow as pa

    codec = pa.Codec("lz4_raw")
    parts = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = codec.compress(plain, asbytes=True)
        if len(block) < len(plain):
            parts += (_LITTLE_UINT32.pack(len(block)), block)
        else:
            parts += (_LITTLE_UINT32.pack(len(plain) | _LZ4_STORED), bytes(plain))
    parts.append(_LITTLE_UINT32.pack(0))
    return b"".join(parts)
