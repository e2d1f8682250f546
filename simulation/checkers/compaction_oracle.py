"""A witness of compaction: a marker goes only when its delete horizon was set before (50).

A reader that has read a transaction and not yet its marker has delete.retention.ms to come to it
(KIP-534).
"""

from __future__ import annotations

from collections.abc import Iterator

from simulation.checkers.batches import decode_batches
from simulation.hosts.disk import SimDisk
from simulation.violation import violated
from txnlog_kafka.wire.records import BatchHeader, CorruptBatch

CLEANED_SUFFIX = ".log.cleaned"
"""Suffix of a segment that is whole, and is about to replace others."""


def check_compaction(disk: SimDisk, path: str) -> None:
    """The segment in this file, whose name was a cleaned one's, stands for others that are still
    there. Raises Violation (50)."""
    directory, _, name = path.rpartition("/")
    made = list(_batches(disk, path))
    if not made:
        return
    kept = {header.base_offset for header, _ in made}
    base_offset, end_offset = int(name.partition(".")[0]), made[-1][0].next_offset
    for other in disk.list(directory):
        if not other.endswith(".log") or not base_offset <= int(other[:-4]) < end_offset:
            continue
        for header, is_marker in _batches(disk, f"{directory}/{other}"):
            if is_marker and header.delete_horizon_ms is None and header.base_offset not in kept:
                violated(50, "a marker was compacted away at once", directory=directory,
                         offset=header.base_offset, producer_id=header.producer_id)  # fmt: skip


def _batches(disk: SimDisk, path: str) -> Iterator[tuple[BatchHeader, bool]]:
    """Up to what is damaged: each header, and whether it is of a marker."""
    try:
        for batch in decode_batches(disk.read(path, 0, disk.size_bytes(path) or 0)):
            yield batch.header, batch.marker is not None
    except CorruptBatch:
        return
