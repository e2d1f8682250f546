"""Three brokers and their registry under faults drawn from the seed, on virtual time."""

from collections import Counter
from dataclasses import replace

import pytest
from planted import PLANTS
from support.harness.days import seeds_of_day
from support.harness.planted_bugs import assert_caught

from simulation.cli import run_seed
from simulation.scenario import GroupMembers
from simulation.scenario_loading import load_scenario
from simulation.world import World

SCENARIO = "cluster"
SEEDS, SEEDS_A_DAY = 300, 10
"""Seeds of three brokers; test_sim_stories.py runs those of one broker."""


def told(verdict):
    return f"{verdict.failure}\n" + "\n".join(verdict.last_lines[-60:])


def hold(seed):
    verdict = run_seed(seed, SCENARIO)
    assert verdict.failure is None, f"seed {seed}: {told(verdict)}"


@pytest.mark.invariant(3, 4, 6, 7, 8, 9, 10, 11, 31, 32, 33, 34, 35, 43, 44, 45, 46, 74, 75)
@pytest.mark.parametrize("number", range(SEEDS_A_DAY))
def test_a_cluster_keeps_every_invariant_under_random_faults(number):
    hold(seeds_of_day(SEEDS_A_DAY, SEEDS)[number])


@pytest.mark.chaos
@pytest.mark.invariant(3, 4, 6, 7, 8, 9, 10, 11, 31, 32, 33, 34, 35, 43, 44, 45, 46, 74, 75)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_cluster_keeps_every_invariant_under_many_random_faults(seed):
    hold(seed)


@pytest.mark.invariant(45, 74)
@pytest.mark.parametrize("copies", [False, True])
def test_a_group_whose_members_die_and_stand_still_ends_stable_with_all_read(copies):
    fates = Counter()
    for seed in range(3):
        members = {"load.group": GroupMembers(3, seed, copies, member_fault=0.4)}
        verdict = World(seed, load_scenario(SCENARIO, seed).changed(members)).run()
        assert verdict.failure is None, told(verdict)
        fates.update(verdict.counts)
    assert fates["group healed"] == 3
    assert fates["group member killed"] > 0
    assert fates["group member paused"] > 0


@pytest.mark.invariant(3, 20, 32, 33, 34, 45, 74)
@pytest.mark.parametrize("members", ["readers", "copiers"])
def test_a_consumer_group_of_which_members_and_coordinators_die_reads_all_once(members):
    fates = Counter()
    for seed in range(4):
        verdict = run_seed(seed, f"three_brokers_consumer_{members}")
        assert verdict.failure is None, verdict.failure
        fates.update(verdict.counts)
    assert fates["group healed"] == 4
    assert fates["group member killed"] + fates["group member paused"] > 0


def test_random_clusters_have_groups_of_both_kinds():
    groups = [load_scenario(SCENARIO, seed).load.group for seed in range(10_000, 10_100)]
    kinds = Counter(group.modern for group in groups if group.members)
    assert min(kinds[False], kinds[True]) > 5


def test_an_administrator_at_work_and_a_topic_that_comes_and_goes_leave_nothing_behind():
    done = Counter()
    for seed in (2, 31):
        drawn = load_scenario(SCENARIO, seed)
        members = replace(drawn.load.group, members=3, static_members=3, copiers=False)
        load = replace(drawn.load, administrator=True, passing_topic=True, group=members)
        verdict = World(seed, replace(drawn, load=load)).run()
        assert verdict.failure is None, told(verdict)
        done.update(verdict.counts)
    for what in ("reassignment", "topic created", "topic deleted", "topic read in its life"):
        assert done[what] > 0, done


def test_brokers_that_part_again_and_again_have_late_proposals_refused():
    verdict = run_seed(65, SCENARIO)
    assert verdict.failure is None, told(verdict)
    assert verdict.counts["two brokers apart for longer than replicas may lag"] > 1
    assert verdict.counts["request late"] > 1


@pytest.mark.weekly
@pytest.mark.invariant(38, 49)
@pytest.mark.parametrize("story", ["former_coordinator", "former_start"])
def test_a_driver_that_believes_a_former_coordinator_is_caught(story, record_property):
    plant, scenario = "former-coordinator-believed", f"three_brokers_{story}"
    assert_caught(plant, scenario, 10, {35}, record_property)


@pytest.mark.chaos  # one of some 700 seeds does
@pytest.mark.timeout(3_600)
@pytest.mark.invariant(49, 75)
def test_a_task_that_believes_a_former_leader_is_caught():
    plant = PLANTS["former-leader-believed"]
    scenarios = ((seed, load_scenario(SCENARIO, seed)) for seed in range(3_000))
    worlds = (
        World(seed, replace(drawn, chaos_ms=60_000), plant=plant) for seed, drawn in scenarios
    )
    assert any("invariant 75" in (world.run().failure or "") for world in worlds)
