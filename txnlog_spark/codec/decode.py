"""Record batches of a Fetch answer to Arrow columns.

How it works: batch by batch, the header and CRC are checked and control and aborted batches are
dropped, and the records' lengths lead from one to the next (`record_walk`). Then all fields of all
records of the answer are read at once (`varints.read_varints`), and keys and values are taken out
of the body by native code: an Arrow array is laid over it whose odd elements are the values, and
a filter copies those. Nothing here relies on the peer: whatever the bytes, the result is columns
or CorruptBatch.

Aborted batches are found as Kafka's `CompletedFetch` does: the answer's list of aborted
transactions says where each begins, its ABORT marker where it ends.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog_kafka.wire.compression import decompress
from txnlog_kafka.wire.records import (
    HEADER_BYTES,
    BatchHeader,
    Compression,
    CorruptBatch,
    MarkerType,
    check_crc,
    decode_marker,
    iter_batches,
)
from txnlog_spark.codec.binary import cut_out
from txnlog_spark.codec.record_walk import PAST_THE_END, walk_records
from txnlog_spark.codec.varints import Int64Array, read_varints

GROUP_BYTES_MAX = 4 * 1024 * 1024
"""Decompressed bytes that are turned into columns at once, one batch at least: what stays in a
processor's cache, measured a third faster than 64 MiB at a time."""

WHOLE_FACTOR = 4
"""A part of an answer keeps all of it in memory, unless it is less than one in so many."""

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""Spark's header column."""

CREATE_TIME = 0
LOG_APPEND_TIME = 1

_BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FetchedRange:
    """Record batches of one partition, of which offsets in [start_offset, end_offset) are wanted.

    `aborted` is the Fetch answer's list of (producer id, first offset), None for read_uncommitted.
    """

    data: bytes | bytearray | memoryview
    start_offset: int
    end_offset: int
    aborted: Iterable[tuple[int, int]] | None


class CorruptRange(CorruptBatch):
    """One of the ranges has bytes that fail their checks."""

    def __init__(self, range_index: int, text: str) -> None:
        super().__init__(text)
        self.range_index = range_index


@dataclass(frozen=True, slots=True)
class DecodedColumns:
    """Rows range by range, in offset order. `ranges` (int32) says which range a row is of.
    `next_offset` is exclusive: where the next Fetch of the last range goes on.

    keys, values: binary Arrow arrays with nulls. offsets, timestamps (ms): int64.
    timestamp_types: int32, 0 CreateTime, 1 LogAppendTime. headers: None unless asked for, else
    `HEADERS_TYPE`, an empty list where a record has none.
    """

    keys: Any
    values: Any
    offsets: Int64Array
    timestamps: Int64Array
    timestamp_types: npt.NDArray[np.int32]
    headers: Any
    next_offset: int
    ranges: npt.NDArray[np.int32]


def decode_batches(
    data: bytes | bytearray | memoryview,
    *,
    start_offset: int,
    end_offset: int,
    aborted: Iterable[tuple[int, int]] | None,
    include_headers: bool = False,
) -> DecodedColumns:
    """All wanted records of one `FetchedRange`, whose fields these are.

    A torn last batch is left out. Raises CorruptBatch. Where the answer is large or compressed,
    `iter_decoded` holds a group of batches in memory instead of all.
    """
    wanted = FetchedRange(data, start_offset, end_offset, aborted)
    groups = list(iter_decoded([wanted], include_headers=include_headers))
    if len(groups) == 1:
        return groups[0]
    return DecodedColumns(
        keys=pa.concat_arrays([group.keys for group in groups]),
        values=pa.concat_arrays([group.values for group in groups]),
        offsets=np.concatenate([group.offsets for group in groups]),
        timestamps=np.concatenate([group.timestamps for group in groups]),
        timestamp_types=np.concatenate([group.timestamp_types for group in groups]),
        headers=pa.concat_arrays([group.headers for group in groups]) if include_headers else None,
        next_offset=groups[-1].next_offset,
        ranges=np.concatenate([group.ranges for group in groups]),
    )


def iter_decoded(
    ranges: Sequence[FetchedRange],
    *,
    include_headers: bool = False,
    group_bytes_max: int = GROUP_BYTES_MAX,
) -> Iterator[DecodedColumns]:
    """The wanted records of these ranges, a group of batches at a time: memory stays bounded.

    Yields at least one group, the last one with the final `next_offset` of the last range. Raises
    CorruptRange.
    """
    group = _Group()
    for index, wanted in enumerate(ranges):
        group.next_offset = wanted.start_offset
        for body in _bodies(index, wanted, group):
            if group.bodies and group.size_bytes + body.size_bytes > group_bytes_max:
                yield _decode_group(group, ranges, include_headers)
                group.bodies, group.size_bytes = [], 0
            group.bodies.append(body)
            group.size_bytes += body.size_bytes
            group.next_offset = body.header.next_offset
        group.next_offset = max(wanted.start_offset, min(group.next_offset, wanted.end_offset))
    yield _decode_group(group, ranges, include_headers)


@dataclass(frozen=True, slots=True)
class _Body:
    """The plain records of one batch of a range: `source[start:end]`, not copied."""

    range_index: int
    header: BatchHeader
    source: bytes | bytearray
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class _Group:
    """Batches to be decoded together, and how far the answer has been read."""

    next_offset: int = 0
    bodies: list[_Body] = field(default_factory=list)
    size_bytes: int = 0
    record_counts: list[int] = field(default_factory=list)


def _bodies(index: int, wanted: FetchedRange, group: _Group) -> Iterator[_Body]:
    source, first = _whole_of(wanted.data)
    try:
        for header, position in _visible_batches(wanted.data, wanted, group):
            start, end = position + HEADER_BYTES, position + header.size_bytes
            if header.compression == Compression.NONE:
                yield _Body(index, header, source, first + start, first + end)
            else:
                plain = decompress(header.compression, memoryview(wanted.data)[start:end])
                yield _Body(index, header, plain, 0, len(plain))
    except CorruptBatch as error:
        raise CorruptRange(index, str(error)) from error


def _whole_of(data: bytes | bytearray | memoryview) -> tuple[bytes | bytearray, int]:
    """What a view is a part of, and where in it; a part that is small beside it is copied."""
    if not isinstance(data, memoryview):
        return data, 0
    whole = data.obj
    if not isinstance(whole, bytes | bytearray) or len(whole) > WHOLE_FACTOR * len(data):
        return bytes(data), 0
    return whole, _address(data) - _address(whole)


def _address(data: bytes | bytearray | memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


def _visible_batches(
    data: bytes | bytearray | memoryview, wanted: FetchedRange, group: _Group
) -> Iterator[tuple[BatchHeader, int]]:
    """Checked data batches that overlap the range; moves `group.next_offset` over all others."""
    tracker = None if wanted.aborted is None else _AbortedProducers(wanted.aborted)
    for header, position in iter_batches(data):
        if header.base_offset >= wanted.end_offset:
            # The range ends in a gap before this batch: nothing of it is left to fetch.
            group.next_offset = wanted.end_offset
            return
        check_crc(data, position, header)
        hidden = tracker is not None and tracker.hides(data, position, header)
        if hidden or header.is_control or header.last_offset < wanted.start_offset:
            group.next_offset = header.next_offset
            continue
        yield header, position


class _AbortedProducers:
    """Which producers are inside an aborted transaction, batch after batch."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._waiting = [(first_offset, producer_id) for producer_id, first_offset in aborted]
        heapq.heapify(self._waiting)
        self._active: set[int] = set()

    def hides(
        self, data: bytes | bytearray | memoryview, position: int, header: BatchHeader
    ) -> bool:
        """Whether this batch belongs to an aborted transaction (Kafka's `isBatchAborted`)."""
        if not header.has_producer_id:
            return False
        while self._waiting and self._waiting[0][0] <= header.last_offset:
            self._active.add(heapq.heappop(self._waiting)[1])
        if header.is_control:
            marker = decode_marker(data, position, header)
            if marker is not None and marker.marker_type == MarkerType.ABORT:
                self._active.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._active


def _decode_group(
    group: _Group, ranges: Sequence[FetchedRange], include_headers: bool
) -> DecodedColumns:
    try:
        data, positions = _lay_out(group)
        return _decode_columns(group, data, positions, ranges, include_headers)
    except (IndexError, ValueError, CorruptBatch, pa.ArrowInvalid) as error:
        by_range: dict[int, list[_Body]] = {}
        for body in group.bodies:
            by_range.setdefault(body.range_index, []).append(body)
        for bodies in by_range.values() if len(by_range) > 1 else ():
            _decode_group(_Group(bodies=bodies), ranges, include_headers)
        first = group.bodies[0]
        text = f"records of the batches from {first.header.base_offset} on: {error}"
        raise CorruptRange(first.range_index, text) from error


def _lay_out(group: _Group) -> tuple[bytes | bytearray, Int64Array]:
    """One buffer that holds all bodies in their order, and the positions of all records in it.

    Plain batches are read where they are, in the answer; what was decompressed is joined, and what
    comes from several answers, or from one that has partitions in another order.
    """
    bodies = group.bodies
    group.record_counts = [body.header.record_count for body in bodies]
    for body in bodies:
        if not 0 <= body.header.record_count <= body.size_bytes:
            raise _torn(body, "do not fit")
    if all(a.source is b.source and a.end <= b.start for a, b in itertools.pairwise(bodies)):
        data = bodies[0].source if bodies else b""
        starts = [body.start for body in bodies]
    else:
        data = b"".join(memoryview(body.source)[body.start : body.end] for body in bodies)
        starts = [0, *itertools.accumulate(body.size_bytes for body in bodies[:-1])]
    ends = [start + body.size_bytes for start, body in zip(starts, bodies, strict=True)]
    positions, found = walk_records(data, starts, ends, group.record_counts)
    for body, start, end, found_end in zip(bodies, starts, ends, found, strict=True):
        if found_end == PAST_THE_END:
            raise _torn(body, "go beyond them")
        if found_end != end:
            raise _torn(body, f"take {found_end - start}")
    return data, positions


def _torn(body: _Body, what: str) -> CorruptBatch:
    return CorruptBatch(
        f"the batch at {body.header.base_offset} has {body.size_bytes} bytes of records, its "
        f"{body.header.record_count} records {what}"
    )


def _decode_columns(
    group: _Group,
    body: bytes | bytearray,
    positions: Int64Array,
    ranges: Sequence[FetchedRange],
    include_headers: bool,
) -> DecodedColumns:
    data = np.frombuffer(body, np.uint8)
    lengths, starts = read_varints(data, positions)
    if bool((lengths < 0).any()):
        raise ValueError("a record has a negative length")
    ends = starts + lengths
    time_deltas, at = read_varints(data, starts + 1)
    offset_deltas, at = read_varints(data, at)
    key_lengths, key_starts = read_varints(data, at)
    key_ends = key_starts + np.maximum(key_lengths, 0)
    value_lengths, value_starts = read_varints(data, key_ends)
    value_ends = value_starts + np.maximum(value_lengths, 0)
    header_counts, header_starts = read_varints(data, value_ends)
    # Ordered bounds, so that no lie about a length can reach outside its record.
    _check_within(key_starts, key_ends, ends)
    _check_within(value_starts, value_ends, ends)
    _check_within(header_starts, header_starts, ends)
    if bool(((header_counts == 0) & (header_starts != ends)).any()):
        raise ValueError("bytes are left after the last field of a record")
    offsets, timestamps, types = _absolute(group, offset_deltas, time_deltas)
    of_range = np.repeat(
        np.array([each.range_index for each in group.bodies], np.int32), group.record_counts
    )
    first_offsets = np.array([each.start_offset for each in ranges], np.int64)[of_range]
    end_offsets = np.array([each.end_offset for each in ranges], np.int64)[of_range]
    keep = (offsets >= first_offsets) & (offsets < end_offsets)
    headers = None
    if include_headers:
        headers = _decode_headers(body, header_counts[keep], header_starts[keep], ends[keep])
    return DecodedColumns(
        keys=_cut_out(body, key_starts[keep], key_ends[keep], key_lengths[keep] < 0),
        values=_cut_out(body, value_starts[keep], value_ends[keep], value_lengths[keep] < 0),
        offsets=offsets[keep],
        timestamps=timestamps[keep],
        timestamp_types=types[keep],
        headers=headers,
        next_offset=group.next_offset,
        ranges=of_range[keep],
    )


def _check_within(starts: Int64Array, stops: Int64Array, ends: Int64Array) -> None:
    if bool((stops < starts).any()) or bool((stops > ends).any()):
        raise ValueError("a field is out of its record")


def _absolute(
    group: _Group, offset_deltas: Int64Array, time_deltas: Int64Array
) -> tuple[Int64Array, Int64Array, npt.NDArray[np.int32]]:
    """Offsets, timestamps and timestamp types from the deltas and the batches' headers."""
    headers = [body.header for body in group.bodies]

    def by_record(values: list[int]) -> Int64Array:
        return np.repeat(np.array(values, np.int64), group.record_counts)

    bases = by_record([each.base_offset for each in headers])
    base_times = by_record([each.base_timestamp for each in headers])
    max_times = by_record([each.max_timestamp for each in headers])
    appended = by_record(
        [LOG_APPEND_TIME if each.is_log_append_time else CREATE_TIME for each in headers]
    )
    last_deltas = by_record([each.last_offset_delta for each in headers])
    if bool(((offset_deltas < 0) | (offset_deltas > last_deltas)).any()):
        raise ValueError("an offset delta is outside its batch")
    timestamps = np.where(appended, max_times, base_times + time_deltas)
    return bases + offset_deltas, timestamps, appended.astype(np.int32)


def _cut_out(
    body: bytes | bytearray, starts: Int64Array, stops: Int64Array, is_null: _BoolArray
) -> Any:
    """A binary array of `body[start:stop]` for each row; starts and stops ascend."""
    rows = pa.array(np.arange(len(starts)), mask=is_null) if bool(is_null.any()) else None
    return cut_out(pa.py_buffer(body), starts, stops, rows)


def _decode_headers(
    body: bytes | bytearray, counts: Int64Array, starts: Int64Array, ends: Int64Array
) -> Any:
    """The header lists; one round reads the next header of every record that has one more."""
    if bool((counts < 0).any()) or bool((counts > ends - starts).any()):
        raise ValueError("a header count is out of its record")
    data = np.frombuffer(body, np.uint8)
    at = starts.copy()
    rounds: list[tuple[Int64Array, ...]] = []
    rows = np.flatnonzero(counts)
    index = 0
    while len(rows):
        name_lengths, name_starts = read_varints(data, at[rows])
        name_ends = name_starts + name_lengths
        lengths, content_starts = read_varints(data, name_ends)
        content_ends = content_starts + np.maximum(lengths, 0)
        _check_within(name_starts, name_ends, ends[rows])
        _check_within(content_starts, content_ends, ends[rows])
        at[rows] = content_ends
        rounds.append((rows, name_starts, name_ends, content_starts, content_ends, lengths))
        index += 1
        rows = rows[counts[rows] > index]
    if bool(((counts > 0) & (at != ends)).any()):
        raise ValueError("bytes are left after the last header of a record")
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(
        pa.array(offsets), _header_items(body, rounds), type=HEADERS_TYPE
    )


def _header_items(body: bytes | bytearray, rounds: list[tuple[Int64Array, ...]]) -> Any:
    """The rounds' headers in the order of their records, as struct<key, value>."""
    if not rounds:
        return pa.array([], HEADERS_TYPE.value_type)
    columns = [np.concatenate(parts) for parts in zip(*rounds, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    _, name_starts, name_ends, starts, ends, lengths = (column[order] for column in columns)
    names = _as_text(_cut_out(body, name_starts, name_ends, np.zeros(len(order), np.bool_)))
    contents = _cut_out(body, starts, ends, lengths < 0)
    return pa.StructArray.from_arrays([names, contents], fields=list(HEADERS_TYPE.value_type))


def _as_text(names: Any) -> Any:
    """Header keys as strings. Bytes that are not UTF-8 become U+FFFD, as Java's consumer has it."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()])
