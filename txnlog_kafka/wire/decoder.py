"""Bytes to messages, by their definitions: any bytes give a message or MalformedMessage.

Every length lies in the frame, varints end, a field that may not be null is not null, and there is
a limit to all elements together: a count is checked before an element is made. The rules are those
in Kafka's generated readers; bytes after the message are ignored, as there, and so are unknown
tagged fields.

A reader is compiled once for each class and version, as Python's own dataclasses are: it is written
as text, one function for each struct, with the neighbours of a fixed size in one call. So a field
costs one assignment. (Closures, a call for each field, took twice the time.)
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Callable
from typing import Any

from txnlog_kafka.wire.schema import Field, Struct
from txnlog_kafka.wire.varint import MalformedVarint, decode_unsigned

REQUEST_ELEMENTS_MAX = 200_000
"""Limit of array elements and tagged fields in one request. Kafka limits only the frame's size."""
RESPONSE_ELEMENTS_MAX = 20_000_000
"""Limit of an answer's elements. The metadata of 20,000 topics with 50 partitions of three replicas
has 7 million."""

_ID_BYTES = 16
_NO_ID = bytes(_ID_BYTES)
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

_MADE = {"string": "str(data[at:end], 'utf-8')", "records": "data[at:end]"}
"""Expressions that make a value from the bytes; record batches stay in the received buffer."""

_Left = list[int]
"""Number of elements that may still come."""
_Read = Callable[[memoryview, int, _Left], tuple[Any, int]]
"""Function from the bytes and a position in them to a value and the position after it."""


class MalformedMessage(ValueError):
    """Bytes that are not a message of this API and version."""


def decode_message(message_class: Any, version: int, data: memoryview, *, elements_max: int) -> Any:
    """Return the message at the start of `data`, encoded at `version`.

    Raises MalformedMessage, UnicodeDecodeError, and ValueError for a version that does not exist.
    """
    read = _message_reader(message_class, version)
    try:
        return read(data, 0, [elements_max])[0]
    except (IndexError, struct.error) as error:
        raise MalformedMessage(f"the {len(data)} bytes end within a field") from error
    except MalformedVarint as error:
        raise MalformedMessage(str(error)) from error


@functools.cache
def _message_reader(message_class: Any, version: int) -> _Read:
    schema = message_class.SCHEMA
    if not schema.versions[0] <= version <= schema.versions[1]:
        raise ValueError(f"{schema.name} has no version {version}")
    return _Source(version, schema.is_flexible(version)).reader(message_class)


class _Source:
    """Text of a reader, and the names in it."""

    def __init__(self, version: int, flexible: bool) -> None:
        self._version = version
        self._flexible = flexible
        self._names: dict[str, Any] = {
            "varint": decode_unsigned,
            "read_id": _read_id,
            "read_tagged": _read_tagged,
            "unpack": struct.unpack_from,
            "past_the_end": _past_the_end,
            "null": _null,
            "check_count": _check_count,
        }

    def reader(self, struct_class: Any) -> _Read:
        """Return the function that reads a struct of this class."""
        return self._compiled(self._struct(struct_class), struct_class.__name__)

    def _compiled(self, lines: list[str], name: str) -> _Read:
        text = "\n".join(("def read(data, at, left):", *(f"    {line}" for line in lines)))
        names = dict(self._names)
        exec(compile(text, f"<reader of {name} {self._version}>", "exec"), names)
        read: _Read = names["read"]
        return read

    def _name(self, value: Any) -> str:
        """Return a name for a value in the text."""
        name = f"_{len(self._names)}"
        self._names[name] = value
        return name

    def _struct(self, struct_class: Any) -> list[str]:
        described: Struct = struct_class.STRUCT
        new = self._name(functools.partial(object.__new__, struct_class))
        lines = ["size = len(data)", f"item = {new}()"]
        fixed: list[Field] = []
        for field in described.untagged(self._version):
            if field.format is not None and not field.is_array:
                fixed.append(field)
                continue
            lines += self._fixed(fixed)
            fixed = []
            lines += self._value(field, f"item.{field.name}", struct_class)
        lines += self._fixed(fixed)
        if self._flexible:
            known = {
                tag: (field.name, self._tagged(field, struct_class))
                for tag, field in described.tagged(self._version).items()
            }
            lines += [
                "if data[at]:",
                f"    at = read_tagged(item, {self._name(known)}, data, at, left)",
                "else:",
                "    at += 1",
            ]
        return [*lines, "return item, at"]

    def _fixed(self, fields: list[Field]) -> list[str]:
        if not fields:
            return []
        packed = struct.Struct(">" + "".join(str(field.format) for field in fields))
        names = ", ".join(f"item.{field.name}" for field in fields)
        unpack = self._name(packed.unpack_from)
        return [f"{names}, = {unpack}(data, at)", f"at += {packed.size}"]

    def _tagged(self, field: Field, struct_class: Any) -> _Read:
        value = self._value(field, "tagged", struct_class)
        lines = ["size = len(data)", *value, "return tagged, at"]
        return self._compiled(lines, f"{struct_class.__name__}.{field.name}")

    def _value(self, field: Field, target: str, holder: Any) -> list[str]:
        """Return lines that assign the field's value."""
        is_nullable = field.is_null_allowed(self._version)
        if not field.is_array:
            return self._one(field, target, holder, is_nullable=is_nullable)
        if field.format is not None:
            size = struct.calcsize(f">{field.format}")
            return self._sized(field, target, _INT32, is_nullable, [
                "check_count(n, size - at, left)",
                f"{target} = [*unpack(f'>{{n}}{field.format}', data, at)]",
                f"at += n * {size}",
            ])  # fmt: skip
        return self._sized(field, target, _INT32, is_nullable, [
            "check_count(n, size - at, left)",
            f"{target} = values = []",
            "for _ in range(n):",
            *(f"    {line}" for line in self._one(field, "value", holder, is_nullable=False)),
            "    values.append(value)",
        ])  # fmt: skip

    def _one(self, field: Field, target: str, holder: Any, *, is_nullable: bool) -> list[str]:
        """Return lines for a single value, or an element of an array."""
        if field.struct is not None:
            read = self._name(self.reader(getattr(holder, field.kind)))
            if not is_nullable:
                return [f"{target}, at = {read}(data, at, left)"]
            # KIP-893: a byte before the struct, negative for null.
            return [
                "at += 1",
                "if data[at - 1] >= 0x80:",
                f"    {target} = None",
                "else:",
                f"    {target}, at = {read}(data, at, left)",
            ]
        if field.kind == "uuid":
            return [f"{target} = read_id(data, at)", f"at += {_ID_BYTES}"]
        if field.format is not None:
            return [f"{target}, = unpack('>{field.format}', data, at)",
                    f"at += {struct.calcsize('>' + field.format)}"]  # fmt: skip
        is_text = field.kind == "string"
        made = _MADE.get(field.kind, "bytes(data[at:end])")
        return self._sized(field, target, _INT16 if is_text else _INT32, is_nullable, [
            "end = at + n",
            "if end > size:",
            "    past_the_end(n, end - size)",
            f"{target} = {made}",
            "at = end",
        ])  # fmt: skip

    def _sized(
        self, field: Field, target: str, plain: struct.Struct, is_nullable: bool, lines: list[str]
    ) -> list[str]:
        """Return lines that read a length or count `n`, negative for null, and then `lines`."""
        if self._flexible:
            length = [
                "n = data[at] - 1",
                "at += 1",
                "if n >= 0x7f:",
                "    n, at = varint(data, at - 1)",
                "    n -= 1",
            ]
        else:
            length = [f"n, = {self._name(plain.unpack_from)}(data, at)", f"at += {plain.size}"]
        absent = f"    {target} = None" if is_nullable else f"    null({field.name!r}, n)"
        return [*length, "if n < 0:", absent, "else:", *(f"    {line}" for line in lines)]


def _read_id(data: memoryview, at: int) -> uuid.UUID | None:
    """Read an id; zeros mean None."""
    read = bytes(data[at : at + _ID_BYTES])
    if len(read) < _ID_BYTES:
        _past_the_end(_ID_BYTES, _ID_BYTES - len(read))
    return None if read == _NO_ID else uuid.UUID(bytes=read)


def _read_tagged(
    item: Any, known: dict[int, tuple[str, _Read]], data: memoryview, at: int, left: _Left
) -> int:
    """Read the tagged fields of a struct and skip unknown fields; return the position after
    them."""
    count, at = decode_unsigned(data, at)
    _check_count(count, len(data) - at, left)
    for _ in range(count):
        tag, at = decode_unsigned(data, at)
        size, at = decode_unsigned(data, at)
        end = at + size
        if end > len(data):
            _past_the_end(size, end - len(data))
        if tag in known:
            name, read = known[tag]
            value, after = read(data, at, left)
            if after != end:
                raise MalformedMessage(f"tagged field {tag} is not of the {size} bytes it claims")
            setattr(item, name, value)
        at = end
    return at


def _check_count(count: int, size: int, left: _Left) -> None:
    """Check a count: an element takes at least a byte, and there is a limit to all elements."""
    if count > size:
        raise MalformedMessage(f"{count} elements in {size} bytes")
    left[0] -= count
    if left[0] < 0:
        raise MalformedMessage("too many elements in one message")


def _past_the_end(count: int, over: int) -> None:
    raise MalformedMessage(f"{count} bytes reach {over} past the frame")


def _null(name: str, length: int) -> None:
    raise MalformedMessage(f"length {length} of field {name}, which may not be null")
