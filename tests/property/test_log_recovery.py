"""A crash anywhere leaves a log that is a prefix of what was appended, with its state rebuilt."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.models.listed_log import ListedLog, Model, check_equal

from broker_sim.core.effects import Append


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 25))
def test_a_tail_torn_at_any_byte_is_cut_and_the_state_is_that_before(seed, count):
    log = ListedLog(random.Random(seed))
    for _ in range(count):
        log.act()
    untouched, before, done = copy.deepcopy(log.disk), log.model.copy(), len(log.operations)
    log.append()
    operations = log.operations[done:]
    appends = [op for op in operations if isinstance(op, Append) and op.data]
    path, position, data = next(
        (op.path, op.position, op.data) for op in appends if op.path.endswith(".log")
    )
    for kept in range(len(data)):
        disk = copy.deepcopy(untouched)
        for operation in operations:
            if isinstance(operation, Append) and operation.path == path:
                operation = Append(path, operation.position, operation.data[:kept])
            disk.apply(operation)
        survivor = log.twin(disk, before)
        survivor.start(disk, clean=False, recovery_point=log.points[0])
        check_equal(survivor, survivor.model)
        assert disk.size_bytes(path) == position


@pytest.mark.invariant(3, 68)
@example(2**32, 30, False)
@settings(max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 30), st.booleans())
def test_a_crash_between_any_two_operations_leaves_a_state_that_was(seed, count, power):
    rng = random.Random(seed)
    log = ListedLog(rng)
    log.restarts = ("clean", "kill")
    known = [(len(log.operations), 0, 0, len(log.points))]
    """After each act: operations, log start, what of the log was flushed, recovery points."""
    for _ in range(count):
        log.act()
        flushed = known[-1][2] if log.log.flush_paths() else log.log.log_end_offset
        known.append((len(log.operations), log.model.start, flushed, len(log.points)))
    cut = rng.randint(known[0][0], len(log.operations))
    disk = type(log.disk)()
    for operation in log.operations[:cut]:
        disk.apply(operation)
    if power:
        disk.lose_power(rng)
    _, start, flushed, points = [each for each in known if each[0] <= cut][-1]
    survivor = log.twin(disk, log.model)
    survivor.model.start = start
    # The file of recovery points is written after what it tells of; it may be older, or lost.
    point = rng.choice(log.points[:points])
    survivor.start(disk, clean=False, recovery_point=point)
    end = survivor.log.log_end_offset
    assert end >= flushed
    batches = [batch for batch in log.model.batches if batch.end <= end]
    assert start <= survivor.log.log_start_offset <= log.model.start
    survivor.model = Model(batches, survivor.log.log_start_offset, end)
    check_equal(survivor, survivor.model)
    survivor.restart_as("kill")
    check_equal(survivor, survivor.model)
