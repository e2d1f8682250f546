"""Whole batches that follow one another: what recovery takes for the log.

Base offset and leader epoch of a batch lie outside its CRC, because the leader sets them. So they
are compared with the neighbours: offsets follow without a gap, where nothing was compacted, and
epochs never fall. Where two neighbours disagree and the first is as doubtful as the second, the log
ends before both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from broker_sim.core.effects import Storage
from broker_sim.core.log.scan import scan_batches
from txnlog_spark.wire.records import NO_LEADER_EPOCH, BatchHeader, CorruptBatch


@dataclass(frozen=True, slots=True)
class BatchRules:
    """What the batches of one stretch of a log file must keep to."""

    next_offset: int
    """The first one's base offset."""
    end_offset: int
    """Exclusive: no batch reaches over it."""
    may_skip_offsets: bool
    """Compaction may have left gaps."""
    leader_epoch_min: int
    leader_epoch_max: int


def whole_batches(
    storage: Storage, path: str, start: int, end: int, rules: BatchRules
) -> Iterator[tuple[BatchHeader, bytes]]:
    """Batches of the file in [start, end). Raises CorruptBatch at the first that breaks a rule."""
    waiting: tuple[BatchHeader, bytes] | None = None
    wanted, leader_epoch, is_doubtful = rules.next_offset, rules.leader_epoch_min, False
    try:
        for header, position, batch in scan_batches(storage, path, start, end):
            fault = _fault(header, wanted, leader_epoch, rules)
            if fault is not None:
                waiting = None if is_doubtful else waiting
                raise CorruptBatch(f"{path}: the batch at position {position} has {fault}")
            if waiting is not None:
                yield waiting
            is_doubtful = header.base_offset > wanted or header.leader_epoch > leader_epoch
            waiting, wanted = (header, batch), header.next_offset
            leader_epoch = max(leader_epoch, header.leader_epoch)
    except CorruptBatch:
        if waiting is not None:
            yield waiting
        raise
    if waiting is not None:
        yield waiting


def _fault(header: BatchHeader, wanted: int, leader_epoch: int, rules: BatchRules) -> str | None:
    """What of it cannot be, None when all can.

    A batch that lies outside was left by an earlier life of the file: it is no part of this log.
    """
    base_offset, epoch = header.base_offset, header.leader_epoch
    if base_offset < wanted or (base_offset > wanted and not rules.may_skip_offsets):
        return f"base offset {base_offset}, expected {wanted}"
    if header.next_offset > rules.end_offset:
        return f"last offset {header.last_offset}, expected one below {rules.end_offset}"
    if epoch != NO_LEADER_EPOCH and not leader_epoch <= epoch <= rules.leader_epoch_max:
        return f"leader epoch {epoch}, expected {leader_epoch} to {rules.leader_epoch_max}"
    return None
