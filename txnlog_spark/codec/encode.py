"""Arrow columns to finished record batches, with blank producer fields.

How it works: sizes of all rows are known from the columns' offsets, so the cut into batches is
arithmetic. Within a batch, everything small (lengths, deltas) is packed as varints for all rows
at once, and Arrow's `binary_join_element_wise` concatenates prefix, key, value and headers of each
row: its data buffer is the batch's body, copied once by native code, whatever the value size.

The producer id, epoch and base sequence stay -1 and the base offset 0: the committer stamps them
(`wire.records.stamp_producer`), which is why a retried or speculative task can do no harm.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txnlog_spark.codec.compression import COMPRESSIONS, compress
from txnlog_spark.codec.varints import (
    Int64Array,
    UInt64Array,
    pack_varints,
    varint_sizes,
    zigzag,
)
from txnlog_spark.wire.records import (
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    Compression,
    encode_header,
    refresh_crc,
)

_NULL_LENGTH = 1
"""Zig-zag of -1: a null key or value."""


class RecordTooLarge(ValueError):
    """One record alone is over the largest batch: Kafka's MESSAGE_TOO_LARGE, found before sending.

    `row_index` counts from the first row of the call; `size_bytes` is the batch it would need.
    """

    def __init__(self, row_index: int, size_bytes: int, record_batch_bytes_max: int) -> None:
        super().__init__(
            f"row {row_index} takes a record batch of {size_bytes} bytes, "
            f"the limit is {record_batch_bytes_max}"
        )
        self.row_index = row_index
        self.size_bytes = size_bytes
        self.record_batch_bytes_max = record_batch_bytes_max


@dataclass(frozen=True, slots=True)
class _Rows:
    """The columns with what the cut needs; sizes are of a record without length and deltas."""

    keys: Any
    values: Any
    timestamps_ms: Int64Array
    key_lengths: Int64Array
    value_lengths: Int64Array
    header_counts: Int64Array | None
    header_bytes: Any
    body_sizes: Int64Array


def encode_batches(
    keys: Any,
    values: Any,
    timestamps_ms: Int64Array,
    headers: Any,
    *,
    compression: str = "none",
    record_batch_bytes_max: int,
) -> list[bytearray]:
    """Rows in order as record batches, each at most `record_batch_bytes_max` bytes.

    `keys` (None when all are null) and `values` are binary or string Arrow arrays, `headers` None
    or a list<struct<key: string, value: binary>> array; all of one length. A batch that compression
    would make larger is kept plain. Raises RecordTooLarge for a row that fits no batch, ValueError
    for a null header key or an unknown compression.
    """
    if compression not in COMPRESSIONS:
        raise ValueError(f"compression {compression!r} is none of {', '.join(COMPRESSIONS)}")
    rows = _prepare(keys, values, timestamps_ms, headers)
    cuts = _plan_cuts(rows, record_batch_bytes_max)
    codec = COMPRESSIONS[compression]
    return [_encode_batch(rows, start, end, codec) for start, end in itertools.pairwise(cuts)]


def _prepare(keys: Any, values: Any, timestamps_ms: Int64Array, headers: Any) -> _Rows:
    values = _as_binary(values)
    row_count = len(values)
    keys = None if keys is None or keys.null_count == len(keys) else _as_binary(keys)
    timestamps_ms = np.ascontiguousarray(timestamps_ms, np.int64)
    value_lengths = _lengths(values)
    key_lengths = np.full(row_count, -1, np.int64) if keys is None else _lengths(keys)
    if not len(key_lengths) == len(timestamps_ms) == row_count:
        raise ValueError("keys, values and timestamps differ in length")
    sizes = 1 + varint_sizes(zigzag(key_lengths)) + np.maximum(key_lengths, 0)
    sizes += varint_sizes(zigzag(value_lengths)) + np.maximum(value_lengths, 0)
    counts, header_bytes = _prepare_headers(headers)
    if counts is None:
        sizes += 1
    else:
        if len(counts) != row_count:
            raise ValueError("headers and values differ in length")
        sizes += varint_sizes(zigzag(counts)) + _lengths(header_bytes)
    return _Rows(
        keys, values, timestamps_ms, key_lengths, value_lengths, counts, header_bytes, sizes
    )


def _as_binary(array: Any) -> Any:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array if pa.types.is_binary(array.type) else array.cast(pa.binary())


def _lengths(array: Any) -> Int64Array:
    """Bytes of each element, -1 for null."""
    lengths = pc.binary_length(array)
    if array.null_count:
        lengths = lengths.fill_null(-1)
    as_numpy: Int64Array = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return as_numpy


def _prepare_headers(headers: Any) -> tuple[Int64Array | None, Any]:
    """Header count and encoded headers of each row, (None, None) when no row has any."""
    if headers is None:
        return None, None
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    counts: Int64Array = (
        pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    items = headers.flatten()
    if not len(items):
        return None, None
    names, contents = items.flatten()
    if names.null_count:
        raise ValueError("a header's key is null: Kafka allows a null header value only")
    names, contents = _as_binary(names), _as_binary(contents)
    name_prefix = _varint_array([zigzag(_lengths(names))], len(names))
    content_prefix = _varint_array([zigzag(_lengths(contents))], len(names))
    joined = _join([name_prefix, names, content_prefix, contents])
    # The items of a row lie side by side: the row's bytes are a slice, so offsets say it all.
    item_ends = np.frombuffer(joined.buffers()[1], np.int32, len(joined) + 1)
    row_items = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=row_items[1:])
    offsets = pa.py_buffer(item_ends[row_items])
    return counts, pa.Array.from_buffers(
        pa.binary(), len(counts), [None, offsets, joined.buffers()[2]]
    )


def _varint_array(columns: list[UInt64Array | int], row_count: int) -> Any:
    """One binary element a row: its varints, one after the other."""
    data, lengths = pack_varints(columns, row_count)
    offsets = np.zeros(row_count + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), row_count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _join(parts: list[Any]) -> Any:
    return pc.binary_join_element_wise(*parts, b"", null_handling="replace", null_replacement=b"")


def _plan_cuts(rows: _Rows, record_batch_bytes_max: int) -> list[int]:
    """Row indices where batches begin, and the end.

    A record's size depends on its batch through two deltas and its length; the upper bounds taken
    here are a byte or two too large, never too small.
    """
    row_count = len(rows.body_sizes)
    if not row_count:
        return [0]
    span = int(rows.timestamps_ms.max()) - int(rows.timestamps_ms.min())
    deltas_bytes_max = _varint_size(2 * span) + _varint_size(2 * row_count)
    bodies = rows.body_sizes + deltas_bytes_max
    ends = np.cumsum(bodies + varint_sizes(zigzag(bodies)))
    room = record_batch_bytes_max - HEADER_BYTES
    cuts = [0]
    while cuts[-1] < row_count:
        start = cuts[-1]
        before = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, before + room, side="right"))
        if end == start:
            _check_fits(rows, start, record_batch_bytes_max)
            end = start + 1
        cuts.append(end)
    return cuts


def _varint_size(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def _check_fits(rows: _Rows, row: int, record_batch_bytes_max: int) -> None:
    """Exact size of a batch of this row alone: both deltas are zero, a byte each."""
    body = int(rows.body_sizes[row]) + 2
    size_bytes = HEADER_BYTES + _varint_size(2 * body) + body
    if size_bytes > record_batch_bytes_max:
        raise RecordTooLarge(row, size_bytes, record_batch_bytes_max)


def _encode_batch(rows: _Rows, start: int, end: int, codec: Compression) -> bytearray:
    body = _encode_body(rows, start, end)
    if codec != Compression.NONE:
        packed = compress(codec, body)
        if len(packed) < len(body):
            body = memoryview(packed)
        else:
            codec = Compression.NONE
    batch = bytearray(HEADER_BYTES + len(body))
    batch[:HEADER_BYTES] = encode_header(
        BatchHeader(
            base_offset=0,
            length=len(batch) - LENGTH_END,
            leader_epoch=NO_LEADER_EPOCH,
            magic=MAGIC,
            crc=0,
            attributes=codec,
            last_offset_delta=end - start - 1,
            base_timestamp=int(rows.timestamps_ms[start]),
            max_timestamp=int(rows.timestamps_ms[start:end].max()),
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
            record_count=end - start,
        )
    )
    batch[HEADER_BYTES:] = body
    refresh_crc(batch, 0, len(batch))
    return batch


def _encode_body(rows: _Rows, start: int, end: int) -> memoryview:
    count = end - start
    times = zigzag(rows.timestamps_ms[start:end] - rows.timestamps_ms[start])
    deltas = zigzag(np.arange(count))
    sizes = rows.body_sizes[start:end] + varint_sizes(times) + varint_sizes(deltas)
    value_lengths = zigzag(rows.value_lengths[start:end])
    prefix: list[UInt64Array | int] = [zigzag(sizes), 0, times, deltas]
    parts: list[Any]
    if rows.keys is None:
        parts = [_varint_array([*prefix, _NULL_LENGTH, value_lengths], count)]
    else:
        prefix.append(zigzag(rows.key_lengths[start:end]))
        parts = [
            _varint_array(prefix, count),
            rows.keys.slice(start, count),
            _varint_array([value_lengths], count),
        ]
    parts.append(rows.values.slice(start, count))
    if rows.header_counts is None:
        parts.append(pa.scalar(b"\x00"))
    else:
        parts.append(_varint_array([zigzag(rows.header_counts[start:end])], count))
        parts.append(rows.header_bytes.slice(start, count))
    joined = _join(parts)
    end_at = int(np.frombuffer(joined.buffers()[1], np.int32, count + 1)[-1])
    return memoryview(joined.buffers()[2])[:end_at]
