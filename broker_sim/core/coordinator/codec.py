"""The bytes of Kafka's persisted records: a 2-byte version and then fields in Kafka's encoding.

Source: Kafka's `MessageUtil.toVersionPrefixedBytes`, KIP-482 for the compact and tagged forms. The
fields are in `broker_sim.schemas`; what they mean is beside each record's owner.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from txnlog_kafka.wire.decoder import decode_message
from txnlog_kafka.wire.encoder import encode_message

_VERSION = struct.Struct(">h")
I = TypeVar("I")  # noqa: E741

STRING_BYTES_MAX = 2**15 - 1
"""Bytes of a non-compact string, as in all keys. A compact string of a request may be longer."""


def is_storable(text: str | None) -> bool:
    """True if a record can hold this string. Ask before a request changes anything."""
    return text is None or len(text.encode()) <= STRING_BYTES_MAX


def batches_of(items: Iterable[I], size_of: Callable[[I], int], bytes_max: int) -> list[list[I]]:
    """Divide items into batches of so many bytes at most; a larger item is a batch alone."""
    batches: list[list[I]] = []
    left_bytes = 0
    for item in items:
        size_bytes = size_of(item)
        if size_bytes > left_bytes:
            batches.append([])
            left_bytes = bytes_max
        batches[-1].append(item)
        left_bytes -= size_bytes
    return batches


class CorruptRecord(ValueError):
    """Bytes of an internal record that do not follow their schema, or a version from the future."""


def encode_fields(fields: Any, version: int) -> bytes:
    """A key or value, from an instance of its class."""
    return _VERSION.pack(version) + encode_message(fields, version)


def version_of(data: bytes) -> int:
    """The version that a key or value begins with. Raises CorruptRecord."""
    if len(data) < _VERSION.size:
        raise CorruptRecord(f"{len(data)} bytes have no version")
    return int(_VERSION.unpack_from(data)[0])


def decode_fields(record_class: Any, data: bytes, *, version: int | None = None) -> Any:
    """An instance of the class, at the version in front or at an earlier one that begins like it.

    Bytes after the fields are ignored, as Kafka does. Raises CorruptRecord, also for a version that
    the class does not have.
    """
    if version is None:
        version = version_of(data)
        first, last = record_class.SCHEMA.versions
        if not first <= version <= last:
            raise CorruptRecord(f"{record_class.__name__} version {version} is not known")
    body = memoryview(data)[_VERSION.size :]
    try:
        # Each element is a byte at least.
        return decode_message(record_class, version, body, elements_max=len(body))
    except ValueError as error:
        raise CorruptRecord(f"{record_class.__name__} version {version}: {error}") from error
