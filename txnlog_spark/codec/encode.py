"""Arrow columns to finished record batches, with blank producer fields.

How it works: sizes of all rows are known from the columns' offsets, so the division into batches is
arithmetic, for all partitions of a block at once: its rows are sorted by partition, and divided at
the borders and where a batch is full. Some MiB of batches are made together: everything small
(batch headers, lengths, deltas) is packed for all rows at once, and Arrow's
`binary_join_element_wise` concatenates headers, prefix, key, value and record headers of each row.
Its data buffer is the batches one behind the other, copied once by native code, and each batch is a
slice of it, in which only the CRC is missing. So the cost goes by rows and bytes, and not by
partitions.

The producer id, epoch and base sequence stay -1 and the base offset 0: the committer stamps them
(`wire.records.stamp_producer`), which is why a retried or speculative task can do no harm.
"""

from __future__ import annotations

import bisect
import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog_kafka.wire.compression import COMPRESSIONS, compress
from txnlog_kafka.wire.records import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    LENGTH_AT,
    LENGTH_END,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Compression,
    refresh_crc,
)
from txnlog_spark.codec import compute as pc
from txnlog_spark.codec.binary import as_binary, binary_of, binary_parts, gathered, offsets_from
from txnlog_spark.codec.record_headers import key_texts
from txnlog_spark.codec.varints import (
    Int64Array,
    UInt64Array,
    pack_varints,
    varint_sizes,
    zigzag,
)

_NULL_LENGTH = 1
"""Zig-zag of -1: a null key or value."""

_GROUP_BYTES = 2 * 1024 * 1024
"""Batches are made together up to about this much: few calls, and memory that is reused."""

_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
"""`wire.records.BatchHeader`, many at once."""


_RADIX_MAX = 2**16
"""Sixteen bits are sorted by radix: twenty times faster than a merge sort of the same numbers."""


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The rows sorted by partition.

    `rows` holds the rows' indices in their new order, None when they lie so already. Partition
    `partitions[i]` has the sorted rows [borders[i], borders[i + 1]).
    """

    rows: Int64Array | None
    partitions: list[int]
    borders: list[int]


def sort_rows(partitions: npt.NDArray[np.int32]) -> RowOrder:
    """The rows by ascending partition; within a partition they keep their order."""
    if not len(partitions):
        return RowOrder(None, [], [0])
    rows: Int64Array | None = None
    if (partitions[1:] < partitions[:-1]).any():
        small = int(partitions.min()) >= 0 and int(partitions.max()) < _RADIX_MAX
        rows = np.argsort(partitions.astype(np.uint16) if small else partitions, kind="stable")
        partitions = partitions[rows]
    starts = np.flatnonzero(np.diff(partitions, prepend=partitions[0] - 1))
    return RowOrder(rows, partitions[starts].tolist(), [*starts.tolist(), len(partitions)])


class RecordTooLarge(ValueError):
    """A record alone is larger than the largest batch: Kafka's MESSAGE_TOO_LARGE, before sending.

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
    """The columns with what the division needs; sizes are of a record without length and deltas.

    `order` sorts by partition: numbers are in sorted order, while keys, values and headers are as
    they came, to be taken a group at a time.
    """

    order: RowOrder
    keys: Any
    values: Any
    timestamps_ms: Int64Array
    key_lengths: Int64Array
    value_lengths: Int64Array
    header_counts: Int64Array | None
    header_bytes: Any
    body_sizes: Int64Array


def encode_partitioned(
    keys: Any,
    values: Any,
    timestamps_ms: Int64Array,
    headers: Any,
    partitions: npt.NDArray[np.int32],
    *,
    compression: str = "none",
    record_batch_bytes_max: int,
) -> Iterator[tuple[int, memoryview]]:
    """Record batches of at most `record_batch_bytes_max` bytes, each with its partition.

    Partitions ascend, and within one the rows keep their order. `keys` (None when all are null) and
    `values` are binary or string Arrow arrays, `headers` None or a list<struct<key: string, value:
    binary>> array; all of one length. A batch that compression would make larger is kept plain.
    Each batch is a slice of a buffer that it shares with others: what is kept is to be copied.

    Raises RecordTooLarge for a row that fits no batch, ValueError for a null header key or an
    unknown compression; at once, not when the first batch is taken.
    """
    if compression not in COMPRESSIONS:
        raise ValueError(f"compression {compression!r} is not one of {', '.join(COMPRESSIONS)}")
    rows = _prepare_rows(keys, values, timestamps_ms, headers, sort_rows(partitions))
    cuts, owners = _plan_cuts(rows, record_batch_bytes_max)
    return _encode_groups(rows, cuts, owners, COMPRESSIONS[compression])


def _encode_groups(
    rows: _Rows, cuts: list[int], owners: list[int], codec: Compression
) -> Iterator[tuple[int, memoryview]]:
    """Batch i has the sorted rows [cuts[i], cuts[i + 1]) and belongs to partition owners[i]."""
    sizes = np.cumsum(np.maximum(rows.body_sizes, 1))
    first = 0
    while first < len(owners):
        before = int(sizes[cuts[first]]) if cuts[first] else 0
        row = int(np.searchsorted(sizes, before + _GROUP_BYTES))
        last = max(first + 1, bisect.bisect_right(cuts, row) - 1)
        batches = _encode_group(rows, np.array(cuts[first : last + 1]))
        for partition, batch in zip(owners[first:last], batches, strict=True):
            yield partition, _finish_batch(batch, codec)
        first = last


def _prepare_rows(
    keys: Any, values: Any, timestamps_ms: Int64Array, headers: Any, order: RowOrder
) -> _Rows:
    values = as_binary(values)
    row_count = len(values)
    keys = None if keys is None or keys.null_count == len(keys) else as_binary(keys)
    timestamps_ms = np.ascontiguousarray(timestamps_ms, np.int64)
    value_lengths = _lengths(values)
    key_lengths = np.full(row_count, -1, np.int64) if keys is None else _lengths(keys)
    if not len(key_lengths) == len(timestamps_ms) == row_count == order.borders[-1]:
        raise ValueError("keys, values, timestamps and partitions differ in length")
    sizes = 1 + varint_sizes(zigzag(key_lengths)) + np.maximum(key_lengths, 0)
    sizes += varint_sizes(zigzag(value_lengths)) + np.maximum(value_lengths, 0)
    counts, header_bytes = _prepare_headers(headers)
    if counts is None:
        sizes += 1
    else:
        if len(counts) != row_count:
            raise ValueError("headers and values differ in length")
        sizes += varint_sizes(zigzag(counts)) + _lengths(header_bytes)
    if order.rows is not None:
        timestamps_ms, sizes = timestamps_ms[order.rows], sizes[order.rows]
        key_lengths, value_lengths = key_lengths[order.rows], value_lengths[order.rows]
        counts = None if counts is None else counts[order.rows]
    return _Rows(
        order, keys, values, timestamps_ms, key_lengths, value_lengths, counts, header_bytes, sizes
    )


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
    names, contents = as_binary(key_texts(as_binary(names))), as_binary(contents)
    name_prefix = _varint_array([zigzag(_lengths(names))], len(names))
    content_prefix = _varint_array([zigzag(_lengths(contents))], len(names))
    joined = _join_parts([name_prefix, names, content_prefix, contents])
    # The items of a row lie side by side: the row's bytes are a slice, so offsets say it all.
    return counts, gathered(joined, counts)


def _varint_array(columns: list[UInt64Array | int], row_count: int) -> Any:
    """Return one binary element for each row: the row's varints, one after the other."""
    return binary_of(*pack_varints(columns, row_count))


def _join_parts(parts: list[Any]) -> Any:
    return pc.binary_join_element_wise(*parts, b"", null_handling="replace", null_replacement=b"")


def _plan_cuts(rows: _Rows, record_batch_bytes_max: int) -> tuple[list[int], list[int]]:
    """Sorted rows where batches begin, and the end; and each batch's partition.

    A record's size depends on its batch through two deltas and its length; the upper bounds taken
    here are a byte or two too large, never too small.
    """
    row_count = len(rows.body_sizes)
    if not row_count:
        return [0], []
    span = int(rows.timestamps_ms.max()) - int(rows.timestamps_ms.min())
    deltas_bytes_max = _varint_size(2 * span) + _varint_size(2 * row_count)
    bodies = rows.body_sizes + deltas_bytes_max
    ends = np.cumsum(bodies + varint_sizes(zigzag(bodies)))
    space = record_batch_bytes_max - HEADER_BYTES
    cuts, owners = [0], []
    before = 0
    for partition, border in zip(rows.order.partitions, rows.order.borders[1:], strict=True):
        border_bytes = int(ends[border - 1])
        while cuts[-1] < border:
            start, cut = cuts[-1], border
            if border_bytes - before > space:
                cut = int(np.searchsorted(ends, before + space, side="right"))
            if cut == start:
                _check_fits(rows, start, record_batch_bytes_max)
                cut += 1
            cuts.append(cut)
            owners.append(partition)
            before = int(ends[cut - 1])
    return cuts, owners


def _varint_size(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def _check_fits(rows: _Rows, row: int, record_batch_bytes_max: int) -> None:
    """Exact size of a batch of this row alone: both deltas are zero, a byte each."""
    body = int(rows.body_sizes[row]) + 2
    size_bytes = HEADER_BYTES + _varint_size(2 * body) + body
    if size_bytes > record_batch_bytes_max:
        if rows.order.rows is not None:
            row = int(rows.order.rows[row])
        raise RecordTooLarge(row, size_bytes, record_batch_bytes_max)


def _encode_group(rows: _Rows, cuts: Int64Array) -> Iterator[memoryview]:
    """The batches between these bounds, plain and without CRC."""
    first, end = int(cuts[0]), int(cuts[-1])
    starts, counts = cuts[:-1] - first, np.diff(cuts)
    stamps = rows.timestamps_ms[first:end]
    base_stamps = stamps[starts]
    times = zigzag(stamps - np.repeat(base_stamps, counts))
    deltas = zigzag(np.arange(end - first) - np.repeat(starts, counts))
    sizes = rows.body_sizes[first:end] + varint_sizes(times) + varint_sizes(deltas)
    record_bytes = sizes + varint_sizes(zigzag(sizes))
    batch_bytes = np.add.reduceat(record_bytes, starts) + HEADER_BYTES
    heads = np.empty(len(starts), _HEADER)
    heads["base_offset"] = heads["crc"] = heads["attributes"] = 0
    heads["length"] = batch_bytes - LENGTH_END
    heads["leader_epoch"] = NO_LEADER_EPOCH
    heads["magic"] = MAGIC
    heads["last_offset_delta"] = counts - 1
    heads["base_timestamp"] = base_stamps
    heads["max_timestamp"] = np.maximum.reduceat(stamps, starts)
    heads["producer_id"] = NO_PRODUCER_ID
    heads["producer_epoch"] = NO_PRODUCER_EPOCH
    heads["base_sequence"] = NO_SEQUENCE
    heads["record_count"] = counts
    joined = _join_parts(
        _parts(rows, first, end, [zigzag(sizes), 0, times, deltas], (starts, heads))
    )
    data = binary_parts(joined)[1].data
    ends = np.cumsum(batch_bytes).tolist()
    return (data[start:stop] for start, stop in itertools.pairwise([0, *ends]))


def _parts(
    rows: _Rows,
    first: int,
    end: int,
    prefix: list[UInt64Array | int],
    heads: tuple[Int64Array, npt.NDArray[Any]],
) -> list[Any]:
    """The arrays whose elements, one after the other, are the rows' bytes."""
    count = end - first
    order = rows.order.rows
    # Arrow takes by 32-bit indices half as fast again as by 64-bit ones.
    taken = None if order is None else pa.array(order[first:end].astype(np.int32))

    def column(array: Any) -> Any:
        return array.slice(first, count) if taken is None else array.take(taken)

    value_lengths = zigzag(rows.value_lengths[first:end])
    parts: list[Any]
    if rows.keys is None:
        parts = [_with_heads([*prefix, _NULL_LENGTH, value_lengths], count, *heads)]
    else:
        prefix = [*prefix, zigzag(rows.key_lengths[first:end])]
        parts = [
            _with_heads(prefix, count, *heads),
            column(rows.keys),
            _varint_array([value_lengths], count),
        ]
    parts.append(column(rows.values))
    if rows.header_counts is None:
        parts.append(pa.scalar(b"\x00"))
    else:
        parts.append(_varint_array([zigzag(rows.header_counts[first:end])], count))
        parts.append(column(rows.header_bytes))
    return parts


def _with_heads(
    columns: list[UInt64Array | int], count: int, starts: Int64Array, heads: npt.NDArray[Any]
) -> Any:
    """`_varint_array`, with the batch's header before the first row of each batch."""
    packed, lengths = pack_varints(columns, count)
    ends = offsets_from(lengths)
    flat, head_bytes = packed.data, heads.tobytes()
    pieces: list[bytes | memoryview] = []
    borders = [*ends[starts].tolist(), len(packed)]
    for number, (start, stop) in enumerate(itertools.pairwise(borders)):
        pieces += (head_bytes[number * HEADER_BYTES :][:HEADER_BYTES], flat[start:stop])
    lengths[starts] += HEADER_BYTES
    return binary_of(b"".join(pieces), lengths)


def _finish_batch(batch: memoryview, codec: Compression) -> memoryview:
    """The batch with its CRC, compressed if that makes it smaller."""
    if codec != Compression.NONE:
        packed = compress(codec, batch[HEADER_BYTES:])
        if len(packed) < len(batch) - HEADER_BYTES:
            batch = memoryview(bytearray(bytes(batch[:HEADER_BYTES]) + packed))
            struct.pack_into(">i", batch, LENGTH_AT, len(batch) - LENGTH_END)
            struct.pack_into(">h", batch, ATTRIBUTES_AT, codec)
    refresh_crc(batch, 0, len(batch))
    return batch
