"""Schedules of one driver and of two over two batches, with one fault at any ask.

What is checked on the way: no driver stops because a person would have to look, and none aborts a
transaction whose EndTxn(commit) it has sent. From each state an end can be reached; in the end,
when a driver without faults has run: each row once and in order under read_committed, the group
behind it, all progress in one place. One driver alone has all orders of what it asks at once; of
two, one is left standing at any ask for the other one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from planted.commit_plants import COMMIT_PLANTS
from support.explorer.explored_query import driver, explore, hanging_worker, two_workers
from support.explorer.explorer import (
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

CAUGHT_BY = {
    "baseline-not-transactional": (frozenset(), "progress is"),
    "judged-by-an-unstable-read": (frozenset(), "GroupHasOffsets"),
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
            f"{explored.states} states, {explored.steps} steps, {explored.ends} ends, "
            f"drivers stopped with {sorted(explored.stops)}",
        )
        assert explored.states >= states_min
        assert explored.steps > explored.states

    return told


@pytest.mark.invariant(35, 36, 37, 39, 41, 58)
@pytest.mark.parametrize(
    ("fault", "states_min"),
    [
        pytest.param(None, 40_000, marks=pytest.mark.weekly),
        pytest.param(CRASH, 40_000, marks=pytest.mark.weekly),
        pytest.param(FILE_FAILED, 50_000, marks=pytest.mark.weekly),
        pytest.param(REQUEST_LOST, 200_000, marks=pytest.mark.chaos),
        pytest.param(ANSWER_LOST, 200_000, marks=pytest.mark.chaos),
        pytest.param(WRITE_DONE, 40_000, marks=pytest.mark.weekly),
        pytest.param(WRITE_LATE, 40_000, marks=pytest.mark.weekly),
        pytest.param(LATE, 200_000, marks=pytest.mark.chaos),
    ],
)
def test_two_drivers_of_which_one_is_left_standing_anywhere(
    fault: str | None, states_min: int, see: Callable[[Explored, int], None]
) -> None:
    see(explore(frozenset({fault} - {None})), states_min)


@pytest.mark.chaos
@pytest.mark.invariant(35, 36, 37, 39, 41)
def test_two_drivers_that_are_left_standing_twice(see: Callable[[Explored, int], None]) -> None:
    see(explore(frozenset(), switches_max=2), 400_000)


@pytest.mark.invariant(35, 36, 37, 39, 41)
@pytest.mark.parametrize(
    ("fault", "states_min"),
    [
        pytest.param(None, 50_000, marks=pytest.mark.chaos),
        pytest.param(CRASH, 50_000, marks=pytest.mark.chaos),
        pytest.param(REQUEST_LOST, 200_000, marks=pytest.mark.chaos),
    ],
)
def test_two_drivers_with_two_new_transactional_ids(
    fault: str | None, states_min: int, see: Callable[[Explored, int], None]
) -> None:
    see(explore(frozenset({fault} - {None}), programs=TWO_IDS), states_min)


@pytest.mark.chaos
@pytest.mark.invariant(35, 36, 37, 39, 41)
def test_two_drivers_of_a_stateful_query(see: Callable[[Explored, int], None]) -> None:
    see(explore(frozenset({CRASH}), is_stateful=True), 40_000)


@pytest.mark.invariant(35)
@pytest.mark.parametrize(
    ("fault", "states_min"),
    [(CRASH, 10_000), pytest.param(REQUEST_LOST, 100_000, marks=pytest.mark.chaos)],
)
def test_two_workers_of_one_run_and_a_third_that_hangs(
    fault: str, states_min: int, see: Callable[[Explored, int], None]
) -> None:
    programs = [two_workers("run-1"), hanging_worker("run-1")]
    see(explore(frozenset({fault}), programs=programs, may_fail=2), states_min)


@pytest.mark.invariant(35, 58)
@pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.chaos), 2])
def test_one_driver_with_any_fault_on_either_transaction_version(
    version: int, see: Callable[[Explored, int], None]
) -> None:
    faults = frozenset({CRASH, REQUEST_LOST, ANSWER_LOST, FILE_FAILED, WRITE_DONE, WRITE_LATE})
    see(explore(faults, programs=[driver("run-1")], transaction_version=version), 500)


@pytest.mark.weekly
@pytest.mark.invariant(35, 41)
def test_one_driver_of_a_stateful_query_with_any_fault(
    see: Callable[[Explored, int], None],
) -> None:
    faults = frozenset({CRASH, REQUEST_LOST, ANSWER_LOST, FILE_FAILED, WRITE_DONE, WRITE_LATE})
    see(explore(faults, programs=[driver("run-1")], is_stateful=True), 500)


@pytest.mark.weekly
@pytest.mark.invariant(49)
@pytest.mark.parametrize("plant", CAUGHT_BY)
def test_a_bug_that_takes_two_drivers_is_caught(plant: str) -> None:
    faults, noticed_by = CAUGHT_BY[plant]
    with COMMIT_PLANTS[plant](None), pytest.raises(Violated, match=noticed_by):
        explore(faults)


@pytest.mark.chaos
@pytest.mark.invariant(49)
@pytest.mark.parametrize("plant", CAUGHT_WITH_TWO_IDS)
def test_a_bug_that_takes_two_transactional_ids_is_caught(plant: str) -> None:
    noticed_by = r"CommittedOffsetsMoved|ProgressBehind|gives the rows"
    with COMMIT_PLANTS[plant](None), pytest.raises(Violated, match=noticed_by):
        explore(frozenset(), programs=TWO_IDS)
