"""A failing seed is brought down to the faults that it takes."""

from broker_sim.sim.cli import main
from broker_sim.sim.scenario import Expect, Fault, Scenario, load_scenario, parse_scenario
from broker_sim.sim.shrink import as_toml, shrunk


def test_only_what_it_takes_is_left():
    drawn = load_scenario("cluster", 2)
    found = shrunk(drawn, lambda scenario: scenario.partition > 0 and scenario.clean_stop > 0)
    assert (found.partition, found.clean_stop) == (drawn.partition, drawn.clean_stop)
    assert (found.broker_pause, found.broker_crash, found.spike, found.late) == (0, 0, 0, 0)
    assert (found.batches, found.flushes_all) == (drawn.batches, drawn.flushes_all)


def test_what_is_needed_in_none_of_its_parts_is_left_whole():
    drawn = load_scenario("random", 3)
    assert shrunk(drawn, lambda _: False) == drawn


def test_a_scenario_is_read_as_it_was_written():
    drawn = load_scenario("cluster", 5)
    assert parse_scenario("cluster", as_toml(drawn)) == drawn
    planned = Scenario(
        name="x", faults=(Fault("marker", flushed=True), Fault("step", step="S8")),
        expect=Expect(fenced=2), plant="flush-skipped",
    )  # fmt: skip
    assert parse_scenario("x", as_toml(planned)) == planned


def test_the_command_writes_the_scenario_of_the_first_failure(tmp_path, capsys):
    path = tmp_path / "small.toml"
    words = ["--seeds", "0:3", "--plant", "aborted-list-missing", "--shrink", str(path)]
    assert main(words) == 1
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "shrunk: " in each]
    replay = line.partition(" simulate ")[2].removesuffix(" --trace").split()
    assert main(replay) == 1
    assert "1 failed" in capsys.readouterr().out
