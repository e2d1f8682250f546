"""Primitive types of Kafka's persisted records, in both string flavours.

Internal records are a 2-byte version and then fields in Kafka's message encoding (source: Kafka's
`MessageUtil.toVersionPrefixedBytes`, KIP-482 for the compact and tagged forms). Only what the
transaction log and the offsets log need is here; each record's layout is beside its owner.
"""

from __future__ import annotations

import struct

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


STRING_BYTES_MAX = 2**15 - 1
"""Of a string that is not compact, as in all keys. A compact one of a request may be longer."""


def is_storable(text: str | None) -> bool:
    """Whether a record can hold this string. To be asked before a request changes anything."""
    return text is None or len(text.encode()) <= STRING_BYTES_MAX


class CorruptRecord(ValueError):
    """Bytes of an internal record that do not follow their schema, or a version from the future."""


class RecordWriter:
    """Builds one key or value. `flexible` chooses compact strings, arrays and bytes."""

    def __init__(self, version: int, *, flexible: bool = False) -> None:
        self._out = bytearray(_INT16.pack(version))
        self._flexible = flexible

    def finish(self) -> bytes:
        """The record's bytes."""
        return bytes(self._out)

    def int8(self, value: int) -> None:
        """One byte, signed."""
        self._out += _INT8.pack(value)

    def int16(self, value: int) -> None:
        """Two bytes, big-endian."""
        self._out += _INT16.pack(value)

    def int32(self, value: int) -> None:
        """Four bytes, big-endian."""
        self._out += _INT32.pack(value)

    def int64(self, value: int) -> None:
        """Eight bytes, big-endian."""
        self._out += _INT64.pack(value)

    def unsigned_varint(self, value: int) -> None:
        """Seven bits a byte, lowest first."""
        while value > 0x7F:
            self._out.append(value & 0x7F | 0x80)
            value >>= 7
        self._out.append(value)

    def string(self, value: str | None) -> None:
        """A string; None is written as null."""
        raw = None if value is None else value.encode()
        if self._flexible:
            self.unsigned_varint(0 if raw is None else len(raw) + 1)
        else:
            self.int16(-1 if raw is None else len(raw))
        self._out += raw or b""

    def data(self, value: bytes) -> None:
        """A byte string."""
        self.array_length(len(value))
        self._out += value

    def array_length(self, length: int | None) -> None:
        """What stands before the elements of an array (or bytes); None is a null array."""
        if self._flexible:
            self.unsigned_varint(0 if length is None else length + 1)
        else:
            self.int32(-1 if length is None else length)

    def tagged_fields(self, fields: dict[int, bytes] | None = None) -> None:
        """The tag section that ends a struct of a flexible version; nothing in the others."""
        if not self._flexible:
            return
        fields = fields or {}
        self.unsigned_varint(len(fields))
        for tag in sorted(fields):
            self.unsigned_varint(tag)
            self.unsigned_varint(len(fields[tag]))
            self._out += fields[tag]


class RecordReader:
    """Reads one key or value; every method raises CorruptRecord past the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._flexible = False
        self.version = self.int16()

    def set_flexible(self, flexible: bool) -> None:
        """Read compact forms from here on."""
        self._flexible = flexible

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise CorruptRecord(f"{length} bytes at {self._position} are out of the record")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def int8(self) -> int:
        """One byte, signed."""
        return int(_INT8.unpack(self._take(1))[0])

    def int16(self) -> int:
        """Two bytes, big-endian."""
        return int(_INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        """Four bytes, big-endian."""
        return int(_INT32.unpack(self._take(4))[0])

    def int64(self) -> int:
        """Eight bytes, big-endian."""
        return int(_INT64.unpack(self._take(8))[0])

    def unsigned_varint(self) -> int:
        """Seven bits a byte, lowest first."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptRecord("a varint is over five bytes")

    def nullable_string(self) -> str | None:
        """A string or null."""
        length = self.unsigned_varint() - 1 if self._flexible else self.int16()
        if length == -1:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise CorruptRecord(f"a string is not UTF-8: {error}") from error

    def string(self) -> str:
        """A string that may not be null."""
        value = self.nullable_string()
        if value is None:
            raise CorruptRecord("a string is null where it may not be")
        return value

    def data(self) -> bytes:
        """A byte string; null reads as empty."""
        length = self.array_length()
        return b"" if length is None else self._take(length)

    def array_length(self) -> int | None:
        """The length before an array's elements, None for null. At most the bytes left."""
        length = self.unsigned_varint() - 1 if self._flexible else self.int32()
        if length == -1:
            return None
        if not 0 <= length <= len(self._data) - self._position:
            raise CorruptRecord(f"array length {length} is out of the record")
        return length

    def tagged_fields(self) -> dict[int, bytes]:
        """The tag section of a flexible struct; empty in other versions."""
        if not self._flexible:
            return {}
        count = self.unsigned_varint()
        fields = {}
        for _ in range(min(count, len(self._data))):
            tag = self.unsigned_varint()
            fields[tag] = self._take(self.unsigned_varint())
        return fields


def int64_field(value: int) -> bytes:
    """A tagged field's int64."""
    return _INT64.pack(value)


def int16_field(value: int) -> bytes:
    """A tagged field's int16."""
    return _INT16.pack(value)


def read_int(field: bytes | None, default: int) -> int:
    """A tagged field's integer of any width; `default` when the field is absent."""
    return default if field is None else int.from_bytes(field, "big", signed=True)
