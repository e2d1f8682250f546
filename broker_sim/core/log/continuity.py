"""Batches that follow one another: what recovery takes for the log, and a read for its answer.

Base offset and leader epoch of a batch lie outside its CRC, because the leader sets them. So they
are compared with the neighbours: offsets follow without a gap, where nothing was compacted, and
above the log start epochs never fall. What a follower has below it can be of a leader whose records
are lost (two unclean elections), and what comes next of an epoch before that one. Where two
neighbours disagree and the first is as doubtful as the second, the log ends before both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from broker_sim.core.effects import Storage
from broker_sim.core.log.scan import scan_batches
from txnlog_kafka.wire.records import NO_LEADER_EPOCH, BatchHeader, CorruptBatch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Rules that the batches of a stretch of a log file must keep."""

    next_offset: int
    """The first one's base offset."""
    end_offset: int
    """Exclusive: no batch reaches over it."""
    may_skip_offsets: bool
    """Compaction may have left gaps."""
    leader_epoch_min: int
    leader_epoch_max: int
    log_start_offset: int = 0
    """Start of the log: after a batch below it, the leader epoch may fall."""


def whole_batches(
    storage: Storage, path: str, start: int, end: int, rules: BatchRules
) -> Iterator[tuple[BatchHeader, bytes]]:
    """Batches of the file in [start, end). Raises CorruptBatch at the first that breaks a rule."""
    return followed(_judged(storage, path, start, end, rules))


def followed(judged: Iterator[tuple[T, str | None, bool]]) -> Iterator[T]:
    """Each batch once the next one is seen to follow it, or there is none.

    `judged` gives a batch, what about it cannot be (None: all can), and whether it is doubtful:
    when the next one does not follow it, then as likely this one is wrong, and it is not given.
    Raises CorruptBatch for the first that cannot be, after those before it; so too when `judged`
    raises it.
    """
    waiting: T | None = None
    was_doubtful = False
    try:
        for batch, fault, is_doubtful in judged:
            if fault is not None:
                waiting = None if was_doubtful else waiting
                raise CorruptBatch(fault)
            if waiting is not None:
                yield waiting
            waiting, was_doubtful = batch, is_doubtful
    except CorruptBatch:
        if waiting is not None:
            yield waiting
        raise
    if waiting is not None:
        yield waiting


def _judged(
    storage: Storage, path: str, start: int, end: int, rules: BatchRules
) -> Iterator[tuple[tuple[BatchHeader, bytes], str | None, bool]]:
    wanted, leader_epoch = rules.next_offset, rules.leader_epoch_min
    for header, position, batch in scan_batches(storage, path, start, end):
        lowest = leader_epoch if wanted > rules.log_start_offset else NO_LEADER_EPOCH
        fault = _fault(header, wanted, lowest, rules)
        if fault is not None:
            fault = f"{path}: the batch at position {position} has {fault}"
        is_doubtful = header.base_offset > wanted or header.leader_epoch > leader_epoch
        yield (header, batch), fault, is_doubtful
        wanted, leader_epoch = header.next_offset, max(lowest, header.leader_epoch)


def _fault(header: BatchHeader, wanted: int, leader_epoch: int, rules: BatchRules) -> str | None:
    """Return the reason why the batch cannot be part of this log, None if it can.

    A batch outside the expected offsets or epochs was left by an earlier life of the file.
    """
    base_offset, epoch = header.base_offset, header.leader_epoch
    if base_offset < wanted or (base_offset > wanted and not rules.may_skip_offsets):
        return f"base offset {base_offset}, expected {wanted}"
    if header.next_offset > rules.end_offset:
        return f"last offset {header.last_offset}, expected one below {rules.end_offset}"
    if epoch != NO_LEADER_EPOCH and not leader_epoch <= epoch <= rules.leader_epoch_max:
        return f"leader epoch {epoch}, expected {leader_epoch} to {rules.leader_epoch_max}"
    return None
