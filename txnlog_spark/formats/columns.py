"""Columns that the formats share: paths in errors, binary columns, and reading at many positions.

An encoder makes a binary column of each field, and Arrow joins them row by row. A decoder reads the
bytes of all values at once: `Wire` has them, and a number is read at all positions by numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog_kafka.wire.invariants import check
from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.binary import binary_of, binary_parts, list_offsets, offsets_from
from txnlog_spark.codec.varints import VARINT_BYTES_MAX, pack_varints, zigzag
from txnlog_spark.errors import OptionError, TxnLogError
from txnlog_spark.formats.decoded import spread

Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NO_BYTES = pa.scalar(b"", pa.binary())

# Paths ----------------------------------------------------------------------------------------


def below(path: str, name: str) -> str:
    """Return the path of what has this name in the column of that path."""
    return f"{path}.{name}" if path else name


def column_at(path: str) -> str:
    """Return what errors of a write call the column of this path; "" is the whole value."""
    return f"the column {path}" if path else "the value"


def field_at(path: str) -> str:
    """Return what errors of a read call the field of this path; "" is the whole value."""
    return f"the field {path}" if path else "the value"


def indexes(
    texts: pa.Array, names: pa.Array, path: str, error: type[TxnLogError], place: str
) -> npt.NDArray[np.int32]:
    """Return the index of each text in `names`. Raises `error` for a text not in this place."""
    at = pc.index_in(texts, value_set=names)
    if at.null_count:
        unknown = texts.filter(at.is_null())[0].as_py()
        raise error(f"{column_at(path)} has the value {unknown!r}, which is not {place}")
    made: npt.NDArray[np.int32] = at.to_numpy()
    return made


# Binary columns -------------------------------------------------------------------------------


def repeated(value: bytes, rows: int) -> pa.Array:
    """Return a column with the same bytes in each row."""
    return pa.repeat(pa.scalar(value, pa.binary()), rows)


def join(parts: Sequence[Any], rows: int) -> pa.Array:
    """Return the bytes of each row's parts one after the other; `bytes` are in every row."""
    if not parts:
        return repeated(b"", rows)
    columns = (pa.scalar(each, pa.binary()) if isinstance(each, bytes) else each for each in parts)
    return pc.binary_join_element_wise(*columns, NO_BYTES)


def stretches(data: Any, sizes: npt.NDArray[Any]) -> pa.Array:
    """Return the data cut into values of these sizes, as a binary column.

    Raises OptionError where they are more than one Arrow array can have.
    """
    if sizes.sum(dtype=np.int64) > np.iinfo(np.int32).max:
        raise OptionError(
            "spark.sql.execution.arrow.maxRecordsPerBatch",
            None,
            "lower it: the values of one Arrow batch are over 2 GiB",
        )
    return binary_of(data, sizes)


def varints(values: npt.NDArray[Any]) -> pa.Array:
    """Return a column of zig-zag varints."""
    return stretches(*pack_varints([zigzag(values)], len(values)))


def spread_bytes(dense: pa.Array, valid: pa.Array, absent: bytes = b"") -> pa.Array:
    """Return the values where `valid`, and the bytes `absent` elsewhere."""
    return spread(dense, valid).fill_null(pa.scalar(absent, pa.binary()))


# Structs and lists ----------------------------------------------------------------------------


def structs(columns: list[pa.Array], rows: int, type_: pa.DataType, null: Any = None) -> pa.Array:
    """Return structs with these columns as fields, null where `null`.

    Structs without columns have `rows` rows too, and are never null.
    """
    if not columns:
        check(null is None, "structs without columns are not null", type=str(type_))
        return pa.Array.from_buffers(type_, rows, [None])
    return pa.StructArray.from_arrays(columns, fields=list(type_), mask=null)


def shown(array: pa.Array, values: pa.Array) -> pa.Array:
    """Return the part of the values of a list or map array that its rows show."""
    offsets = list_offsets(array)
    return values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def offsets_of(owner: Whole, count: int) -> pa.Array:
    """Return the offsets of `count` lists; `owner` has the list of each item and does not fall."""
    return pa.array(offsets_from(np.bincount(owner, minlength=count)))


def listed(owner: Whole, values: pa.Array, count: int, type_: pa.DataType) -> pa.Array:
    """Return a list array of `count` lists, `owner` having the list of each value."""
    return pa.ListArray.from_arrays(offsets_of(owner, count), values, type=type_)


# Reading --------------------------------------------------------------------------------------


class Wire:
    """The bytes of all values, and zeros behind them so that no look ahead leaves the buffer."""

    def __init__(self, values: pa.Array) -> None:
        bounds, data = binary_parts(values)
        self.bounds = bounds.astype(np.int64)
        first, last = int(self.bounds[0]), int(self.bounds[-1])
        self.bounds -= first
        self.data = np.zeros(last - first + 2 * VARINT_BYTES_MAX, np.uint8)
        self.data[: last - first] = data[first:last]
        self.buffer = pa.py_buffer(self.data)

    @cached_property
    def ends(self) -> Whole:
        """Positions of the bytes that can be the last of a varint."""
        return np.flatnonzero(self.data < 0x80)
