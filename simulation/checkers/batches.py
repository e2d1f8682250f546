"""Record batches as the simulator's witnesses see them: each is decoded once, however often read.

Equal bytes are equal batches to all readers: the readers and the log oracle share the decoded
values and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from txnlog_kafka.wire.records import (
    BatchHeader,
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


@lru_cache(maxsize=BATCHES_KEPT)
def _decode(data: bytes) -> Batch:
    ((header, at),) = iter_batches(data)
    check_crc(data, at, header)
    if header.is_control:
        return Batch(header, (), decode_marker(data, at, header))
    return Batch(header, tuple(decode_records(data, at, header)), None)
