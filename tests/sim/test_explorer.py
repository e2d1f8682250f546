"""Every schedule of a driver over two batches, with one fault at any ask; another one goes on.

What is checked on the way: no driver stops because a person would have to look, and none aborts a
transaction whose EndTxn(commit) it has sent. In the end, when a driver without faults has run:
each row once and in order under read_committed, the group behind it, all progress in one place.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.explored_query import driver, explore
from support.explorer import (
    ANSWER_LOST,
    CRASH,
    FILE_FAILED,
    REQUEST_LOST,
    WRITE_DONE,
    WRITE_LATE,
    Explored,
)


@pytest.fixture
def see(record_property: Callable[[str, object], None]) -> Callable[[Explored, int], None]:
    """Say how much was seen; fewer states are an explorer that has gone blind."""

    def told(explored: Explored, states_min: int) -> None:
        record_property(
            "said",
            f"{explored.states} states, {explored.schedules} schedules, {explored.ends} ends, "
            f"drivers stopped with {sorted(explored.stops)}",
        )
        assert explored.states >= states_min
        assert explored.schedules > explored.states

    return told


@pytest.mark.invariant(35, 58)
@pytest.mark.parametrize("version", [1, 2])
def test_one_driver_with_any_fault_on_either_transaction_version(
    version: int, see: Callable[[Explored, int], None]
) -> None:
    faults = frozenset({CRASH, REQUEST_LOST, ANSWER_LOST, FILE_FAILED, WRITE_DONE, WRITE_LATE})
    see(explore(faults, programs=[driver("run-1")], transaction_version=version), 500)
