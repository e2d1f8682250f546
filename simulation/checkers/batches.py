"""Record batches as the simulator's witnesses see them: each is decoded once, however often read.

Equal bytes are equal batches to all readers: the readers and the log oracle share the decoded
values and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from txnlog_kafka.wire.records import (
    BatchHeader,
    MarkerType,
    Record,
    TransactionMarker,
    check_crc,
    decode_marker,
    decode_records,
    iter_batches,
)

BATCHES_KEPT = 4096


class Batch(NamedTuple):
    """A batch whose CRC is right."""

    header: BatchHeader
    records: tuple[Record, ...]
    """() of a control batch."""
    marker: TransactionMarker | None


def decode_batches(data: bytes) -> Iterator[Batch]:
    """The whole batches in `data`; a torn last one ends the walk. Raises CorruptBatch."""
    for header, at in iter_batches(data):
        yield _decode(data[at : at + header.size_bytes])


def with_hidden(data: bytes, aborted: Iterable[Any]) -> Iterator[tuple[Batch, bool]]:
    """Each batch of a Fetch answer; True if a reader of committed records skips it as aborted.

    `aborted` are the answer's aborted transactions. Raises CorruptBatch.
    """
    waiting = sorted(((each.first_offset, each.producer_id) for each in aborted), reverse=True)
    hidden: set[int] = set()
    for batch in decode_batches(data):
        header, marker = batch.header, batch.marker
        while waiting and waiting[-1][0] <= header.last_offset:
            hidden.add(waiting.pop()[1])
        if header.is_control and marker is not None and marker.marker_type is MarkerType.ABORT:
            hidden.discard(header.producer_id)
        yield batch, header.is_transactional and header.producer_id in hidden


@lru_cache(maxsize=BATCHES_KEPT)
def _decode(data: bytes) -> Batch:
    ((header, at),) = iter_batches(data)
    check_crc(data, at, header)
    if header.is_control:
        return Batch(header, (), decode_marker(data, at, header))
    return Batch(header, tuple(decode_records(data, at, header)), None)
