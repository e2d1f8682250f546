"""The bytes of Kafka's persisted records: a 2-byte version and then fields in Kafka's encoding.

Source: Kafka's `MessageUtil.toVersionPrefixedBytes`, KIP-482 for the compact and tagged forms. The
fields are in `broker_sim.schemas`; what they mean is beside each record's owner.
"""

from __future__ import annotations

import struct
from typing import Any

from txnlog_kafka.wire.encoder import encode_message
from txnlog_kafka.wire.kafka_python import decode_at
from txnlog_kafka.wire.shape import check_shape

_VERSION = struct.Struct(">h")

STRING_BYTES_MAX = 2**15 - 1
"""Of a string that is not compact, as in all keys. A compact one of a request may be longer."""


def is_storable(text: str | None) -> bool:
    """Whether a record can hold this string. To be asked before a request changes anything."""
    return text is None or len(text.encode()) <= STRING_BYTES_MAX


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
        first, last = record_class.valid_versions
        if not first <= version <= last:
            raise CorruptRecord(f"{record_class.name} version {version} is not known")
    body = memoryview(data)[_VERSION.size :]
    try:
        # Each element is a byte at least.
        check_shape(record_class, version, body, elements_max=len(body))
        return decode_at(record_class, version, body)
    except ValueError as error:
        raise CorruptRecord(f"{record_class.name} version {version}: {error}") from error
