"""Three brokers and their registry under faults drawn from the seed, on virtual time."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from planted import PLANTS
from planted.replication_plants import REPLICATION_PLANTS
from support.harness.days import seeds_of_day
from support.harness.planted_bugs import assert_caught

from simulation.cli import run_seed
from simulation.scenario import GroupMembers
from simulation.scenario_loading import load_scenario
from simulation.world import World

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = "cluster"
SEEDS, SEEDS_A_DAY = 300, 10
"""Seeds of three brokers; test_sim_stories.py runs those of one broker."""
STORIES = {
    "high-watermark-of-one-that-left": "three_brokers_late_requests",
    "producers-forgotten": "three_brokers_late_requests",
    "marker-to-an-old-leader": "three_brokers_damaged",
}
"""Scenarios that show a planted bug soon; a bug that is not listed uses SCENARIO."""
KNOWN = {
    "high-watermark-of-one-that-left": 8,
    "admitted-before-it-caught-up": 17,
    "truncated-to-high-watermark": 2,
    "isr-proposal-not-fenced": 1,
    "unclean-election": 2,
    "isr-change-not-fenced": 114,
    "producers-forgotten": 2,
    "loaded-to-high-watermark": 8,
    "controller-after-its-session": 1,
    "any-generation-commits": 12,
    "high-watermark-with-few-in-sync": 1,
    "served-above-high-watermark": 6,
    "acknowledged-under-min-isr": 1,
    "marker-to-an-old-leader": 15,
}
"""A seed that catches a planted bug, where it is not the first."""
CAUGHT_BY = {
    "high-watermark-of-one-that-left": {3, 7, 8, 10},
    "high-watermark-with-few-in-sync": {11},
    "admitted-before-it-caught-up": {7, 8},
    "truncated-to-high-watermark": {3, 7, 8, 10},
    "isr-proposal-not-fenced": {7, 44},
    "isr-change-not-fenced": {7},
    "served-above-high-watermark": {1, 4, 5},
    "producers-forgotten": {13, 14},
    "marker-to-an-old-leader": {2, 6, 7, 8, 10, 19, 20, 25, 43, 44},
    "loaded-to-high-watermark": {28, 31, 32, 40, 41},
    "unclean-election": {9},
    "controller-after-its-session": {9},
    "producer-ids-given-twice": {16},
    "acknowledged-under-min-isr": {11},
    "any-generation-commits": {32, 33},
}
"""The invariants that the bug breaks."""


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
@pytest.mark.invariant(49)
@pytest.mark.parametrize("plant", REPLICATION_PLANTS)
def test_a_bug_planted_in_one_of_three_brokers_is_caught(plant, record_property):
    scenario = STORIES.get(plant, SCENARIO)
    assert_caught(plant, scenario, KNOWN.get(plant, 0), CAUGHT_BY[plant], record_property)


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


@pytest.mark.invariant(48)
@pytest.mark.parametrize("seeds", ["3:6", pytest.param("100:140", marks=pytest.mark.chaos)])
def test_two_runs_of_a_cluster_give_one_trace_digest_under_two_hash_seeds(seeds):
    def digests(hash_seed):
        command = [sys.executable, "-m", "simulation", "--seeds", seeds, "--digest"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*command, "--scenario", SCENARIO],
            env=environment, cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return [line for line in done.stdout.splitlines() if "digest" in line]

    first, second = digests("1"), digests("2")
    low, high = map(int, seeds.split(":"))
    assert len(set(first)) == high - low
    assert first == second
