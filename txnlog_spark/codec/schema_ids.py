"""Schema ids of Confluent's wire format: a zero byte, the id in four bytes, big-endian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.decoded import Decode, Decoded, joined
from txnlog_spark.errors import TxnLogError

SCHEMA_ID_BYTES = 5


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
    decoder_of: Callable[[int], Decode],
    type_: pa.DataType,
    schema_errors: tuple[type[TxnLogError], ...] = (),
) -> Decoded:
    """Decode the values of each schema id together, and put them back into their places.

    `values` is a binary array without null, `type_` the Arrow type of what is decoded. Where
    `decoder_of` raises one of `schema_errors`, all values of that id are malformed.
    """
    headers = pc.binary_slice(values, 0, SCHEMA_ID_BYTES).dictionary_encode()
    codes = headers.indices.to_numpy()
    # Without an end the kernel fails on values that are shorter than the start.
    payloads = pc.binary_slice(values, SCHEMA_ID_BYTES, np.iinfo(np.int32).max)
    places, parts = [], []
    for code, header in enumerate(headers.dictionary.to_pylist()):
        rows = np.flatnonzero(codes == code)
        places.append(rows)
        try:
            if len(header) < SCHEMA_ID_BYTES or header[0]:
                problem = f"it begins with {header!r}, which is not Confluent's wire format"
                parts.append(_malformed(len(rows), type_, problem))
                continue
            decode = decoder_of(int.from_bytes(header[1:], "big"))
        except schema_errors as error:
            parts.append(_malformed(len(rows), type_, error.text))
            continue
        parts.append(decode(payloads.take(pa.array(rows))))
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
