"""A crash anywhere leaves a log that is a prefix of what was appended, with its state rebuilt."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.core.log_build import NOW_MS, SMALL, LogOnDisk, build_batch

from broker_sim.core.effects import Append, Effects, Truncate
from broker_sim.core.log import AppendOrigin, LogConfig, PartitionLog
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.records import MarkerType, TransactionMarker, iter_batches

_CLIENT = AppendOrigin.CLIENT
PRODUCERS = (7, 8)
RETAINED = LogConfig(segment_bytes=500, index_interval_bytes=100, retention_bytes=1200)


@dataclass(frozen=True)
class _State:
    """All that must be the same in another life of the broker, but for the log start offset."""

    end: int
    last_stable_offset: int
    producers: tuple
    aborted: tuple
    data: bytes


def state_of(log: PartitionLog, disk: SimDisk, start_offset: int) -> _State:
    read = log.read(start_offset, max_bytes=1 << 30, read_committed=False, at_least_one_batch=True)
    committed = log.read(
        start_offset, max_bytes=1 << 30, read_committed=True, at_least_one_batch=True
    )
    return _State(
        log.log_end_offset,
        log.last_stable_offset,
        log.producers(),
        committed.aborted or (),
        b"".join(disk.read(s.path, s.position, s.length) for s in read.slices),
    )


class _Writer:
    """Draws steps from a seed and records the operations of each and the state after it."""

    def __init__(self, config: LogConfig, rng: random.Random) -> None:
        self.on_disk = LogOnDisk(config)
        self.rng = rng
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.steps: list[list] = []
        self.made = 0

    def step(self) -> Effects:
        effects = self.on_disk.effects()
        self._act(effects)
        self.on_disk.carry_out(effects)
        self.steps.append(effects.storage)
        return effects

    def _act(self, effects: Effects) -> None:
        log, rng = self.on_disk.log, self.rng
        producer_id = rng.choice(PRODUCERS)
        roll = rng.random()
        if roll < 0.65:
            log.append_as_leader(self.batch(producer_id), origin=_CLIENT, effects=effects)
        elif roll < 0.9:
            marker = TransactionMarker(producer_id, 0, rng.choice(list(MarkerType)), 0)
            log.append_marker(marker, effects=effects)
        elif roll < 0.93:
            log.flush(effects)
        elif roll < 0.96:
            log.flush(effects)
            log.checkpoint(effects)
        else:
            log.apply_retention(effects)

    def batch(self, producer_id: int) -> bytes:
        count = self.rng.randint(1, 3)
        self.made += count
        values = [f"v{self.made}-{i}" * self.rng.randint(1, 5) for i in range(count)]
        producer = (producer_id, 0, self.sequences[producer_id])
        self.sequences[producer_id] += count
        return build_batch(*values, producer=producer, transactional=True)


def started_on(disk: SimDisk, recovery_point: int) -> PartitionLog:
    """Another broker on these files."""
    other = LogOnDisk.__new__(LogOnDisk)
    other.config, other.disk, other.now_ms = RETAINED, disk, NOW_MS
    return other.load(clean=False, recovery_point=recovery_point)


def copy_disk(disk: SimDisk) -> SimDisk:
    """The files as a killed process leaves them."""
    return copy.deepcopy(disk)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25))
def test_a_tail_torn_at_any_byte_is_cut_and_the_state_is_that_before(seed, count):
    writer = _Writer(SMALL, random.Random(seed))
    for _ in range(count):
        writer.step()
    before = state_of(writer.on_disk.log, writer.on_disk.disk, 0)
    untouched = copy_disk(writer.on_disk.disk)
    end_before = writer.on_disk.log.log_end_offset
    effects = writer.on_disk.effects()
    writer.on_disk.log.append_as_leader(writer.batch(7), origin=_CLIENT, effects=effects)
    appends = [op for op in effects.storage if isinstance(op, Append) and op.data]
    path, position, data = next(
        (op.path, op.position, op.data) for op in appends if op.path.endswith(".log")
    )
    for kept in range(len(data)):
        disk = copy_disk(untouched)
        for operation in effects.storage:
            if isinstance(operation, Append) and operation.path == path:
                operation = Append(path, operation.position, operation.data[:kept])
            disk.apply(operation)
        survivor = LogOnDisk(SMALL, disk=disk)
        assert state_of(survivor.log, disk, 0) == before
        assert disk.size_bytes(path) == position
        assert survivor.log.log_end_offset == end_before


@pytest.mark.invariant(3, 68)
@example(2**32, 30, False)
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.booleans())
def test_a_crash_between_any_two_operations_leaves_a_state_that_was(seed, count, power):
    rng = random.Random(seed)
    writer = _Writer(RETAINED, rng)
    log, base = writer.on_disk.log, copy_disk(writer.on_disk.disk)
    states = {0: (0, ())}
    durable = {0: 0}
    points = {0: 0}
    operations = []
    for _ in range(count):
        writer.step()
        operations += writer.steps[-1]
        points[len(operations)] = log.recovery_point
        # Retention raises the LSO with the log start and leaves the end: what was before counts.
        states.setdefault(log.log_end_offset, (log.last_stable_offset, log.producers()))
        if not log.flush_paths():
            durable[len(operations)] = log.log_end_offset
    cut = rng.randint(0, len(operations))
    for operation in operations[:cut]:
        base.apply(operation)
    if power:
        base.lose_power(rng)
    # The file of recovery points is written after what it tells of; it may be older, or lost.
    point = rng.choice([point for at, point in points.items() if at <= cut])
    survivor = started_on(base, point)
    last_stable_offset, producers = states[survivor.log_end_offset]
    start = survivor.log_start_offset
    assert survivor.producers() == producers
    assert survivor.last_stable_offset == max(last_stable_offset, start)
    assert survivor.log_end_offset >= max(e for at, e in durable.items() if at <= cut)
    again = LogOnDisk(RETAINED, disk=copy_disk(base))
    assert state_of(again.log, again.disk, start) == state_of(survivor, base, start)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 15))
def test_a_flipped_bit_in_the_last_segment_is_never_served(seed, count):
    rng = random.Random(seed)
    writer = _Writer(LogConfig(index_interval_bytes=100), rng)
    for _ in range(count):
        writer.step()
    disk = writer.on_disk.disk
    path = "t-0/00000000000000000000.log"
    size_bytes = disk.size_bytes(path) or 0
    if not size_bytes:
        return
    good = disk.read(path, 0, size_bytes)
    at = rng.randrange(size_bytes)
    bad = bytearray(good)
    bad[at] ^= 1 << rng.randrange(8)
    disk.apply(Truncate(path, 0))
    disk.apply(Append(path, 0, bytes(bad)))
    survivor = LogOnDisk(LogConfig(), disk=disk)
    served = state_of(survivor.log, disk, 0).data
    # The leader epoch and the base offset are outside the CRC: all else must be as it was.
    assert len(served) <= size_bytes
    if len(served) > at:
        header_at = _batch_start(good, at)
        assert at - header_at in range(16)
    else:
        assert served == good[: len(served)]


def _batch_start(data: bytes, at: int) -> int:
    return max(position for _, position in iter_batches(data) if position <= at)
