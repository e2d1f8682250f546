"""A log on disk, damaged on purpose, and what a reader may then be given of it."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass

from support.core.log_build import NOW_MS, SMALL, LogOnDisk, deliver

from broker_sim.core.effects import Append, Truncate
from broker_sim.core.log import LogConfig, PartitionLog
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import CorruptBatch, iter_batches

BASE_OFFSET_BYTES = range(8)


def filled(config: LogConfig = SMALL, *, tail: int = 4) -> LogOnDisk:
    """Several segments: a plain, an aborting, a committing producer, a transaction left open.

    Everything but the last `tail` appends is below the recovery point.
    """
    on_disk = LogOnDisk(config)
    steps = 24
    for i in range(steps + tail):
        on_disk.now_ms = NOW_MS + 10 * i
        if i == steps:
            effects = on_disk.effects()
            on_disk.log.flush(effects)
            on_disk.log.checkpoint(effects)
            on_disk.carry_out(effects)
        if i == 12:
            on_disk.log.become_leader(3)
        kind = i % 4
        if kind == 0:
            on_disk.produce(f"plain {i}", "second", producer=(7, 0, i // 4 * 2))
        elif kind == 1:
            on_disk.produce(f"aborted {i}" * 3, producer=(8, i // 4, 0), transactional=True)
        elif kind == 2:
            on_disk.produce(f"committed {i}", producer=(9, i // 4, 0), transactional=True)
        else:
            on_disk.mark(8, i // 4, "abort")
            on_disk.mark(9, i // 4, "commit")
    on_disk.produce("open", producer=(5, 1, 0), transactional=True)
    return on_disk


def copied(on_disk: LogOnDisk) -> LogOnDisk:
    other = LogOnDisk.__new__(LogOnDisk)
    other.__dict__.update(on_disk.__dict__)
    other.disk = copy.deepcopy(on_disk.disk)
    return other


def replace(disk: SimDisk, path: str, data: bytes) -> None:
    disk.apply(Truncate(path, 0))
    disk.apply(Append(path, 0, data))


def flip(disk: SimDisk, path: str, bit: int) -> None:
    data = bytearray(disk.read(path, 0, disk.size_bytes(path) or 0))
    data[bit // 8] ^= 1 << bit % 8
    replace(disk, path, bytes(data))


def bits_of(disk: SimDisk, path: str, count: int) -> Iterator[int]:
    """Draw `count` bits of the file; all bits if there are no more."""
    total = 8 * (disk.size_bytes(path) or 0)
    if total <= count:
        return iter(range(total))
    return iter(sorted(random.Random(0).sample(range(total), count)))


def batch_at(data: bytes, position: int) -> int:
    return max(at for _, at in iter_batches(data) if at <= position)


@dataclass(frozen=True)
class Truth:
    """Facts that a log reports about itself, before the damage."""

    offsets: tuple[int, int, int]
    producers: tuple
    records: dict[tuple[bool, int], list[tuple[int, str]]]
    times: list
    epochs: list


def truth_of(on_disk: LogOnDisk, *, fully: bool = False) -> Truth:
    """Everything that can be asked of it; `fully` from each offset on."""
    log = on_disk.log
    records = {
        (committed, start): on_disk.consume(start, committed=committed, max_bytes=400)
        for committed in (False, True)
        for start in range(log.log_start_offset, log.log_end_offset + 1, 1 if fully else 7)
    }
    return Truth(
        (log.log_start_offset, log.log_end_offset, log.last_stable_offset),
        log.producers(),
        records,
        [log.offset_for_timestamp(NOW_MS + at) for at in range(0, 300, 25)],
        [log.end_offset_for_epoch(epoch) for epoch in range(5)],
    )


def consume_until_damage(
    on_disk: LogOnDisk, start: int, *, committed: bool, max_bytes: int = 400
) -> list[tuple[int, str]]:
    """Return the records that a client gets until the broker, or a batch's own CRC, reports
    damage."""
    found: list[tuple[int, str]] = []
    position = start
    while True:
        read = on_disk.read(position, committed=committed, max_bytes=max_bytes)
        if read.error is not ErrorCode.NONE:
            assert read.error in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.OFFSET_OUT_OF_RANGE)
            return found
        data = on_disk.data_of(read)
        if not data:
            return found
        before = position
        try:
            for header, values in deliver(data, read):
                found += [(offset, value) for offset, value in values if offset >= position]
                position = header.next_offset
        except CorruptBatch:
            return found
        if position <= before:
            return found


def load(on_disk: LogOnDisk, *, clean: bool) -> PartitionLog:
    """Start on the damaged files; the leader's epoch is known from the metadata."""
    return on_disk.load(clean=clean, leader_epoch_max=3)
