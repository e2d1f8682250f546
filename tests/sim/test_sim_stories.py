"""The scenarios that have files, and random faults: the real broker and commit, virtual time."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.harness.days import seeds_of_day

from simulation import cli
from simulation.cli import main, run_seed
from simulation.scenario_loading import load_scenario, scenario_names
from simulation.world import World

ROOT = Path(__file__).resolve().parents[2]
SEEDS, SEEDS_A_DAY = 940, 24
"""`make chaos` runs all of them, and 300 of three brokers (test_sim_cluster_runs.py)."""
STORY_SEEDS = 12


def told(verdict):
    return f"{verdict.failure}\n" + "\n".join(verdict.last_lines[-60:])


def hold(seeds, scenario):
    for seed in seeds:
        verdict = run_seed(seed, scenario)
        assert verdict.failure is None, f"seed {seed}: {told(verdict)}"


@pytest.mark.parametrize("name", scenario_names())
def test_the_story_ends_with_every_invariant_held(name):
    hold(seeds_of_day(1, STORY_SEEDS), name)


@pytest.mark.chaos
@pytest.mark.parametrize("name", scenario_names())
def test_more_seeds_of_the_story_end_with_every_invariant_held(name):
    hold(range(STORY_SEEDS), name)


def test_the_story_of_compaction_compacts():
    for seed in range(3):
        counts = run_seed(seed, "coordinators_are_compacted").counts
        assert counts["segments compacted"] > 5


@pytest.mark.parametrize(
    ("story", "seeds", "happens"),
    [
        ("group_commit", 8, {"group commit": 10, "broker died in a round of several": 2}),
        ("object_store_fails", 12, {"store failed": 10, "fenced": 2}),
    ],
)
def test_in_the_seeds_of_a_story_it_happens_more_often_than(story, seeds, happens):
    counts = Counter()
    for seed in range(seeds):
        counts.update(run_seed(seed, story).counts)
    assert all(counts[what] > often for what, often in happens.items()), counts


@pytest.mark.invariant(3, 35, 46)
@pytest.mark.parametrize("part", [0, 1])
def test_exactly_once_holds_under_random_faults(part):
    hold(seeds_of_day(SEEDS_A_DAY, SEEDS)[part::2], "random")


@pytest.mark.chaos
@pytest.mark.invariant(3, 35, 46)
@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_exactly_once_holds_under_many_random_faults(first):
    hold(range(first, first + 20), "random")


PAST = [
    pytest.param(
        words,
        id="-".join(words[:2]),
        # What is one more seed of the bug above it is seen by that one too.
        marks=[pytest.mark.chaos] if words[-2:] == ["the", "same"] else [],
    )
    for line in (ROOT / "tests" / "sim" / "regression_seeds.txt").read_text().splitlines()
    if line and not line.startswith("#") and (words := line.split())
]


@pytest.mark.weekly
@pytest.mark.parametrize("words", PAST)
def test_past_failures_stay_fixed(words):
    name, seed, *rest = words
    fields = dict(word.split("=") for word in rest if "=" in word)
    values = {field: json.loads(value) for field, value in fields.items()}
    verdict = World(int(seed), load_scenario(name, int(seed)).changed(values)).run()
    assert verdict.failure is None, told(verdict)


@pytest.mark.invariant(48)
@pytest.mark.parametrize(
    ("scenario", "seeds"),
    [
        ("random", "3:6"),
        ("cluster", "3:4"),
        pytest.param("cluster", "100:140", marks=pytest.mark.chaos),
    ],
)
def test_two_runs_of_one_seed_give_one_trace_digest_under_two_hash_seeds(scenario, seeds):
    def digests(hash_seed):
        command = [sys.executable, "-m", "simulation", "--seeds", seeds, "--digest"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*command, "--scenario", scenario],
            env=environment, cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return [line for line in done.stdout.splitlines() if "digest" in line]

    first, second = digests("1"), digests("2")
    low, high = map(int, seeds.split(":"))
    assert len(set(first)) == high - low
    assert first == second


def test_different_seeds_tell_different_stories():
    assert len({run_seed(seed, "calm").digest for seed in range(3)}) == 3


def test_the_command_prints_the_count_and_how_fast_it_was(capsys):
    assert main(["--seeds", "0:2", "--scenario", "calm"]) == 0
    *_, speed, count = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d+\.\d seeds a second: 2 in \d+\.\d s", speed)
    assert count == "2 passed, 0 failed"


def test_the_command_tells_how_to_replay_a_failure(capsys):
    assert main(["--seeds", "0:6", "--plant", "planted:aborted-list-missing"]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = next(line for line in lines if line.startswith("FAILED seed "))
    replay = lines[lines.index(failed) + 1]
    prefix = "  replay: python -m simulation "
    assert replay.startswith(prefix)
    words = replay.removeprefix(prefix).split()
    assert words[-1] == "--trace"
    assert main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    assert failed in lines
    assert lines[-1] == "0 passed, 1 failed"
    assert any(" world FAILED " in line for line in lines), "the trace is printed"


def test_several_processes_print_what_one_prints(capsys):
    def printed(*more):
        code = main(
            ["--seeds", "0:9", "--plant", "planted:aborted-list-missing", "--digest", *more]
        )
        lines = capsys.readouterr().out.splitlines()
        return code, [line for line in lines if "seeds a second" not in line]

    assert printed("--jobs", "2") == printed("--jobs", "1") == printed()


def test_each_core_has_a_process_unless_told_otherwise(monkeypatch):
    seen = []
    monkeypatch.setattr(cli, "_cores", lambda: 7)
    monkeypatch.setattr(cli, "_results", lambda jobs, processes: seen.append(processes) or iter(()))
    for more in [], ["--jobs", "3"], ["--trace"]:
        with pytest.raises(ValueError, match="zip"):
            main(["--seeds", "0:1", "--scenario", "calm", *more])
    assert seen == [7, 3, 1]


def test_progress_is_printed_while_seeds_run(capsys, monkeypatch):
    monkeypatch.setattr(cli, "PROGRESS_SECONDS", 0.0)
    assert main(["--seeds", "0:2", "--scenario", "calm"]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"1 of 2, 0 failed, \d+\.\d seeds a second", first)
    assert second.startswith("2 of 2, 0 failed, ")


@pytest.mark.parametrize("words", [["--jobs", "0"], ["--jobs", "x"], ["--jobs", "2", "--trace"]])
def test_jobs_that_cannot_be_are_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--seeds", "0:1", *words])
    assert ended.value.code == 2
    assert "--jobs" in capsys.readouterr().err


def test_a_trace_of_one_run_and_the_search_for_another_exclude_each_other(capsys):
    with pytest.raises(SystemExit):
        main(["--seeds", "0:1", "--trace", "--shrink", "x.toml"])
    assert "--trace and --shrink exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--seeds", "5:5"], ["--seeds", "0:1", "--scenario", "stories"]])
def test_nothing_to_run_is_refused_instead_of_passed(words, capsys, monkeypatch):
    monkeypatch.setattr(cli, "scenario_names", tuple)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "no seed" in (said := capsys.readouterr().err) or "no scenarios" in said


def test_the_help_names_the_scenarios(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "stories for all of: bad_network, " in said


@pytest.mark.parametrize(
    ("words", "told"),
    [("nowhere:x", "no package 'nowhere'"), ("planted:x", "planted has "), ("", "no package ''")],
)
def test_a_bug_that_is_not_there_is_named_with_those_that_are(words, told, capsys):
    with pytest.raises(SystemExit):
        main(["--seeds", "0", "--plant", words or ":"])
    assert told in capsys.readouterr().err
