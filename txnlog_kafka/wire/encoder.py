"""Messages to bytes, by their definitions.

A writer is compiled once for each class and version: a function that appends a struct to the parts
of the message. The neighbours of a fixed size are packed by one call, and record batches are not
copied until all parts are joined. Fields outside the version are left out; fields that were not set
have the definition's default.
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from txnlog_kafka.wire.schema import Field, Struct
from txnlog_kafka.wire.varint import encode_unsigned

_Parts = list[Any]
"""Objects with bytes, in their order."""
_Get = Callable[[Any], Any]
"""Function that returns a member of a struct, or the element itself."""
_Write = Callable[[Any, _Parts], None]
"""Function that appends a struct, or a member of it, to the parts."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_NO_TAGS = "x"
"""Format of `struct` for one zero byte: no tagged fields."""
_NO_ID = bytes(16)
_SHORT = tuple(bytes((number,)) for number in range(128))
"""Varints of one byte."""


def encode_message(message: Any, version: int) -> bytes:
    """Return the bytes of a message without a header. Raises as `encode_parts`."""
    return b"".join(encode_parts(message, version))


def encode_parts(message: Any, version: int) -> list[Any]:
    """Return the same bytes in parts; record batches among them are not copied.

    Raises ValueError for a version that the message does not have, and the errors of `struct` for
    values that a field cannot have.
    """
    parts: _Parts = []
    message_class: Any = type(message)
    _message_writer(message_class, version)(message, parts)
    return parts


@functools.cache
def _message_writer(message_class: Any, version: int) -> _Write:
    schema = message_class.SCHEMA
    if not schema.versions[0] <= version <= schema.versions[1]:
        raise ValueError(f"{schema.name} has no version {version}")
    return _struct_writer(schema.struct, version, schema.is_flexible(version))


def _struct_writer(described: Struct, version: int, flexible: bool) -> _Write:
    """Return a writer of all fields, one after another; neighbours of a fixed size are one step."""
    steps: list[_Write] = []
    names: list[str] = []
    formats = ""
    for field in described.untagged(version):
        if field.format is not None and not field.is_array:
            names.append(field.name)
            formats += field.format
            continue
        if names:
            steps.append(_fixed_writer(names, formats))
            names, formats = [], ""
        steps.append(_member_writer(field, version, flexible))
    known = described.tagged(version)
    if flexible and not known:
        formats += _NO_TAGS
    if formats:
        steps.append(_fixed_writer(names, formats))
    if flexible and known:
        steps.append(_tags_writer(known, version))
    every = tuple(steps)

    def write(item: Any, parts: _Parts) -> None:
        for step in every:
            step(item, parts)

    return steps[0] if len(steps) == 1 else write


def _fixed_writer(names: list[str], formats: str) -> _Write:
    """Return a writer of members of a fixed size, in one call; `_NO_TAGS` may follow them."""
    pack = struct.Struct(f">{formats}").pack
    if not names:
        constant = pack()
        return lambda _item, parts: parts.append(constant)
    get = attrgetter(*names)
    if len(names) == 1:
        return lambda item, parts: parts.append(pack(get(item)))
    return lambda item, parts: parts.append(pack(*get(item)))


def _member_writer(field: Field, version: int, flexible: bool) -> _Write:
    get = attrgetter(field.name)
    if field.is_array:
        if field.format is not None:
            return _numbers_writer(get, field.format, flexible)
        if field.struct is not None:
            return _array_writer(get, _struct_writer(field.struct, version, flexible), flexible)
        return _array_writer(get, _simple_writer(_itself, field, flexible), flexible)
    if field.struct is not None:
        write_struct = _struct_writer(field.struct, version, flexible)
        if field.is_null_allowed(version):
            return _nullable_writer(get, write_struct)
        return lambda item, parts: write_struct(get(item), parts)
    return _simple_writer(get, field, flexible)


def _itself(value: Any) -> Any:
    return value


def _simple_writer(get: _Get, field: Field, flexible: bool) -> _Write:
    if field.kind == "uuid":
        return _id_writer(get)
    if field.kind == "string":
        return _string_writer(get, _length_writer(flexible, _INT16))
    if field.format is None:
        return _bytes_writer(get, _length_writer(flexible, _INT32))
    pack = struct.Struct(f">{field.format}").pack
    return lambda item, parts: parts.append(pack(get(item)))


def _varint(number: int) -> bytes:
    return _SHORT[number] if number < len(_SHORT) else encode_unsigned(number)


def _length_writer(flexible: bool, plain: struct.Struct) -> Callable[[int, _Parts], None]:
    """Return a writer of a length or count, -1 for null."""

    def compact(length: int, parts: _Parts) -> None:
        parts.append(_varint(length + 1))

    def fixed(length: int, parts: _Parts) -> None:
        parts.append(plain.pack(length))

    return compact if flexible else fixed


def _string_writer(get: _Get, write_length: Callable[[int, _Parts], None]) -> _Write:
    def write(item: Any, parts: _Parts) -> None:
        value = get(item)
        if value is None:
            write_length(-1, parts)
            return
        data = str(value).encode()
        write_length(len(data), parts)
        parts.append(data)

    return write


def _bytes_writer(get: _Get, write_length: Callable[[int, _Parts], None]) -> _Write:
    def write(item: Any, parts: _Parts) -> None:
        value = get(item)
        if value is None:
            write_length(-1, parts)
            return
        write_length(len(value), parts)
        parts.append(value)

    return write


def _id_writer(get: _Get) -> _Write:
    def write(item: Any, parts: _Parts) -> None:
        value = get(item)
        parts.append(_NO_ID if value is None else value.bytes)

    return write


def _array_writer(get: _Get, write_element: _Write, flexible: bool) -> _Write:
    write_count = _length_writer(flexible, _INT32)

    def write(item: Any, parts: _Parts) -> None:
        values = get(item)
        if values is None:
            write_count(-1, parts)
            return
        write_count(len(values), parts)
        for value in values:
            write_element(value, parts)

    return write


def _numbers_writer(get: _Get, one: str, flexible: bool) -> _Write:
    """Return a writer of an array of a type of fixed size."""
    write_count = _length_writer(flexible, _INT32)

    def write(item: Any, parts: _Parts) -> None:
        values = get(item)
        if values is None:
            write_count(-1, parts)
            return
        write_count(len(values), parts)
        parts.append(struct.pack(f">{len(values)}{one}", *values))

    return write


def _nullable_writer(get: _Get, write_struct: _Write) -> _Write:
    """Return a writer with a byte before the struct, negative for null (KIP-893)."""

    def write(item: Any, parts: _Parts) -> None:
        value = get(item)
        if value is None:
            parts.append(b"\xff")
            return
        parts.append(b"\x01")
        write_struct(value, parts)

    return write


def _defaults(field: Field) -> tuple[Any, ...]:
    """Return the values that are not written in a tagged field."""
    return (None, uuid.UUID(bytes=_NO_ID)) if field.kind == "uuid" else (field.default,)


def _tags_writer(known: dict[int, Field], version: int) -> _Write:
    """Return a writer of the tagged fields that differ from their default, with their sizes."""
    fields = tuple(
        (_varint(tag), attrgetter(field.name), _defaults(field),
         _member_writer(field, version, True))
        for tag, field in known.items()
    )  # fmt: skip
    get_all = attrgetter(*(field.name for field in known.values()))
    every = tuple(field.default for field in known.values())
    none = every if len(every) > 1 else every[0]

    def write(item: Any, parts: _Parts) -> None:
        if get_all(item) == none:  # as in nearly every struct
            parts.append(_SHORT[0])
            return
        tagged: list[_Parts] = []
        for tag, get, defaults, write_member in fields:
            if get(item) not in defaults:
                written: _Parts = []
                write_member(item, written)
                data = b"".join(written)
                tagged.append([tag, _varint(len(data)), data])
        parts.append(_varint(len(tagged)))
        for each in tagged:
            parts += each

    return write
