"""Positions of the records of batches. A record says only its own length, so that each record leads
to the next.

If there are many batches, the walk takes the first record of all batches together, then the second
records, and so on. If there are few, it is a loop over records, the only loop in Python on a read's
way. That loop is measured: a table has the size of a record by the first two bytes of its length.
"""

from __future__ import annotations

import itertools

import numpy as np

from txnlog_kafka.wire.varint import MalformedVarint, decode_signed
from txnlog_spark.codec.varints import Int64Array

TOGETHER_MIN = 32
"""Number of batches from which they are walked together; below it the loop is as fast."""

PAST_THE_END = -1


def _sizes_by_both() -> Int64Array:
    both = np.arange(65_536)
    low, high = both & 0xFF, both >> 8
    longer = np.where(high < 0x80, ((low & 0x7F | high << 7) >> 1) + 2, 0)
    return np.where(low < 0x80, (low >> 1) + 1, longer)


_SIZES_BY_BOTH = _sizes_by_both()
"""A record with its length, by the first two bytes of it (the second one times 256); 0 where the
length takes more than these two."""
_SIZES = [[size or None for size in row] for row in _SIZES_BY_BOTH.reshape(256, 256).T.tolist()]
"""The same by the first byte and then the second one, None for 0."""


def walk_records(
    data: bytes | bytearray, starts: Int64Array, ends: Int64Array, counts: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """The positions of the records' lengths, batch after batch, and where each batch's last ends.

    `starts`, `ends` and `counts` are of the batches: where their records are to be, and how many.
    PAST_THE_END is where the records of a batch go beyond `data`; then, and where it is not in
    `ends`, the batch is corrupt. A negative length counts as 0: the caller sees it again.
    """
    total, most = int(counts.sum()), int(counts.max(initial=0))
    if most and total // most >= TOGETHER_MIN:
        found = _walk_together(data, starts, ends, counts)
        if found is not None:
            return found, ends
    batches = zip(starts.tolist(), counts.tolist(), strict=True)
    walked = [_walk(data, start, count) for start, count in batches]
    flat = itertools.chain.from_iterable(positions for positions, _ in walked)
    count = sum(len(positions) for positions, _ in walked)
    found_ends = np.array([end for _, end in walked], np.int64)
    return np.fromiter(flat, np.int64, count), found_ends


def _walk_together(
    data: bytes | bytearray, starts: Int64Array, ends: Int64Array, counts: Int64Array
) -> Int64Array | None:
    """Walk the batches together. Return None for a record of 8 KiB or more, or a corrupt batch."""
    both = np.ndarray((len(data) - 1,), "<u2", data, 0, (1,))  # of each byte and the next one
    order = np.argsort(-counts, kind="stable")
    at = starts[order]
    place = (np.cumsum(counts) - counts)[order]
    positions = np.empty(int(counts.sum()), np.int64)
    rounds = np.arange(int(counts.max()))
    widths = len(counts) - np.searchsorted(counts[order][::-1], rounds, side="right")
    try:
        for width in widths.tolist():
            here = at[:width]
            positions[place[:width]] = here
            place[:width] += 1
            here += _SIZES_BY_BOTH[both[here]]
    except IndexError:
        return None
    return positions if np.array_equal(at, ends[order]) else None


def _walk(data: bytes | bytearray, position: int, count: int) -> tuple[list[int], int]:
    positions: list[int] = []
    append, sizes = positions.append, _SIZES
    try:
        while len(positions) < count:
            try:
                for _ in range(count - len(positions)):
                    append(position)
                    position += sizes[data[position]][data[position + 1]]  # type: ignore[operator]
            except TypeError:  # a length of three bytes or more has no size there
                length, position = decode_signed(data, position)
                position += max(length, 0)
                if position > len(data):  # before it is too large for an array
                    return positions, PAST_THE_END
    except (IndexError, MalformedVarint):
        position = PAST_THE_END
    return positions, position
