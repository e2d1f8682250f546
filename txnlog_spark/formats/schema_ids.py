"""Schema ids of Confluent's serializers, before the value or in a header of the record.

Before the value stand a zero byte and the id in four bytes, big-endian. A header has the same, or
the byte 1 and the schema's GUID in sixteen bytes. With Protobuf the indexes of the message follow.
A record with the header has nothing before its value: Confluent's deserializers read it so, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from txnlog_kafka.wire.invariants import present
from txnlog_spark.codec import compute as pc
from txnlog_spark.errors import TxnLogError
from txnlog_spark.formats.decoded import Decode, Decoded, joined

SCHEMA_ID_BYTES = 5
_GUID_BYTES = 17

SchemaId = int | UUID


class NoSchema(Exception):
    """Values do not say which schema they were written with: they are malformed."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.text = problem


@dataclass(frozen=True, slots=True)
class HeaderIds:
    """Contents of the header `name` of some records, a binary array: null without the header."""

    name: str
    contents: Any


def id_header(side: str) -> str:
    """Return the name of the header in which Confluent's serializers may put a schema id."""
    return f"__{side}_schema_id"


def header_of(schema_id: int) -> bytes:
    """Return the bytes that values of this schema begin with."""
    return b"\0" + schema_id.to_bytes(SCHEMA_ID_BYTES - 1, "big")


@dataclass(frozen=True, slots=True)
class Split:
    """Values taken apart from what says their schema.

    keys: each schema id that occurs, and the bytes behind it, or why there is none. codes: the
    number of each value's key. payloads: the values without the key.
    """

    keys: list[tuple[SchemaId, bytes] | NoSchema]
    codes: Any
    payloads: Any


def split_ids(values: Any) -> Split:
    """Take apart values, a binary array without null, that begin with a schema id."""
    headers = pc.binary_slice(values, 0, SCHEMA_ID_BYTES).dictionary_encode()
    # Without an end the kernel fails on values that are shorter than the start.
    payloads = pc.binary_slice(values, SCHEMA_ID_BYTES, np.iinfo(np.int32).max)
    keys = [_id_before(header) for header in headers.dictionary.to_pylist()]
    return Split(keys, headers.indices.to_numpy(), payloads)


def decode_by_ids(
    values: Any,
    ids: HeaderIds | None,
    decoder_of: Callable[[SchemaId, bytes], Decode],
    type_: pa.DataType,
    schema_errors: tuple[type[TxnLogError], ...] = (),
    split: Callable[[Any], Split] = split_ids,
) -> Decoded:
    """Decode the values of each schema together, and put them into their places.

    `values` is a binary array without null, `type_` the Arrow type of what is decoded. The schema
    is in the header where `ids` has one, else before the value, where `split` finds it. The
    function `decoder_of` takes the schema id and the bytes behind it. If it raises `NoSchema` or
    one of `schema_errors`, all values of that id are malformed.
    """
    errors: tuple[type[NoSchema] | type[TxnLogError], ...] = (NoSchema, *schema_errors)

    def decode(parts: Split, without_key: Decode | None = None) -> Decoded:
        # Values of one key are decoded together, and their rows remembered for the order.
        places, made = [], []
        for code, key in enumerate([*parts.keys, None]):
            rows = np.flatnonzero(parts.codes == code)
            if not len(rows):
                continue
            places.append(rows)
            try:
                if isinstance(key, NoSchema):
                    raise key
                found = decoder_of(*key) if key else present(without_key, "a key is missing")
            except errors as error:
                # A mode that allows it keeps these values as malformed; others raise the error.
                problems = pa.array([error.text] * len(rows), pa.string())
                made.append(Decoded(pa.nulls(len(rows), type_), problems))
                continue
            made.append(found(parts.payloads.take(pa.array(rows))))
        return _in_places(places, made, type_)

    def by_prefix(values: Any) -> Decoded:
        return decode(split(values))

    if ids is None:
        return by_prefix(values)
    # Records without the header have the last code, and their schema id before the value.
    contents = ids.contents.dictionary_encode()
    keys = [_id_in(ids.name, content) for content in contents.dictionary.to_pylist()]
    codes = contents.indices.fill_null(len(keys)).to_numpy()
    return decode(Split(keys, codes, values), by_prefix)


def _id_before(header: bytes) -> tuple[SchemaId, bytes] | NoSchema:
    if len(header) < SCHEMA_ID_BYTES or header[0]:
        return NoSchema(f"it begins with {header!r}, which is not Confluent's wire format")
    return int.from_bytes(header[1:], "big"), b""


def _id_in(name: str, content: bytes) -> tuple[SchemaId, bytes] | NoSchema:
    kind, size = content[:1], len(content)
    if kind == b"\0" and size >= SCHEMA_ID_BYTES:
        return int.from_bytes(content[1:SCHEMA_ID_BYTES], "big"), content[SCHEMA_ID_BYTES:]
    if kind == b"\1" and size >= _GUID_BYTES:
        return UUID(bytes=content[1:_GUID_BYTES]), content[_GUID_BYTES:]
    return NoSchema(
        f"its header {name} has {content[:_GUID_BYTES]!r}, which is neither a schema id (the byte "
        "0 and 4 more) nor a GUID (the byte 1 and 16 more)"
    )


def _in_places(places: list[Any], parts: list[Decoded], type_: pa.DataType) -> Decoded:
    """Put decoded parts together, the rows of each part into its places."""
    if not parts:
        return Decoded(pa.array([], type_))
    found = joined(parts)
    if len(parts) == 1:
        return found
    order = pa.array(np.argsort(np.concatenate(places)))
    problems = None if found.problems is None else found.problems.take(order)
    return Decoded(found.values.take(order), problems)
