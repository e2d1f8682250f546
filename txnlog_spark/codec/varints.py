"""Zig-zag varints, a column at a time (source: Kafka's `ByteUtils.writeVarlong`, KIP-98).

Encoding lays the bytes of each row's varints side by side in one matrix, row by row, and lets a
mask squeeze out the unused ones. Decoding reads byte k of all rows at once, and from the second
byte on only the rows that go on. No Python loop over rows in either direction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]
ByteArray = npt.NDArray[np.uint8]

VARINT_BYTES_MAX = 10
"""A zig-zag varint of 64 bits takes at most ten bytes."""

_SEVEN = np.uint64(7)
_LOW_BITS = np.uint64(0x7F)


def zigzag(values: npt.NDArray[Any]) -> UInt64Array:
    """The unsigned zig-zag form of signed integers: 0, -1, 1, -2 become 0, 1, 2, 3."""
    signed = values.astype(np.int64, copy=False)
    mixed: UInt64Array = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    return mixed


def varint_sizes(values: UInt64Array) -> Int64Array:
    """Bytes that each varint takes, 1 to 10."""
    sizes = np.ones(len(values), np.int64)
    if not len(values):
        return sizes
    top = int(values.max())
    for bits in range(7, 64, 7):
        if top < 1 << bits:
            break
        sizes += values >= np.uint64(1 << bits)
    return sizes


def pack_varints(columns: list[UInt64Array | int], row_count: int) -> tuple[ByteArray, Int64Array]:
    """The bytes of all rows, row after row, and each row's length.

    A column is an array of zig-zag forms, one varint a row, or an int: that constant byte in every
    row.
    """
    widths = [
        1 if isinstance(column, int) else int(varint_sizes(column.max(initial=0).reshape(1))[0])
        for column in columns
    ]
    matrix = np.empty((row_count, sum(widths)), np.uint8)
    keep: npt.NDArray[np.bool_] | None = None
    lengths = np.full(row_count, sum(widths), np.int64)
    at = 0
    for column, width in zip(columns, widths, strict=True):
        if isinstance(column, int):
            matrix[:, at] = column
        else:
            sizes = varint_sizes(column)
            _fill(matrix[:, at : at + width], column, sizes)
            if int(sizes.min(initial=width)) < width:
                keep = np.ones(matrix.shape, np.bool_) if keep is None else keep
                keep[:, at : at + width] = sizes[:, None] > np.arange(width)
                lengths += sizes - width
        at += width
    flat = matrix.reshape(-1) if keep is None else matrix[keep]
    return flat, lengths


def _fill(target: ByteArray, values: UInt64Array, sizes: Int64Array) -> None:
    for index in range(target.shape[1]):
        byte = (values >> (_SEVEN * np.uint64(index))) & _LOW_BITS
        target[:, index] = byte.astype(np.uint8) | ((sizes > index + 1).astype(np.uint8) << 7)


def read_varints(data: ByteArray, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The signed values at `positions`, and the positions after them.

    Raises IndexError when one runs out of `data`, ValueError when one is over ten bytes.
    """
    first = data[positions]
    values = _OF_ONE_BYTE[first]
    after = positions + 1
    rows = _rows_with_more(first)
    if rows is not None:
        longer, after[rows], over = _read_longer(data, first[rows], after[rows], VARINT_BYTES_MAX)
        if over.size:
            raise ValueError("a varint is over ten bytes")
        values[rows] = unzigzag(longer)
    return values, after


def unsigned_at(
    data: ByteArray, at: Int64Array, bytes_max: int = VARINT_BYTES_MAX
) -> tuple[UInt64Array, Int64Array, npt.NDArray[np.bool_] | None]:
    """Return the varints at these positions, where they end, and which are over `bytes_max`.

    The last is None if no varint is. Bits over 64 are dropped. IndexError if `data` ends before.
    """
    first = data[at]
    values, after = first.astype(np.uint64), at + 1
    rows = _rows_with_more(first)
    if rows is None:
        return values, after, None
    values[rows], after[rows], over = _read_longer(data, first[rows], after[rows], bytes_max)
    if not over.size:
        return values, after, None
    long = np.zeros(len(at), bool)
    long[np.arange(len(at))[rows][over]] = True
    return values, after, long


def _rows_with_more(first: ByteArray) -> Any:
    """Return the index of varints that go on after their first byte; None if none does."""
    rows = np.flatnonzero(first >= 0x80)
    if not len(rows):
        return None
    return slice(None) if len(rows) == len(first) else rows


def _read_longer(
    data: ByteArray, first: ByteArray, after: Int64Array, bytes_max: int
) -> tuple[UInt64Array, Int64Array, Int64Array]:
    """Return varints that go on after their first byte, their ends, and the rows over `bytes_max`.

    The array `after` is moved to the ends.
    """
    values = (first & 0x7F).astype(np.uint64)
    rows: Any = slice(None)
    over = np.arange(0)
    for place in range(1, bytes_max):
        more = data[after[rows]]
        values[rows] |= (more & 0x7F).astype(np.uint64) << np.uint64(7 * place)
        after[rows] += 1
        over = np.flatnonzero(more >= 0x80)
        if not len(over):
            break
        rows = over = over if isinstance(rows, slice) else rows[over]
    return values, after, over


def unzigzag(values: UInt64Array) -> Int64Array:
    """Return the signed integers of zig-zag forms."""
    signed: Int64Array = (values >> np.uint64(1)).view(np.int64)
    signed ^= -(values & np.uint64(1)).view(np.int64)
    return signed


_OF_ONE_BYTE = unzigzag(np.arange(256, dtype=np.uint64) & _LOW_BITS)
"""The value of a varint that ends with its first byte, by this byte."""
