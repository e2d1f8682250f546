"""Binary columns as the encoder of Protobuf builds them: tags with numbers, and stretches."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.binary import binary_parts
from txnlog_spark.codec.decoded import spread
from txnlog_spark.codec.varints import pack_varints
from txnlog_spark.protobuf.errors import UnencodableMessage

Flags = npt.NDArray[np.bool_]

NO_BYTES = pa.scalar(b"", pa.binary())


def join(parts: list[Any], rows: int) -> pa.Array:
    """The bytes of each row's parts one after the other."""
    if not parts:
        return pa.repeat(NO_BYTES, rows)
    return pc.binary_join_element_wise(*parts, NO_BYTES)


def tagged(tag: bytes, values: npt.NDArray[np.uint64], present: Flags | None = None) -> pa.Array:
    """The tag and a varint, where it is present; the tag may be none."""
    rows = len(values)
    data, sizes = pack_varints(
        [*tag, values if present is None else values[present]],
        rows if present is None else int(np.count_nonzero(present)),
    )
    return stretches(data, _spread_sizes(sizes, present, rows))


def tagged_fixed(tag: bytes, values: npt.NDArray[Any], present: Flags | None) -> pa.Array:
    """The tag and a number of a fixed width, where it is present; the tag may be none."""
    rows, kept = len(values), values if present is None else values[present]
    matrix = np.empty((len(kept), len(tag) + values.itemsize), np.uint8)
    matrix[:, : len(tag)] = np.frombuffer(tag, np.uint8)
    matrix[:, len(tag) :] = (
        np.ascontiguousarray(kept).view(np.uint8).reshape(len(kept), values.itemsize)
    )
    sizes = np.full(len(kept), matrix.shape[1], np.int64)
    return stretches(matrix.reshape(-1), _spread_sizes(sizes, present, rows))


def _spread_sizes(
    sizes: npt.NDArray[np.int64], present: Flags | None, rows: int
) -> npt.NDArray[np.int64]:
    if present is None:
        return sizes
    made = np.zeros(rows, np.int64)
    made[present] = sizes
    return made


def stretches(data: Any, sizes: npt.NDArray[np.int64]) -> pa.Array:
    """The data cut into values of these sizes."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise UnencodableMessage(
            "the messages of an Arrow batch are over 2 GiB: lower "
            "spark.sql.execution.arrow.maxRecordsPerBatch"
        )
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


def sized(tag: bytes, values: pa.Array, present: Flags | None = None) -> list[pa.Array]:
    """Bytes behind the tag and their length, where they are present; no value is null."""
    lengths = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.uint64)
    return [tagged(tag, lengths, present), values]


def gathered(values: pa.Array, counts: npt.NDArray[np.int64]) -> pa.Array:
    """So many values after each other as one, for each row."""
    bounds, data = binary_parts(values)
    at = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=at[1:])
    buffers = [None, pa.py_buffer(np.ascontiguousarray(bounds[at])), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(counts), buffers)


def spread_bytes(dense: pa.Array, valid: pa.Array) -> pa.Array:
    """The values where `valid`, and no bytes elsewhere."""
    return spread(dense, valid).fill_null(NO_BYTES)
