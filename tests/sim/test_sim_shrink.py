"""A failing seed is brought down to the faults that it takes, and its events are told in order."""

import re
from types import SimpleNamespace

from planted import PLANTS

from simulation import failure_report
from simulation.cli import main
from simulation.failure_report import (
    TIMELINE_LINES_MAX,
    as_toml,
    kind_of,
    kinds_of_faults,
    report_failure,
    shrunk,
    timeline,
)
from simulation.scenario import Chances, ClusterChances, Expect, Fault, LinkConditions, Scenario
from simulation.scenario_loading import load_scenario, parse_scenario


def test_only_what_it_takes_is_left():
    drawn = load_scenario("cluster", 2)
    needed = ["faults.cluster.clean_stop", "faults.cluster.partition"]
    found = shrunk(drawn, lambda scenario: all(map(scenario.values().get, needed)))
    left, all_kinds = kinds_of_faults(found), kinds_of_faults(drawn)
    assert left == {path: all_kinds[path] for path in needed}
    assert all_kinds.keys() > {*needed, "faults.broker.crash", "load.administrator"}
    assert (found.query.batches, found.brokers.flushes_all) == (
        drawn.query.batches, drawn.brokers.flushes_all,
    )  # fmt: skip


def test_what_is_needed_in_none_of_its_parts_is_left_whole():
    drawn = load_scenario("random", 3)
    assert shrunk(drawn, lambda _: False) == drawn


def test_a_scenario_is_read_as_it_was_written():
    drawn = load_scenario("cluster", 5)
    assert parse_scenario("cluster", as_toml(drawn)) == drawn
    planned = Scenario(
        name="x", planned=(Fault("marker", flushed=True), Fault("step", step="txn_offset_commit")),
        expect=Expect(fenced=2),
    )  # fmt: skip
    assert parse_scenario("x", as_toml(planned)) == planned


def test_the_command_writes_the_scenario_of_the_first_failure(tmp_path, capsys):
    path = tmp_path / "small.toml"
    words = ["--seeds", "0:3", "--plant", "planted:aborted-list-missing", "--shrink", str(path)]
    assert main(words) == 1
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "shrunk: " in each]
    replay = line.partition(" -m simulation ")[2].removesuffix(" --trace").split()
    assert main(replay) == 1
    assert "1 failed" in capsys.readouterr().out


def test_the_first_failure_is_told_with_the_faults_it_takes_and_a_timeline(capsys):
    assert main(["--seeds", "9:12", "--plant", "planted:aborted-list-missing"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (at,) = [at for at, line in enumerate(lines) if line.startswith("  the fewest kinds of faults")]
    assert lines[at - 2].startswith("FAILED seed 9 "), "of the first failure only"
    assert re.fullmatch(r".* fails with: faults\.driver\.pause=0\.\d+", lines[at])
    events = [line for line in lines[at + 2 :] if re.match(r" +\d+\.\d{6} s  ", line)]
    assert re.search(r" job-driver-\d+ +paused", "\n".join(events))
    assert re.search(r" s  world +FAILED why=.invariant 27: ", events[-1])


def test_a_report_is_of_a_scenario_that_fails_with_less():
    drawn = load_scenario("random", 9)
    report = report_failure(9, drawn, PLANTS["aborted-list-missing"])
    left, was = report.scenario.faults.driver, drawn.faults.driver
    assert left.pause == was.pause > 0
    assert was.kill > 0 == left.kill
    assert report.failure.startswith("invariant 27: ")


def test_a_timeline_leaves_out_requests_files_and_what_repeats():
    told = timeline(
        [
            "     1500000 broker-0 request-FETCH connection=1 version=12",
            "     1500001 job-driver-1 answer-FETCH version=12 error='NONE'",
            "     1500002 job-driver-1 reached step='look_up' when='before' batch_id=0",
            "     1500003 job-driver-1 reached step='look_up' when='after' batch_id=0",
            "     1500004 broker-1 isr-not-decided log='x-0'",
            "     1500005 network answer-lost id=4",
            "     1500005 network request-again id=5",
            "     1500006 job-driver-1 killed",
        ]
    )
    assert told == [
        "    1.500003 s  job-driver-1     reached step='look_up' when='after' batch_id=0",
        "    1.500005 s  network          answer-lost id=4",
        "    1.500005 s  network          request-again id=5",
        "    1.500006 s  job-driver-1     killed",
    ]


def test_a_timeline_is_the_end_of_a_run():
    told = timeline(f"{at} broker-0 killed" for at in range(100))
    assert len(told) == TIMELINE_LINES_MAX
    assert told[-1].startswith("    0.000099 s")


def test_planned_faults_are_left_out_one_by_one():
    first, second, third = Fault("data"), Fault("marker"), Fault("marker", occurrence=2)
    faults = Chances(network=LinkConditions(spike=0.5))
    planned = Scenario(name="x", planned=(first, second, third), faults=faults)
    found = shrunk(planned, lambda scenario: second in scenario.planned)
    assert found == Scenario(name="x", planned=(second,))
    assert shrunk(planned, lambda scenario: len(scenario.planned) > 1).planned == (second, third)


def test_only_a_failure_of_the_same_kind_counts(monkeypatch):
    def failure(scenario):
        network = scenario.faults.network
        if network.spike and network.late:
            return "invariant 35: a row is there twice"
        return "invariant 46: a query did not finish" if network.spike else None

    monkeypatch.setattr(
        failure_report, "World",
        lambda _seed, scenario, _echo, _plant: SimpleNamespace(
            run=lambda: SimpleNamespace(failure=failure(scenario))
        ),
    )  # fmt: skip
    network, cluster = LinkConditions(spike=0.5, late=0.5), ClusterChances(partition=0.5)
    report = report_failure(0, Scenario(faults=Chances(network=network, cluster=cluster)))
    assert report.failure == "invariant 35: a row is there twice"
    assert report.faults == "faults.network.spike=0.5, faults.network.late=0.5"


def test_failures_are_of_one_kind_by_the_invariant_or_what_was_raised():
    assert kind_of("invariant 3: one") == kind_of("invariant 3: another") == "invariant 3"
    assert kind_of("invariant 31: one") != kind_of("invariant 3: one")
    assert kind_of("crash: KeyError: 3") == kind_of("crash: KeyError: 4") == "crash: KeyError"


def test_a_report_names_the_planned_faults_that_are_left():
    planned = Scenario(
        planned=(Fault("marker", occurrence=2), Fault("step", step="txn_offset_commit"))
    )
    told = failure_report.FailureReport(planned, "", []).faults
    assert told == "a broker dies after marker 2, kill after txn_offset_commit of batch 0"
