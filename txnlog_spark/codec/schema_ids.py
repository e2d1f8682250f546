"""Schema ids of Confluent's serializers, before the value or in a header of the record.

Before the value: a zero byte, the id in four bytes, big-endian. In a header: the same, or the byte
1 and the schema's GUID in sixteen bytes; with Protobuf the indexes of the message behind it. As
for Confluent's deserializers, a record that has the header has nothing before its value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.decoded import Decode, Decoded, joined
from txnlog_spark.errors import TxnLogError

SCHEMA_ID_BYTES = 5
_GUID_BYTES = 17

SchemaId = int | UUID


class NoSchema(Exception):
    """Nothing says by which schema values are to be decoded: all of them are malformed."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.text = problem


_Errors = tuple[type[NoSchema] | type[TxnLogError], ...]


@dataclass(frozen=True, slots=True)
class HeaderIds:
    """Contents of the header `name` of some records, a binary array: null without the header."""

    name: str
    contents: Any


def id_header(side: str) -> str:
    """Return the name of the header in which Confluent's serializers may put a schema id."""
    return f"__{side}_schema_id"


def header_of(schema_id: int) -> bytes:
    """What the values of this schema begin with."""
    return b"\0" + schema_id.to_bytes(SCHEMA_ID_BYTES - 1, "big")


def with_header(header: bytes, encoded: Any) -> Any:
    """The header before each of the values; without one the values as they are."""
    if not header:
        return encoded
    start, nothing = (pa.scalar(each, pa.binary()) for each in (header, b""))
    return pc.binary_join_element_wise(start, encoded, nothing)


def decode_by_schema(
    values: Any,
    decoder_of: Callable[[SchemaId], Decode],
    type_: pa.DataType,
    schema_errors: tuple[type[TxnLogError], ...] = (),
) -> Decoded:
    """Decode the values of each schema id before them together, and put them into their places.

    `values` is a binary array without null, `type_` the Arrow type of what is decoded. Where
    `decoder_of` raises one of `schema_errors`, all values of that id are malformed.
    """
    headers = pc.binary_slice(values, 0, SCHEMA_ID_BYTES).dictionary_encode()
    codes = headers.indices.to_numpy()
    # Without an end the kernel fails on values that are shorter than the start.
    payloads = pc.binary_slice(values, SCHEMA_ID_BYTES, np.iinfo(np.int32).max)
    places, parts = [], []
    errors: _Errors = (NoSchema, *schema_errors)
    for code, header in enumerate(headers.dictionary.to_pylist()):
        rows = np.flatnonzero(codes == code)
        places.append(rows)
        try:
            if len(header) < SCHEMA_ID_BYTES or header[0]:
                raise NoSchema(f"it begins with {header!r}, which is not Confluent's wire format")
            decode = decoder_of(int.from_bytes(header[1:], "big"))
        except errors as error:
            parts.append(_malformed(len(rows), type_, error.text))
            continue
        parts.append(decode(payloads.take(pa.array(rows))))
    return _in_places(places, parts, type_)


def decode_by_header(
    values: Any,
    ids: HeaderIds,
    decoder_of: Callable[[SchemaId, bytes], Decode],
    others: Decode,
    type_: pa.DataType,
    schema_errors: tuple[type[TxnLogError], ...] = (),
) -> Decoded:
    """Decode the values of records with the header by the schema in it, and by `others` the rest.

    `decoder_of` has the bytes behind the schema id as well, and may raise `NoSchema`. Everything
    else is as in `decode_by_schema`.
    """
    encoded = ids.contents.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy()
    places, parts = [], []
    errors: _Errors = (NoSchema, *schema_errors)
    for code, content in [(-1, b""), *enumerate(encoded.dictionary.to_pylist())]:
        rows = np.flatnonzero(codes == code)
        if not len(rows):
            continue
        places.append(rows)
        try:
            decode = others if code < 0 else decoder_of(*_id_in(ids.name, content))
        except errors as error:
            parts.append(_malformed(len(rows), type_, error.text))
            continue
        parts.append(decode(values.take(pa.array(rows))))
    return _in_places(places, parts, type_)


def _id_in(name: str, content: bytes) -> tuple[SchemaId, bytes]:
    """Take a header apart: the schema id, and the bytes behind it."""
    kind, size = content[:1], len(content)
    if kind == b"\0" and size >= SCHEMA_ID_BYTES:
        return int.from_bytes(content[1:SCHEMA_ID_BYTES], "big"), content[SCHEMA_ID_BYTES:]
    if kind == b"\1" and size >= _GUID_BYTES:
        return UUID(bytes=content[1:_GUID_BYTES]), content[_GUID_BYTES:]
    raise NoSchema(
        f"its header {name} has {content[:_GUID_BYTES]!r}, which is neither a schema id (the byte "
        "0 and 4 more) nor a GUID (the byte 1 and 16 more)"
    )


def _in_places(places: list[Any], parts: list[Decoded], type_: pa.DataType) -> Decoded:
    """Put decoded parts together, the rows of each into its places."""
    if not parts:
        return Decoded(pa.array([], type_))
    found = joined(parts)
    if len(parts) == 1:
        return found
    order = pa.array(np.argsort(np.concatenate(places)))
    problems = None if found.problems is None else found.problems.take(order)
    return Decoded(found.values.take(order), problems)


def _malformed(count: int, type_: pa.DataType, problem: str) -> Decoded:
    return Decoded(pa.nulls(count, type_), pa.array([problem] * count, pa.string()))
