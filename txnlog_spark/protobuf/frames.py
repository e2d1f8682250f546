"""Confluent's frame of a Protobuf value: which schema, and which message of it.

A value is the byte 0, the id of the schema in four bytes, the indexes of the message as zig-zag
varints behind their number, and the message. The first index is that of a message in the file, the
next ones those of messages within it. A single byte 0 stands for the first message of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FileDescriptor

from txnlog_kafka.wire.varint import decode_signed, encode_signed
from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.binary import cut_out
from txnlog_spark.codec.decoded import Decode, Decoded, spread
from txnlog_spark.codec.schema_ids import SCHEMA_ID_BYTES, NoSchema
from txnlog_spark.protobuf.errors import ProtobufSchemaError
from txnlog_spark.protobuf.scan import Wire, varints

_INDEX_BYTES_MAX = 5
_INDEXES_MAX = 32
"""So deep are messages within messages; a value with more has no frame."""


@dataclass(frozen=True, slots=True)
class Framed:
    """Values taken apart.

    kinds: each schema id and indexes that occur. kind: of each value its number in `kinds`, -1 of
    one that has no frame. messages: a binary array, null for that one. problems: None, or what is
    wrong with a value, null where it is right.
    """

    kinds: list[tuple[int, tuple[int, ...]]]
    kind: np.ndarray[Any, np.dtype[np.int64]]
    messages: Any
    problems: Any = None


def split_indexes(values: pa.Array) -> Framed:
    """Take apart a binary array without null of values with Confluent's frame."""
    wire, rows = Wire(values), np.arange(len(values))
    start, end = wire.bounds[:-1], wire.bounds[1:]
    short = end - start <= SCHEMA_ID_BYTES
    at = np.where(short, start, start + SCHEMA_ID_BYTES)
    right = ~short & (wire.data[start] == 0)
    count, after, right = _indexes(wire, at, end, right)
    right &= (count >= 0) & (count <= _INDEXES_MAX)
    for place in range(int(count[right].max(initial=0))):
        more = rows[right & (count > place)]
        index, passed, fits = _indexes(wire, after[more], end[more], right[more])
        after[more], right[more] = passed, fits & (index >= 0)
    kept = np.flatnonzero(right)
    places = np.full(len(values), -1)
    places[kept] = np.arange(len(kept))
    prefixes = cut_out(wire.buffer, start[kept], after[kept])
    messages = cut_out(wire.buffer, after[kept], end[kept], pa.array(places, mask=~right))
    encoded = prefixes.dictionary_encode()
    kinds: dict[tuple[int, tuple[int, ...]], int] = {}
    numbers = [kinds.setdefault(_kind(each), len(kinds)) for each in encoded.dictionary.to_pylist()]
    kind = np.full(len(values), -1)
    kind[kept] = np.array(numbers, np.int64)[encoded.indices.to_numpy()]
    problems = None
    if len(kept) < len(values):
        text = pa.scalar("it does not begin with Confluent's frame of a Protobuf value")
        problems = pa.repeat(text, len(values)).take(pa.array(rows, mask=right))
    return Framed(list(kinds), kind, messages, problems)


def indexes_in(header: bytes) -> tuple[int, ...]:
    """Return the indexes of a message behind the schema id in a header. Raises NoSchema."""
    framed = split_indexes(pa.array([bytes(SCHEMA_ID_BYTES) + header], pa.binary()))
    if not framed.kinds:
        raise NoSchema(f"its header has {header!r} behind the schema id, not a message's indexes")
    return framed.kinds[0][1]


def decode_framed(
    values: pa.Array,
    decode: Decode,
    problem_of: Callable[[int, tuple[int, ...]], str | None],
    type_: pa.DataType,
) -> Decoded:
    """Decode a binary array without null of values with Confluent's frame.

    `problem_of` is asked once for each schema id and indexes what keeps such values from being the
    messages that `decode` decodes: None if nothing does.
    """
    framed = split_indexes(values)
    problems = [None] * len(values) if framed.problems is None else framed.problems.to_pylist()
    right = framed.kind >= 0
    for number, kind in enumerate(framed.kinds):
        problem = problem_of(*kind)
        if problem is not None:
            right &= framed.kind != number
            for row in np.flatnonzero(framed.kind == number).tolist():
                problems[row] = problem
    if right.all():
        return decode(framed.messages)
    found = decode(framed.messages.filter(pa.array(right)))
    made = spread(found.values, pa.array(right)) if right.any() else pa.nulls(len(values), type_)
    texts = pa.array(problems, pa.string())
    if found.problems is not None:
        texts = pc.coalesce(texts, spread(found.problems, pa.array(right)))
    return Decoded(made, texts)


def _indexes(wire: Wire, at: Any, end: Any, right: Any) -> tuple[Any, Any, Any]:
    value, after, long = varints(wire.data, at, _INDEX_BYTES_MAX)
    fits = right & (after <= end) if long is None else right & (after <= end) & ~long
    whole = value.astype(np.int64)
    return (whole >> 1) ^ -(whole & 1), after, fits


def _kind(prefix: bytes) -> tuple[int, tuple[int, ...]]:
    numbers, at = [], SCHEMA_ID_BYTES
    while at < len(prefix):
        number, at = decode_signed(prefix, at)
        numbers.append(number)
    return int.from_bytes(prefix[1:SCHEMA_ID_BYTES], "big"), tuple(numbers[1:]) or (0,)


def index_prefix(indexes: Sequence[int]) -> bytes:
    """The bytes between the schema id and the message."""
    if tuple(indexes) == (0,):
        return b"\0"
    return b"".join(encode_signed(number) for number in (len(indexes), *indexes))


def message_indexes(descriptor: Descriptor) -> tuple[int, ...]:
    """Where the message is in its file."""
    name, within = descriptor.name, descriptor.containing_type
    if within is None:
        return (list(descriptor.file.message_types_by_name).index(name),)
    place = [each.name for each in within.nested_types].index(name)
    return (*message_indexes(within), place)


def message_at(file: FileDescriptor, indexes: Sequence[int]) -> Descriptor:
    """The message of the file with these indexes."""
    inside, found = list(file.message_types_by_name.values()), None
    for index in indexes:
        if index >= len(inside):
            raise ProtobufSchemaError(
                f"the file {file.name} has no message with the indexes {list(indexes)}"
            )
        found = inside[index]
        inside = list(found.nested_types)
    return found
