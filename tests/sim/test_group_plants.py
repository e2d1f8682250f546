"""Consumer groups of KIP-848 in a simulated cluster, and bugs of them: each is caught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from planted.group_plants import GROUP_PLANTS
from support.harness.planted_bugs import assert_caught

from simulation.cli import run_seed
from simulation.scenario_loading import load_scenario

READERS, COPIERS = "three_brokers_consumer_readers", "three_brokers_consumer_copiers"
NOT_HEALED = {45}
KNOWN = {
    "member-epochs-ignored-by-commits": (READERS, 0, {32, 33}),
    "member-epochs-ignored-by-transactions": (COPIERS, 2, {20, 32, 33}),
    "partition-given-before-it-is-free": (READERS, 76, {20, 33}),
    "members-never-missed": (READERS, 9, NOT_HEALED),
    "members-never-removed": (READERS, 0, NOT_HEALED),
    "target-lacks-a-partition": (READERS, 0, NOT_HEALED),
    "partition-0-given-to-all": (READERS, 0, {33, 74}),
    "assignments-not-replayed": (READERS, 0, NOT_HEALED),
    "sessions-not-started-at-load": (READERS, 9, NOT_HEALED),
}
"""Scenario, seed and the invariants that the bug breaks."""


@pytest.mark.invariant(3, 20, 32, 33, 34, 45, 74)
@pytest.mark.parametrize("scenario", [READERS, COPIERS])
def test_a_consumer_group_of_which_members_and_coordinators_die_reads_all_once(scenario) -> None:
    fates: Counter[str] = Counter()
    for seed in range(4):
        verdict = run_seed(seed, scenario)
        assert verdict.failure is None, verdict.failure
        fates.update(verdict.counts)
    assert fates["group healed"] == 4
    assert fates["group member killed"] + fates["group member paused"] > 0


def test_random_clusters_have_groups_of_both_kinds() -> None:
    groups = [load_scenario("cluster", seed).load.group for seed in range(10_000, 10_100)]
    kinds = Counter(group.modern for group in groups if group.members)
    assert min(kinds[False], kinds[True]) > 5


@pytest.mark.weekly
@pytest.mark.invariant(49)
@pytest.mark.parametrize("plant", GROUP_PLANTS)
def test_a_bug_of_consumer_groups_planted_in_one_broker_is_caught(
    plant: str, record_property: Callable[[str, object], None]
) -> None:
    scenario, seed, numbers = KNOWN[plant]
    assert_caught(plant, scenario, seed, numbers, record_property)
