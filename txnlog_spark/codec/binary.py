"""Buffers of Arrow arrays for numpy. No other module reads one by hand.

Each function says which Arrow types it reads, and refuses all others: the bytes of an array of
another type, read as these are, would be other bytes of the process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog_kafka.wire.invariants import check
from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.varints import Int64Array

BoolArray = npt.NDArray[np.bool_]


def binary_parts(array: Any) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return offsets and bytes of a binary or string array: value i is `data[at[i]:at[i+1]]`.

    Neither is copied.

    The first offset need not be 0, nor the last one the end of the bytes.
    """
    _check_type(array, pa.lib.Type_BINARY, pa.lib.Type_STRING)
    _, offsets, data = array.buffers()
    # An array without elements may have no offsets.
    at = np.frombuffer(offsets or bytes(4), np.int32)[array.offset :][: len(array) + 1]
    return at, np.frombuffer(data or b"", np.uint8)


def as_binary(array: Any) -> Any:
    """Return a binary or string array, chunked or not, as one binary array."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array if pa.types.is_binary(array.type) else array.cast(pa.binary())


def list_offsets(array: Any) -> npt.NDArray[np.int32]:
    """Return offsets of a list or map array: element i has the values `[at[i]:at[i+1]]`."""
    _check_type(array, pa.lib.Type_LIST, pa.lib.Type_MAP)
    at: npt.NDArray[np.int32] = array.offsets.to_numpy()
    return at


def decimal_rows(array: Any) -> npt.NDArray[np.uint8]:
    """Return the 16 bytes of each decimal of a decimal128 array, little-endian, a row each."""
    _check_type(array, pa.lib.Type_DECIMAL128)
    data = np.frombuffer(array.buffers()[1] or b"", np.uint8).reshape(-1, 16)
    return data[array.offset : array.offset + len(array)]


def _check_type(array: Any, *types: int) -> None:
    check(array.type.id in types, "this buffer is not read", type=str(array.type))


def validity(valid: npt.NDArray[np.bool_]) -> Any:
    """Return the buffer of validity bits of booleans."""
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def offsets_from(sizes: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Return where elements of these sizes begin, one after the other, and where the last ends."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def binary_of(data: Any, sizes: npt.NDArray[Any]) -> Any:
    """Return a binary array: the data cut into values of these sizes."""
    buffers = [None, pa.py_buffer(offsets_from(sizes)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


def gathered(values: Any, counts: npt.NDArray[Any]) -> Any:
    """Return a binary array with the bytes of so many neighbouring values in each row."""
    bounds, data = binary_parts(values)
    buffers = [None, pa.py_buffer(bounds[offsets_from(counts)]), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(counts), buffers)


def cut_out(data: Any, starts: npt.NDArray[Any], stops: npt.NDArray[Any], rows: Any = None) -> Any:
    """Return a binary array of `data[start:stop]`, of a buffer; starts and stops ascend.

    With `rows`, an integer array that may have null: the values of these, and null for null.
    """
    count = len(starts)
    if not count:
        return pa.nulls(0 if rows is None else len(rows), pa.binary())
    # Every second element of an array whose others are what lies between.
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2], bounds[1::2] = starts, stops
    buffers = [None, pa.py_buffer(bounds), data]
    places = pa.array(np.arange(0, 2 * count, 2)) if rows is None else pc.multiply(rows, 2)
    return pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers).take(places)


def cut_out_fields(
    body: bytes | bytearray, starts: Int64Array, stops: Int64Array, is_null: BoolArray
) -> Any:
    """Return a binary array of `body[start:stop]`, and null where `is_null`."""
    rows = pa.array(np.arange(len(starts)), mask=is_null) if bool(is_null.any()) else None
    return cut_out(pa.py_buffer(body), starts, stops, rows)


def check_within(starts: Int64Array, stops: Int64Array, ends: Int64Array) -> None:
    """Raise ValueError unless starts <= stops <= ends."""
    if bool((stops < starts).any()) or bool((stops > ends).any()):
        raise ValueError("a field is out of its record")
