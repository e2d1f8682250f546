"""Confluent's frame of a Protobuf value: its schema, and its message in the schema.

A value is the byte 0, the id of the schema in four bytes, the indexes of the message as zig-zag
varints behind their number, and the message. The first index is that of a message in the file, the
next ones those of messages within it. A single byte 0 stands for the first message of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FileDescriptor

from txnlog_kafka.wire.varint import MalformedVarint, decode_signed, encode_signed
from txnlog_spark.codec.binary import cut_out
from txnlog_spark.codec.varints import unsigned_at, unzigzag
from txnlog_spark.formats.columns import Wire
from txnlog_spark.formats.errors import ProtobufSchemaError
from txnlog_spark.formats.schema_ids import SCHEMA_ID_BYTES, NoSchema, SchemaId, Split

_INDEX_BYTES_MAX = 5
_INDEXES_MAX = 32
"""Depth of messages within messages; a value with more indexes has no frame."""


def split_frames(values: pa.Array) -> Split:
    """Take apart values, a binary array without null, that begin with Confluent's frame."""
    wire, rows = Wire(values), np.arange(len(values))
    start, end = wire.bounds[:-1], wire.bounds[1:]
    # The frame of each value ends behind its schema id, its number of indexes and the indexes.
    short = end - start <= SCHEMA_ID_BYTES
    at = np.where(short, start, start + SCHEMA_ID_BYTES)
    right = ~short & (wire.data[start] == 0)
    count, after, right = _indexes(wire, at, end, right)
    right &= (count >= 0) & (count <= _INDEXES_MAX)
    for place in range(int(count[right].max(initial=0))):
        more = rows[right & (count > place)]
        index, passed, fits = _indexes(wire, after[more], end[more], right[more])
        after[more], right[more] = passed, fits & (index >= 0)
    # Values without a frame have the last key, and are not decoded.
    after = np.where(right, after, start)
    frames = cut_out(wire.buffer, start, after).dictionary_encode()
    keys: list[tuple[SchemaId, bytes] | NoSchema] = [
        (int.from_bytes(frame[1:SCHEMA_ID_BYTES], "big"), frame[SCHEMA_ID_BYTES:])
        if frame
        else NoSchema("it does not begin with Confluent's frame of a Protobuf value")
        for frame in frames.dictionary.to_pylist()
    ]
    return Split(keys, frames.indices.to_numpy(), cut_out(wire.buffer, after, end))


def indexes_in(prefix: bytes) -> tuple[int, ...]:
    """Return the indexes of a message behind the schema id. Raises NoSchema."""
    numbers: list[int] = []
    try:
        count, at = decode_signed(prefix, 0)
        while len(numbers) < count <= _INDEXES_MAX:
            number, at = decode_signed(prefix, at)
            numbers.append(number)
    except MalformedVarint:
        count = -1
    if len(numbers) != count or min(numbers, default=0) < 0:
        raise NoSchema(f"its header has {prefix!r} behind the schema id, not a message's indexes")
    return tuple(numbers) or (0,)


def _indexes(wire: Wire, at: Any, end: Any, right: Any) -> tuple[Any, Any, Any]:
    value, after, long = unsigned_at(wire.data, at, _INDEX_BYTES_MAX)
    fits = right & (after <= end) if long is None else right & (after <= end) & ~long
    return unzigzag(value), after, fits


def index_prefix(indexes: Sequence[int]) -> bytes:
    """Return the bytes between the schema id and the message."""
    if tuple(indexes) == (0,):
        return b"\0"
    return b"".join(encode_signed(number) for number in (len(indexes), *indexes))


def message_indexes(descriptor: Descriptor) -> tuple[int, ...]:
    """Return the indexes of the message in its file."""
    name, within = descriptor.name, descriptor.containing_type
    if within is None:
        return (list(descriptor.file.message_types_by_name).index(name),)
    place = [each.name for each in within.nested_types].index(name)
    return (*message_indexes(within), place)


def message_at(file: FileDescriptor, indexes: Sequence[int]) -> Descriptor:
    """Return the message of the file with these indexes."""
    inside, found = list(file.message_types_by_name.values()), None
    for index in indexes:
        if index >= len(inside):
            raise ProtobufSchemaError(
                f"the file {file.name} has no message with the indexes {list(indexes)}"
            )
        found = inside[index]
        inside = list(found.nested_types)
    return found
