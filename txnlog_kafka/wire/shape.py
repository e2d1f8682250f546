"""The shape of a message's bytes, checked against its schema before an object is made of them.

kafka-python's decoders do not check their input: they slice past the end, take any negative count
for an empty array, follow a varint for as long as it goes on, copy the rest of the frame for each
struct with tagged fields, and make an object of every element before anybody can say stop. So the
bytes are walked first, without making anything: every length lies in the frame, varints end, what
may not be null is not, and elements and copies are bounded. The rules are those of Kafka's
generated readers; bytes after the message are ignored, as there.

A walker is compiled once for each message class and version: a tuple of functions from a position
to the next. Whatever the bytes are, it returns or raises `MalformedShape`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

from txnlog_kafka.wire.kafka_python import schema_of, tagged_fields_of
from txnlog_kafka.wire.varint import MalformedVarint, decode_unsigned

REQUEST_ELEMENTS_MAX = 200_000
"""Array elements and tagged fields in one request. Kafka bounds them by the frame's size only."""
RESPONSE_ELEMENTS_MAX = 20_000_000
"""The whole metadata of 20,000 topics with 50 partitions of three replicas is 7 million."""
TAG_COPY_BYTES_MAX = 1 << 30
"""Structs with tagged fields times the message's size: what the decoder copies."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_FIXED_BYTES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "bitfield": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}


class MalformedShape(ValueError):
    """The bytes are not a message of this API and version."""


class _Frame:
    """The bytes of one message, and how many elements may still come."""

    __slots__ = ("data", "elements_left", "size", "tagged_structs")

    def __init__(self, data: memoryview, elements_max: int) -> None:
        self.data = data
        self.size = len(data)
        self.elements_left = elements_max
        self.tagged_structs = 0

    def varint(self, position: int) -> tuple[int, int]:
        """An unsigned varint and the position after it."""
        try:
            return decode_unsigned(self.data, position)
        except MalformedVarint as error:
            raise MalformedShape(str(error)) from error

    def take_elements(self, count: int, position: int) -> None:
        """Each is at least a byte long, and there is a limit to all of them."""
        if count > self.size - position:
            raise MalformedShape(f"{count} elements in {self.size - position} bytes")
        self.elements_left -= count
        if self.elements_left < 0:
            raise MalformedShape("too many elements in one message")

    def skip(self, position: int, count: int) -> int:
        """The position after `count` bytes, which must be there."""
        position += count
        if position > self.size:
            raise MalformedShape(f"{count} bytes reach {position - self.size} past the frame")
        return position


_Walk = Callable[[_Frame, int], int]


def check_shape(message_class: Any, version: int, data: memoryview, *, elements_max: int) -> None:
    """Raise MalformedShape unless `data` begins with such a message, encoded at `version`."""
    _message_walk(message_class, version)(_Frame(data, elements_max), 0)


@functools.cache
def _message_walk(message_class: Any, version: int) -> _Walk:
    flexible = bool(message_class.flexible_version_q(version))
    return _struct_walk(schema_of(message_class), version, flexible)


def _struct_walk(container: Any, version: int, flexible: bool) -> _Walk:
    """All fields one after another. Neighbours of a fixed size are one step."""
    steps: list[_Walk] = []
    fixed_bytes = 0
    for field in container.untagged_fields(version):
        size_bytes = _fixed_bytes(field)
        if size_bytes is not None:
            fixed_bytes += size_bytes
            continue
        if fixed_bytes:
            steps.append(_fixed_walk(fixed_bytes))
            fixed_bytes = 0
        steps.append(_field_walk(field, version, flexible))
    if fixed_bytes:
        steps.append(_fixed_walk(fixed_bytes))
    if flexible:
        known = tagged_fields_of(container, version)
        steps.append(_tags_walk({t: _field_walk(f, version, flexible) for t, f in known.items()}))
    if len(steps) == 1:
        return steps[0]
    every = tuple(steps)

    def walk(frame: _Frame, position: int) -> int:
        for step in every:
            position = step(frame, position)
        return position

    return walk


def _fixed_bytes(field: Any) -> int | None:
    if field.is_array() or field.is_struct() or field.is_struct_array():
        return None
    return _FIXED_BYTES.get(field.type_str)


def _fixed_walk(count: int) -> _Walk:
    def walk(frame: _Frame, position: int) -> int:
        return frame.skip(position, count)

    return walk


def _field_walk(field: Any, version: int, flexible: bool) -> _Walk:
    nullable = bool(field.nullable_for_version_q(version))
    if field.is_struct_array():
        return _array_walk(_struct_walk(field.array_of, version, flexible), nullable, flexible)
    if field.is_array():
        return _array_walk(_field_walk(field.array_of, version, flexible), nullable, flexible)
    if field.is_struct():
        inner = _struct_walk(field, version, flexible)
        return _nullable_struct_walk(inner) if nullable else inner
    size_bytes = _fixed_bytes(field)
    if size_bytes is not None:
        return _fixed_walk(size_bytes)
    narrow = field.type_str == "string"
    return _blob_walk(_length_reader(flexible, _INT16 if narrow else _INT32), nullable)


def _length_reader(flexible: bool, plain: struct.Struct) -> Callable[[_Frame, int], Any]:
    """Reads a length or count: -1 or less for null."""

    def compact(frame: _Frame, position: int) -> tuple[int, int]:
        data = frame.data
        if position < frame.size and data[position] < 0x80:
            return data[position] - 1, position + 1
        value, position = frame.varint(position)
        return value - 1, position

    def fixed(frame: _Frame, position: int) -> tuple[int, int]:
        after = frame.skip(position, plain.size)
        return plain.unpack_from(frame.data, position)[0], after

    return compact if flexible else fixed


def _blob_walk(read_length: Callable[[_Frame, int], Any], nullable: bool) -> _Walk:
    def walk(frame: _Frame, position: int) -> int:
        length, position = read_length(frame, position)
        if length < 0:
            _check_null(nullable, length)
            return position
        return frame.skip(position, length)

    return walk


def _array_walk(element: _Walk, nullable: bool, flexible: bool) -> _Walk:
    read_count = _length_reader(flexible, _INT32)

    def walk(frame: _Frame, position: int) -> int:
        count, position = read_count(frame, position)
        if count < 0:
            _check_null(nullable, count)
            return position
        frame.take_elements(count, position)
        for _ in range(count):
            position = element(frame, position)
        return position

    return walk


def _nullable_struct_walk(inner: _Walk) -> _Walk:
    """KIP-893: a byte before the struct, negative for null."""

    def walk(frame: _Frame, position: int) -> int:
        after = frame.skip(position, 1)
        return after if frame.data[position] >= 0x80 else inner(frame, after)

    return walk


def _tags_walk(known: dict[int, _Walk]) -> _Walk:
    def walk(frame: _Frame, position: int) -> int:
        if position < frame.size and frame.data[position] == 0:
            return position + 1
        count, position = frame.varint(position)
        frame.take_elements(count, position)
        frame.tagged_structs += 1
        if frame.tagged_structs * frame.size > TAG_COPY_BYTES_MAX:
            raise MalformedShape("too many tagged fields in one message")
        for _ in range(count):
            tag, position = frame.varint(position)
            size, position = frame.varint(position)
            after = frame.skip(position, size)
            if tag in known and known[tag](frame, position) != after:
                raise MalformedShape(f"tagged field {tag} is not of the {size} bytes it claims")
            position = after
        return position

    return walk


def _check_null(nullable: bool, length: int) -> None:
    if not nullable:
        raise MalformedShape(f"length {length} of a field that may not be null")
