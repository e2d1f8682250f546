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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog_kafka.wire.compression import decompress
from txnlog_kafka.wire.records import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    HEADER_FORMAT,
    LENGTH_END,
    RECORD_BYTES_MIN,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    CorruptBatch,
    MarkerType,
    check_crc,
    decode_marker,
    iter_batches,
)
from txnlog_spark.codec.binary import BoolArray, check_within, cut_out_fields
from txnlog_spark.codec.record_headers import decode_headers, last_contents, names_within
from txnlog_spark.codec.record_walk import PAST_THE_END, walk_records
from txnlog_spark.codec.varints import Int64Array, read_varints

GROUP_BYTES_MAX = 4 * 1024 * 1024
"""Decompressed bytes that are turned into columns at once, one batch at least: what stays in a
processor's cache, measured a third faster than 64 MiB at a time."""

WHOLE_FACTOR = 4
"""A part of an answer keeps all of it in memory, unless it is less than one in so many."""

HEADER_COLUMNS = np.dtype(
    [
        (name, f">{kind}")
        for name, kind in zip(BatchHeader._fields, HEADER_FORMAT.removeprefix(">"), strict=True)
    ]
)
"""A batch's header in an array of headers."""

CREATE_TIME = 0
LOG_APPEND_TIME = 1


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
    """Bytes of a range that fail their checks."""

    def __init__(self, range_index: int, text: str) -> None:
        super().__init__(text)
        self.range_index = range_index


@dataclass(frozen=True, slots=True)
class DecodedColumns:
    """Rows range by range, in offset order. `ranges` (int32) says which range a row is of.

    keys, values: binary Arrow arrays with nulls. offsets, timestamps (ms): int64.
    timestamp_types: int32, 0 CreateTime, 1 LogAppendTime. headers: None unless asked for, else
    `HEADERS_TYPE`, an empty list where a record has none. named_headers: `last_contents` of the
    wanted headers that some of the records have, by name.
    """

    keys: Any
    values: Any
    offsets: Int64Array
    timestamps: Int64Array
    timestamp_types: npt.NDArray[np.int32]
    headers: Any
    ranges: npt.NDArray[np.int32]
    named_headers: Mapping[str, Any] = field(default_factory=dict)


def decode_batches(
    data: bytes | bytearray | memoryview,
    *,
    start_offset: int,
    end_offset: int,
    aborted: Iterable[tuple[int, int]] | None,
    include_headers: bool = False,
) -> DecodedColumns:
    """Decode all wanted records of one `FetchedRange`, whose fields the arguments are.

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
        ranges=np.concatenate([group.ranges for group in groups]),
    )


def iter_decoded(
    ranges: Sequence[FetchedRange],
    header_names: Sequence[str] = (),
    include_headers: bool = False,
    *,
    group_bytes_max: int = GROUP_BYTES_MAX,
) -> Iterator[DecodedColumns]:
    """The wanted records of these ranges, a group of batches at a time: memory stays bounded.

    Yields at least one group, with the `named_headers` of `header_names`. Raises CorruptRange.
    """
    wanted_headers = (include_headers, header_names)
    group = _Group()
    for index, wanted in enumerate(ranges):
        source, first = _whole_of(wanted.data)
        for position, size_bytes, plain in _plain_batches(index, wanted):
            if group.parts and group.size_bytes + size_bytes > group_bytes_max:
                yield _decode_group(group.parts, ranges, wanted_headers)
                group = _Group()
            group.add(index, source, first + position, size_bytes, plain)
    yield _decode_group(group.parts, ranges, wanted_headers)


@dataclass(slots=True)
class _Part:
    """Batches of one range: their headers are in `source` at `positions`, and so are their records,
    unless they are those of one batch that were decompressed to `plain`."""

    range_index: int
    source: bytes | bytearray
    positions: list[int]
    plain: bytes | None

    def headers(self) -> Any:
        """The batches' headers, as an array of HEADER_COLUMNS."""
        places = (len(self.source) - HEADER_BYTES + 1,)
        return np.ndarray(places, HEADER_COLUMNS, self.source, 0, (1,))[self.positions]

    def bounds(self, headers: Any) -> tuple[bytes | bytearray, Int64Array, Int64Array]:
        """Return the buffer with the records, and the ends of each batch's records in it."""
        if self.plain is not None:
            return self.plain, np.array([0]), np.array([len(self.plain)])
        positions = np.array(self.positions)
        return self.source, positions + HEADER_BYTES, positions + LENGTH_END + headers["length"]


@dataclass(slots=True)
class _Group:
    """Batches to be decoded together."""

    parts: list[_Part] = field(default_factory=list)
    size_bytes: int = 0

    def add(
        self,
        range_index: int,
        source: bytes | bytearray,
        position: int,
        size_bytes: int,
        plain: bytes | None,
    ) -> None:
        """A batch whose header is at `position` of `source`."""
        self.size_bytes += size_bytes
        last = self.parts[-1] if self.parts and plain is None else None
        if last is not None and last.range_index == range_index and last.plain is None:
            last.positions.append(position)
        else:
            self.parts.append(_Part(range_index, source, [position], plain))


def _plain_batches(index: int, wanted: FetchedRange) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield for each visible batch its position, the size of its records without compression, and
    the decompressed records if they were compressed."""
    try:
        for header, position in _visible_batches(wanted):
            if not header.attributes & COMPRESSION_MASK:
                yield position, header.size_bytes - HEADER_BYTES, None
            else:
                end = position + header.size_bytes
                body = memoryview(wanted.data)[position + HEADER_BYTES : end]
                plain = decompress(header.compression, body)
                yield position, len(plain), plain
    except CorruptBatch as error:
        raise CorruptRange(index, str(error)) from error


def _whole_of(data: bytes | bytearray | memoryview) -> tuple[bytes | bytearray, int]:
    """Return the buffer that a view is a part of, and the position in it; copy a small part."""
    if not isinstance(data, memoryview):
        return data, 0
    whole = data.obj
    if not isinstance(whole, bytes | bytearray) or len(whole) > WHOLE_FACTOR * len(data):
        return bytes(data), 0
    return whole, _address(data) - _address(whole)


def _address(data: bytes | bytearray | memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


def _visible_batches(wanted: FetchedRange) -> Iterator[tuple[BatchHeader, int]]:
    """Checked data batches that overlap the range, and their positions."""
    data = wanted.data
    tracker = None if wanted.aborted is None else _AbortedProducers(wanted.aborted)
    for header, position in iter_batches(data):
        if header.base_offset >= wanted.end_offset:
            return
        check_crc(data, position, header)
        hidden = tracker is not None and tracker.hides(data, position, header)
        if not hidden and not header.is_control and header.last_offset >= wanted.start_offset:
            yield header, position


class _AbortedProducers:
    """Producers that are inside an aborted transaction, batch after batch."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._waiting = [(first_offset, producer_id) for producer_id, first_offset in aborted]
        heapq.heapify(self._waiting)
        self._active: set[int] = set()

    def hides(
        self, data: bytes | bytearray | memoryview, position: int, header: BatchHeader
    ) -> bool:
        """Return True if the batch belongs to an aborted transaction (Kafka's `isBatchAborted`)."""
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
    parts: Sequence[_Part],
    ranges: Sequence[FetchedRange],
    wanted_headers: tuple[bool, Sequence[str]],
) -> DecodedColumns:
    try:
        return _decode_columns(_lay_out_parts(parts), ranges, *wanted_headers)
    except (IndexError, ValueError, CorruptBatch, pa.ArrowInvalid) as error:
        by_range: dict[int, list[_Part]] = {}
        for part in parts:
            by_range.setdefault(part.range_index, []).append(part)
        for some in by_range.values() if len(by_range) > 1 else ():
            _decode_group(some, ranges, wanted_headers)
        first = int(parts[0].headers()["base_offset"][0])
        text = f"records of the batches from {first} on: {error}"
        raise CorruptRange(parts[0].range_index, text) from error


@dataclass(frozen=True, slots=True)
class _Layout:
    """Batches in one buffer: their headers, how many records each has, the positions of all these
    records in `data`, and the range of each batch."""

    data: bytes | bytearray
    headers: Any
    counts: Int64Array
    positions: Int64Array
    range_indexes: npt.NDArray[np.int32]

    def by_record(self, field_name: str) -> Int64Array:
        """A field of the headers, for each record."""
        return np.repeat(self.headers[field_name].astype(np.int64), self.counts)


def _lay_out_parts(parts: Sequence[_Part]) -> _Layout:
    """Plain batches are read where they are, in the answer; what was decompressed is joined, and
    what comes from several answers, or from one that has partitions in another order."""
    each_headers = [part.headers() for part in parts]
    bounds = [part.bounds(some) for part, some in zip(parts, each_headers, strict=True)]
    data: bytes | bytearray = bounds[0][0] if bounds else b""
    if not all(a[0] is b[0] and a[2][-1] <= b[1][0] for a, b in itertools.pairwise(bounds)):
        pieces: list[memoryview] = []
        size_bytes = 0
        for source, starts, ends in bounds:
            pieces.append(memoryview(source)[starts[0] : ends[-1]])
            shift = size_bytes - starts[0]
            starts += shift
            ends += shift
            size_bytes += len(pieces[-1])
        data = b"".join(pieces)
    none = np.empty(0, np.int64)
    starts = np.concatenate([none, *(starts for _, starts, _ in bounds)])
    ends = np.concatenate([none, *(ends for _, _, ends in bounds)])
    headers = np.concatenate([np.empty(0, HEADER_COLUMNS), *each_headers])
    counts = headers["record_count"].astype(np.int64)
    sizes = ends - starts
    _refuse(headers, sizes, (counts < 0) | (counts > sizes // RECORD_BYTES_MIN), "do not fit")
    positions, found = walk_records(data, starts, ends, counts)
    _refuse(headers, sizes, found == PAST_THE_END, "go beyond them")
    _refuse(headers, sizes, found != ends, "do not end with them")
    ranges = np.array([part.range_index for part in parts], np.int32)
    of_batches = np.repeat(ranges, [len(part.positions) for part in parts])
    return _Layout(data, headers, counts, positions, of_batches)


def _refuse(headers: Any, sizes: Int64Array, are_torn: BoolArray, what: str) -> None:
    """Raise CorruptBatch for the first torn batch."""
    for index in np.flatnonzero(are_torn)[:1]:
        raise CorruptBatch(
            f"the batch at {headers['base_offset'][index]} has {sizes[index]} bytes of records, "
            f"its {headers['record_count'][index]} records {what}"
        )


def _decode_columns(
    layout: _Layout,
    ranges: Sequence[FetchedRange],
    include_headers: bool,
    header_names: Sequence[str],
) -> DecodedColumns:
    body = layout.data
    data = np.frombuffer(body, np.uint8)
    lengths, starts = read_varints(data, layout.positions)
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
    check_within(key_starts, key_ends, ends)
    check_within(value_starts, value_ends, ends)
    check_within(header_starts, header_starts, ends)
    if bool(((header_counts == 0) & (header_starts != ends)).any()):
        raise ValueError("bytes are left after the last field of a record")
    offsets, timestamps, types = _absolute(layout, offset_deltas, time_deltas)
    keep = _kept(layout, ranges, offsets)
    # Headers are read where the bytes of a name occur in them at all.
    names = names_within(body, header_names, header_starts, ends) if header_names else []
    headers = None
    if include_headers or names:
        headers = decode_headers(body, header_counts[keep], header_starts[keep], ends[keep])
    return DecodedColumns(
        keys=cut_out_fields(body, key_starts[keep], key_ends[keep], key_lengths[keep] < 0),
        values=cut_out_fields(body, value_starts[keep], value_ends[keep], value_lengths[keep] < 0),
        offsets=offsets[keep],
        timestamps=timestamps[keep],
        timestamp_types=types[keep],
        headers=headers if include_headers else None,
        named_headers={
            name: contents
            for name in names
            if (contents := last_contents(headers, name)) is not None
        },
        ranges=np.repeat(layout.range_indexes, layout.counts)[keep],
    )


def _kept(
    layout: _Layout, ranges: Sequence[FetchedRange], offsets: Int64Array
) -> BoolArray | slice:
    """Return a mask of the records in their range, or a slice of all of them."""
    first = np.array([each.start_offset for each in ranges], np.int64)[layout.range_indexes]
    end = np.array([each.end_offset for each in ranges], np.int64)[layout.range_indexes]
    base = layout.headers["base_offset"]
    if bool(((first <= base) & (base + layout.headers["last_offset_delta"] < end)).all()):
        return slice(None)
    kept: BoolArray = offsets >= np.repeat(first, layout.counts)
    kept &= offsets < np.repeat(end, layout.counts)
    return kept


def _absolute(
    layout: _Layout, offset_deltas: Int64Array, time_deltas: Int64Array
) -> tuple[Int64Array, Int64Array, npt.NDArray[np.int32]]:
    """Offsets, timestamps and timestamp types from the deltas and the batches' headers."""
    last_deltas = layout.by_record("last_offset_delta")
    if bool(((offset_deltas < 0) | (offset_deltas > last_deltas)).any()):
        raise ValueError("an offset delta is outside its batch")
    timestamps = layout.by_record("base_timestamp") + time_deltas
    appended = layout.by_record("attributes") & TIMESTAMP_TYPE_MASK != 0
    if bool(appended.any()):
        timestamps = np.where(appended, layout.by_record("max_timestamp"), timestamps)
    types = np.where(appended, np.int32(LOG_APPEND_TIME), np.int32(CREATE_TIME))
    return layout.by_record("base_offset") + offset_deltas, timestamps, types
