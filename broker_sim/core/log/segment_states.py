"""State of a partition's segments up to a flushed offset, in a file next to them.

`segment-state-checkpoint` is ours, not Kafka's: Kafka reads the last index entries at a clean start
and a whole segment after an unclean start. The file is written when the log was just flushed. It
records for each segment how far it was written, and the content of its indexes then.

So a start reads no log byte below the recovery point. An index that was lost, truncated or changed
is noticed by its length and its CRC. That matters most for the transaction index: without it,
aborted data would be taken for committed, and no file of Kafka says that it should exist.

Text: a version line `0`, a line with the CRC-32C of all that follows, the count of leader epochs, a
line `<epoch> <start offset>` for each, then a line of numbers for each segment, in the order of the
fields of `SegmentState`. If the file is damaged, the log files are read from their first byte: they
alone are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from crc32c_rs import crc32c

FILE_NAME = "segment-state-checkpoint"
_VERSION = b"0"


class SegmentState(NamedTuple):
    """State of a segment up to `next_offset` (exclusive), which lies at `log_bytes` of its file."""

    base_offset: int
    next_offset: int
    log_bytes: int
    first_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    index_count: int
    """Entries of the offset index, then the CRC-32C of their bytes, and the last position."""
    index_crc: int
    index_last_position: int
    time_count: int
    time_crc: int
    time_last_timestamp: int
    time_last_offset: int
    aborted_count: int
    aborted_crc: int
    damaged: int
    """1 when batches are missing at its end, else 0."""


def encode_states(epochs: Sequence[tuple[int, int]], states: Sequence[SegmentState]) -> bytes:
    """The whole file."""
    rows: list[tuple[int, ...]] = [(len(epochs),), *epochs, *states]
    body = "".join(" ".join(map(str, row)) + "\n" for row in rows).encode()
    return b"%s\n%08x\n%s" % (_VERSION, crc32c(body), body)


def decode_states(data: bytes) -> tuple[list[tuple[int, int]], dict[int, SegmentState]] | None:
    """(leader epochs, states by base offset); None for bytes that are not a whole, good file."""
    version, _, rest = data.partition(b"\n")
    crc, _, body = rest.partition(b"\n")
    if version != _VERSION or crc != b"%08x" % crc32c(body):
        return None
    count_line, *lines = body.decode().splitlines()
    rows = [tuple(map(int, line.split(" "))) for line in lines]
    count = int(count_line)
    epochs = [(epoch, start) for epoch, start in rows[:count]]
    return epochs, {row[0]: SegmentState(*row) for row in rows[count:]}
