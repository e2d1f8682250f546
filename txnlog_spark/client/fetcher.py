"""Signatures first; see the commit that follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """One Fetch answer of one partition.

    `data` holds whole RecordBatches (the last may be torn; decoders ignore a torn tail) from which
    everything below the requested offset still has to be clipped; `aborted` lists (producer id,
    first offset) of the aborted transactions that reach into it, None under read_uncommitted.
    """

    data: bytes | memoryview
    aborted: list[tuple[int, int]] | None
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


def fetch_range(
    client: object,
    topic: str,
    partition: int,
    *,
    start_offset: int,
    end_offset: int,
    read_committed: bool = True,
    max_bytes: int = 8 * 1024 * 1024,
) -> Iterator[FetchedBatches]:
    """All batches that hold offsets in [start_offset, end_offset), in order.

    Raises OffsetOutOfRange, CorruptData, UnknownTopic, DeadlineExceeded.
    """
    raise NotImplementedError
