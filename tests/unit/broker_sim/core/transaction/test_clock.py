"""A transaction's timeout runs on the process's own clock; the wall clock matters for loads only.

docs/internals/faults.md L3: a jump of the wall clock neither aborts a young transaction nor keeps
the one of a dead producer open.
"""

from __future__ import annotations

import pytest
from support.core.coordinators import A, B, World

from txnlog_kafka.wire.error_codes import ErrorCode as E

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TIMEOUT_MS = 15_000
SWEEP_MS = 10_000


def open_transaction() -> World:
    """A transaction of one partition, begun now."""
    world = World()
    ids = world.init(timeout_ms=TIMEOUT_MS)
    assert world.begin(ids, A) is E.NONE
    return world


def check_aborted_after(world: World, left_ms: int) -> None:
    """The transaction goes on for so long, and the next sweep aborts it."""
    world.advance(left_ms)
    assert world.state() == "Ongoing"
    world.advance(SWEEP_MS)
    assert world.state() == "CompleteAbort"


@pytest.mark.parametrize("jump_ms", [-DAY_MS, -HOUR_MS, -1, 0, HOUR_MS, DAY_MS])
def test_a_jump_of_the_wall_clock_does_not_move_the_timeout(jump_ms) -> None:
    world = open_transaction()
    world.now_ms += jump_ms
    check_aborted_after(world, TIMEOUT_MS)


def test_a_later_partition_does_not_begin_the_timeout_again() -> None:
    world = open_transaction()
    world.advance(TIMEOUT_MS - 1)
    world.now_ms -= DAY_MS
    assert world.begin(world.transactions.describe("t"), B) is E.NONE
    world.advance(SWEEP_MS)
    assert world.state() == "CompleteAbort"


def test_each_transaction_has_a_timeout_of_its_own() -> None:
    """A wall clock that went back may give both transactions the same wall time."""
    world = open_transaction()
    started_ms = world.now_ms
    world.advance(SWEEP_MS)
    described = world.transactions.describe("t")
    ids = world.end(described, commit=True)
    world.now_ms = started_ms
    assert world.begin(ids, A) is E.NONE
    check_aborted_after(world, TIMEOUT_MS)


def test_after_a_crash_the_stored_wall_time_tells_how_long_the_transaction_ran() -> None:
    world = open_transaction()
    world.advance(9_000)
    check_aborted_after(world.crashed(), TIMEOUT_MS - 9_000)


def test_after_a_crash_a_start_in_the_future_is_taken_for_the_present() -> None:
    world = open_transaction()
    world.now_ms -= DAY_MS
    check_aborted_after(world.crashed(), TIMEOUT_MS)
