"""The table of faults by state: what a cell counts, and that a long run leaves none at zero."""

import re
from collections import Counter
from types import SimpleNamespace

import pytest

from broker_sim.core.controller.registrations import PartitionRegistration
from simulation.checkers.outcomes import DRIVER, KINDS, ORDER, SEND, Outcome
from simulation.cli import main, run_seed
from simulation.coverage import (
    ALONE,
    ALONE_FAULTS,
    COLUMNS,
    CONTROLLER,
    FAULTS,
    FOLLOWER,
    GROUP,
    OUTPUT,
    REGISTRY,
    STATES,
    TRANSACTION,
    StateOfQuery,
    as_table,
    idle_cells,
    never,
)

ENOUGH_SEEDS = 1_500


def led_by(leader):
    return PartitionRegistration((0, 1), (0, 1), leader, 1, 1)


def state_of_query(*states):
    """Broker 0 leads the output, broker 1 the logs of both coordinators; 2 has no replica."""
    view = SimpleNamespace(
        partitions={
            "output-0": led_by(0),
            "__transaction_state-0": led_by(1),
            "__consumer_offsets-0": led_by(1),
        },
        oracles={f"broker-{n}": SimpleNamespace(state_of=dict(states).get) for n in (0, 1, 2)},
        is_controller=lambda name: name == "broker-2",
    )
    return StateOfQuery(view, "output", "job", lambda: "t")


@pytest.mark.invariant(51)
@pytest.mark.parametrize(
    ("victim", "roles"),
    [
        ("broker-0", [OUTPUT]),
        ("broker-1", [TRANSACTION, GROUP, FOLLOWER]),
        ("broker-2", [CONTROLLER]),
        ("registry", [REGISTRY]),
        ("", []),
    ],
)
def test_a_fault_counts_in_the_state_of_the_transaction_and_the_roles_of_its_victim(victim, roles):
    found = state_of_query(("t", "prepare-commit"), ("other", "ongoing")).columns_of(victim)
    assert list(found) == ["prepare-commit", *roles]
    assert list(state_of_query().columns_of(victim)) == roles


@pytest.mark.invariant(51)
def test_a_cell_at_zero_is_named_unless_it_has_a_reason():
    full = {(fault, column): 1 for fault in FAULTS for column in COLUMNS}
    assert idle_cells(full) == []
    assert idle_cells(full | {("kill", "prepare-commit"): 0}) == [("kill", "prepare-commit")]
    assert idle_cells(full | {("driver killed", OUTPUT): 0}) == []
    assert never("driver killed", OUTPUT)
    header, *lines = as_table({("kill", "empty"): 7})
    assert [header.split()[0], len(lines)] == ["empty", len(FAULTS)]
    assert lines[0].split()[:3] == ["kill", "7", "0"]


@pytest.mark.invariant(51)
def test_runs_count_what_happened_in_each_state():
    counts, cells, outcomes = Counter(), Counter(), Counter()
    for seed in range(3):
        verdict = run_seed(seed, "cluster")
        counts.update(verdict.counts)
        cells.update(verdict.cells)
        outcomes.update(verdict.outcomes)
    # Of the kinds that are in every run, and need no luck: how each operation ended, three-valued.
    assert all(outcomes[kind, each] for kind in (SEND, ORDER) for each in Outcome), outcomes
    assert all(outcomes[DRIVER, each] for each in (Outcome.OK, Outcome.FAILED)), outcomes
    assert {fault for fault, _ in cells} <= set(FAULTS)
    assert {column for _, column in cells} <= set(COLUMNS)
    assert len({fault for fault, _ in cells}) > len(FAULTS) // 2
    for fault in FAULTS:
        assert sum(cells[fault, state] for state in STATES) <= counts[fault]


def test_the_command_prints_the_table_and_fails_for_a_cell_at_zero(capsys):
    assert main(["--seeds", "0:1", "--scenario", "cluster", "--table"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "1 passed, 0 failed" in lines
    assert any(line.split()[:1] == ["kill"] for line in lines)
    assert any(line.startswith("NEVER happened: ") for line in lines)
    with pytest.raises(SystemExit):
        main(["--seeds", "0:1", "--scenario", "calm", "--table"])


def test_the_command_prints_a_table_of_one_broker_too(capsys):
    assert main(["--seeds", "0:4", "--table"]) == 1
    lines = capsys.readouterr().out.splitlines()
    header = next(line for line in lines if line.split() == list(STATES))
    (row,) = [line for line in lines if line.startswith("delay ")]
    assert len(row) == len(header)
    assert any(int(count) for count in row.split()[1:])
    assert not any(line.startswith("NEVER happened: partition") for line in lines)


def test_of_a_broker_that_is_alone_no_cell_is_demanded_that_one_step_has_passed():
    full = {(fault, column): 1 for fault in ALONE_FAULTS for column in STATES}
    assert idle_cells(full, ALONE) == []
    assert idle_cells(full | {("worker lost", "prepare-commit"): 0}, ALONE) == []
    assert idle_cells(full | {("kill", "prepare-commit"): 0}, ALONE) == [("kill", "prepare-commit")]
    assert never("worker lost", "prepare-commit") is None


@pytest.mark.chaos
@pytest.mark.timeout(0)
@pytest.mark.invariant(51)
@pytest.mark.parametrize(("scenario", "kinds"), [("cluster", KINDS), ("random", ())])
def test_in_a_long_run_every_fault_happens_in_every_state(scenario, kinds, capsys):
    failed = main(["--seeds", f"0:{ENOUGH_SEEDS}", "--scenario", scenario, "--table"])
    printed = capsys.readouterr().out
    assert not failed, printed
    for kind in kinds:
        every_end = f"{kind}: ok [1-9][0-9]*, failed [1-9][0-9]*, unknown [1-9]"
        assert re.search(every_end, printed), kind
