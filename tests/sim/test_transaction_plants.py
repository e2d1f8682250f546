"""Bugs of transactions and of the log, planted in one broker: each is caught, and by what."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from planted.transaction_plants import TRANSACTION_PLANTS
from support.harness.planted_bugs import assert_caught


class Known(NamedTuple):
    """Known place of a planted bug: a scenario, a seed and the invariants that may catch it."""

    scenario: str
    seed: int
    numbers: set[int]
    """Numbers of the invariants that may catch the bug."""


FIVE_IN_FLIGHT = "three_brokers_five_in_flight"
KNOWN = {
    "epoch-not-checked": Known("random", 0, {15}),
    "epoch-of-the-last-marker-only": Known("random", 0, {15}),
    "end-answered-before-replication": Known("three_brokers_end_in_isolation", 6, {22, 35, 40, 41}),
    "open-transactions-forgotten": Known("random", 4, {28, 43}),
    "aborted-list-missing-inside-a-segment": Known("random", 2, {21, 27}),
    "marker-dropped-at-a-former-leader": Known("three_brokers_leader_restarts", 8, {25, 43}),
    "complete-before-the-last-marker": Known("random", 0, {25}),
    "any-coordinator-epoch": Known("three_brokers_late_markers", 5, {17}),
    "window-of-four-batches": Known(FIVE_IN_FLIGHT, 65, {14}),
    "window-of-no-batch": Known(FIVE_IN_FLIGHT, 0, {14}),
    "pending-offsets-ignored": Known("three_brokers_leader_restarts", 1, {31, 32, 33, 40}),
    "offsets-materialised-later": Known("driver_dies_before_end", 0, {31, 32, 35, 40, 41}),
    "id-expires-inside-a-transaction": Known("random", 0, {28, 43}),
    "timeouts-from-the-wall-clock": Known("clock_jumps", 37, {43}),
    "late-produce-joins-the-next": Known("late_produce", 58, {22, 23, 24}),
    "recovered-without-crc": Known("three_brokers_damaged", 0, {6, 7, 8, 10, 12}),
    "abort-marker-compacted-early": Known("coordinators_are_compacted", 0, {50}),
}


@pytest.mark.weekly
@pytest.mark.invariant(49)
@pytest.mark.parametrize("plant", TRANSACTION_PLANTS)
def test_a_bug_of_transactions_planted_in_one_broker_is_caught(
    plant: str, record_property: Callable[[str, object], None]
) -> None:
    known = KNOWN[plant]
    assert_caught(plant, known.scenario, known.seed, known.numbers, record_property)
