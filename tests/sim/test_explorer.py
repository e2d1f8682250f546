"""Every schedule of two drivers over two batches, with one fault at any ask.

What is checked on the way: no driver stops because a person would have to look, and none aborts a
transaction whose EndTxn(commit) it has sent. In the end, when a driver without faults has run:
each row once and in order under read_committed, the group behind it, all progress in one place.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.explored_query import driver, explore, hanging_worker, two_workers
from support.explorer import (
    ANSWER_LOST,
    CRASH,
    FILE_FAILED,
    LATE,
    REQUEST_LOST,
    WRITE_DONE,
    WRITE_LATE,
    Explored,
    Violated,
)

from broker_sim.sim.commit_plants import COMMIT_PLANTS

CAUGHT_BY = {
    "baseline-not-transactional": (frozenset(), "progress is"),
    "resumed-although-fenced": (frozenset(), "a driver without faults stopped"),
    "judged-by-an-unstable-read": (frozenset(), "ProgressMissing"),
    "recorded-before-the-baseline": (frozenset({CRASH}), "ProgressMissing"),
}
"""The fault that a planted bug needs beside a second driver, and what it is noticed by."""

CAUGHT_WITH_TWO_IDS = (
    "id-changed-without-fencing",
    "others-fenced-before-the-own",
    "id-recorded-too-late",
    "only-the-last-id-fenced",
)
TWO_IDS = (driver("run-1", "one"), driver("run-2", "two"))


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


@pytest.mark.invariant(35, 36, 37, 39, 41, 58)
@pytest.mark.parametrize(
    ("fault", "states_min"),
    [
        (None, 20_000),
        (CRASH, 30_000),
        (REQUEST_LOST, 80_000),
        (ANSWER_LOST, 80_000),
        (FILE_FAILED, 50_000),
        pytest.param(WRITE_DONE, 25_000, marks=pytest.mark.chaos),
        pytest.param(WRITE_LATE, 30_000, marks=pytest.mark.chaos),
        pytest.param(LATE, 300_000, marks=pytest.mark.chaos),
    ],
)
def test_two_drivers_in_every_order(
    fault: str | None, states_min: int, see: Callable[[Explored, int], None]
) -> None:
    see(explore(frozenset({fault} - {None})), states_min)


@pytest.mark.invariant(35, 36, 37, 39, 41)
@pytest.mark.parametrize(
    ("fault", "states_min"),
    [
        (None, 45_000),
        (CRASH, 70_000),
        pytest.param(WRITE_LATE, 70_000, marks=pytest.mark.chaos),
        pytest.param(WRITE_DONE, 50_000, marks=pytest.mark.chaos),
        pytest.param(ANSWER_LOST, 200_000, marks=pytest.mark.chaos),
        pytest.param(REQUEST_LOST, 150_000, marks=pytest.mark.chaos),
    ],
)
def test_two_drivers_with_two_new_transactional_ids_in_every_order(
    fault: str | None, states_min: int, see: Callable[[Explored, int], None]
) -> None:
    see(explore(frozenset({fault} - {None}), programs=TWO_IDS), states_min)


@pytest.mark.invariant(35, 57)
@pytest.mark.parametrize(
    ("fault", "states_min"), [(CRASH, 9_000), (REQUEST_LOST, 50_000), (ANSWER_LOST, 70_000)]
)
def test_two_workers_of_one_run_and_a_third_that_hangs_in_every_order(
    fault: str, states_min: int, see: Callable[[Explored, int], None]
) -> None:
    programs = [two_workers("run-1"), hanging_worker("run-1")]
    see(explore(frozenset({fault}), programs=programs, may_fail=2), states_min)


@pytest.mark.invariant(35, 58)
@pytest.mark.parametrize("version", [1, 2])
def test_one_driver_with_any_fault_on_either_transaction_version(
    version: int, see: Callable[[Explored, int], None]
) -> None:
    faults = frozenset({CRASH, REQUEST_LOST, ANSWER_LOST, FILE_FAILED, WRITE_DONE, WRITE_LATE})
    see(explore(faults, programs=[driver("run-1")], transaction_version=version), 500)


@pytest.mark.invariant(49)
@pytest.mark.parametrize("plant", CAUGHT_BY)
def test_a_bug_that_takes_two_drivers_is_caught(plant: str) -> None:
    faults, noticed_by = CAUGHT_BY[plant]
    with COMMIT_PLANTS[plant](None), pytest.raises(Violated, match=noticed_by):
        explore(faults)


@pytest.mark.invariant(49)
@pytest.mark.parametrize("plant", CAUGHT_WITH_TWO_IDS)
def test_a_bug_that_takes_two_transactional_ids_is_caught(plant: str) -> None:
    with COMMIT_PLANTS[plant](None), pytest.raises(Violated, match=r"GroupHasOffsets|progress is"):
        explore(frozenset(), programs=TWO_IDS)
