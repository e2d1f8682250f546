"""Variable-length integers: seven bits a byte, the lowest first, all but the last with the top bit.

Kafka's lengths, counts and tags (KIP-482) and Snappy's are unsigned, of 32 bits; the signed
integers of records are zig-zag, of 64 bits. `codec.varints` decodes whole columns of them.
"""

from __future__ import annotations

UNSIGNED_BYTES_MAX = 5
SIGNED_BYTES_MAX = 10


class MalformedVarint(ValueError):
    """Bytes that end within a number, or a number that does not end in time."""


def encode_unsigned(value: int) -> bytes:
    """Encode a number that is not negative."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_unsigned(
    data: bytes | bytearray | memoryview, position: int, bytes_max: int = UNSIGNED_BYTES_MAX
) -> tuple[int, int]:
    """Return a number and the position after it. Raises MalformedVarint."""
    value = 0
    for shift in range(0, 7 * bytes_max, 7):
        if position >= len(data):
            raise MalformedVarint(f"a varint ends outside the {len(data)} bytes")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedVarint(f"a varint is over {bytes_max} bytes")


def encode_signed(value: int) -> bytes:
    """Encode a signed number of up to 64 bits."""
    return encode_unsigned((value << 1) ^ (value >> 63))


def decode_signed(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """Return a signed number and the position after it. Raises MalformedVarint."""
    value, position = decode_unsigned(data, position, SIGNED_BYTES_MAX)
    return (value >> 1) ^ -(value & 1), position
