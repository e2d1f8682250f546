"""Stage of a disturbance: runs are supervised, and what was not disturbed is never called exact."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.brokers.probe import wait_until

from txnlog_testing.prove.driver import Outcome
from txnlog_testing.prove.proof import exactly_once
from txnlog_testing.prove.stage import (
    RESTARTS_MAX,
    Drivers,
    NotReached,
    Refused,
    Stage,
    Stuck,
)

WELL, FAILED, DIED = Outcome(), Outcome("an error"), Outcome("its process died", died=True)
LATE = Outcome("it still ran after 60 s", is_late=True)


class FakeDriver:
    """A driver whose runs end as it was told; it fires what is armed if `fires`."""

    def __init__(self, outcomes, fires=()):
        self.outcomes, self.fires = list(outcomes), fires
        self.armed, self.told = "", []

    def arm(self, failpoint):
        self.armed = failpoint

    def tell(self, command):
        self.told.append(command)

    def wait(self, seconds_max, until=None):
        outcome = self.outcomes.pop(0)
        return None if outcome is None and until is not None else outcome

    def fired(self):
        return self.fires


class FakeDrivers:
    def __init__(self, warm=(), victim=None):
        self.warm_one, self.victim_one = FakeDriver(warm), victim
        self.given_up = []

    def warm(self):
        return self.warm_one

    def victim(self):
        return self.victim_one

    def give_up(self, driver):
        self.given_up.append(driver)


def stage_with(drivers) -> Stage:
    checkpoints = SimpleNamespace(root=Path("/checkpoint"), found=lambda files: set())
    world = SimpleNamespace(kafka={}, checkpoints=checkpoints)
    return Stage(world, Path("/job"), drivers, random.Random(0), 60.0)


@pytest.fixture(autouse=True)
def fake_is_a_driver(monkeypatch):
    monkeypatch.setattr("txnlog_testing.prove.stage.Driver", FakeDriver)


def test_a_run_that_fails_or_dies_is_started_again():
    drivers = FakeDrivers([FAILED, DIED, WELL])
    stage_with(drivers).run()
    assert len(drivers.warm_one.told) == 3
    assert drivers.given_up == [drivers.warm_one]  # the one that died


def test_a_job_that_fails_each_time_is_refused_with_its_error():
    drivers = FakeDrivers([FAILED] * (1 + RESTARTS_MAX))
    with pytest.raises(Refused, match="an error"):
        stage_with(drivers).run()


def test_a_run_that_does_not_end_is_stuck_and_its_driver_given_up():
    drivers = FakeDrivers([LATE])
    with pytest.raises(Stuck, match="still ran"):
        stage_with(drivers).run()
    assert drivers.given_up == [drivers.warm_one]


def test_a_kill_is_armed_in_a_process_of_its_own_which_is_given_up():
    victim = FakeDriver([None], fires=("end_txn:after:kill-driver",))
    drivers = FakeDrivers(victim=victim)
    stage_with(drivers).kill_at("end_txn:after")
    assert victim.armed == "end_txn:after:kill-driver"
    assert drivers.given_up == [victim]


@pytest.mark.parametrize(
    ("outcome", "error"), [(WELL, NotReached), (FAILED, NotReached), (LATE, Stuck)]
)
def test_a_kill_that_did_not_happen_is_not_taken_for_one(outcome, error):
    with pytest.raises(error):
        stage_with(FakeDrivers(victim=FakeDriver([outcome]))).kill_at("end_txn:after")


@pytest.mark.parametrize(("outcome", "error"), [(WELL, NotReached), (LATE, Stuck)])
def test_a_batch_that_was_never_planned_is_not_taken_for_one(outcome, error):
    drivers = FakeDrivers(victim=FakeDriver([outcome]))
    with pytest.raises(error):
        stage_with(drivers).begun("offsets/*")
    assert drivers.given_up == [drivers.victim_one]


def test_a_broker_that_did_not_die_is_not_taken_for_one_that_did():
    acted = []
    drivers = FakeDrivers([WELL])
    with pytest.raises(NotReached):
        stage_with(drivers).while_running(lambda: False, lambda: acted.append(1))
    assert acted == []


def test_a_run_that_failed_by_the_broker_before_anybody_looked_is_run_again():
    acted = []
    drivers = FakeDrivers([FAILED, WELL])
    stage_with(drivers).while_running(lambda: True, lambda: acted.append(1))
    assert acted == [1]
    assert len(drivers.warm_one.told) == 2


@pytest.mark.parametrize(
    "given",
    [
        {"ignore": "value.at"},
        {"disturbances": "replay"},
        {"steps": "end_txn:after"},
        {"disturbances": []},
        {"disturbances": ["kill end_txn:during"]},
        {"disturbances": ["kill at "]},
        {"steps": ["end_tx:after"]},
        {"input": {"orders": [(1, 2, 3)] * 3}},
        {"input": {"orders": [(1, "a number is no key")] * 3}},
        {"input": {"orders": [1]}},
        {"input": {}},
        {"output": []},
        {"waves": 1},
    ],
)
def test_what_cannot_be_proved_is_refused_before_anything_starts(given):
    rows = {"orders": [1, 2, 3]}
    with pytest.raises((ValueError, TypeError)):
        exactly_once(["never-started"], **{"input": rows, "output": "out", **given})


def test_scripts_end_with_the_drivers_and_say_what_they_printed_last(tmp_path):
    drivers = Drivers({}, tmp_path / "drivers")
    sleeping = [sys.executable, "-c", "import time; print('hello', flush=True); time.sleep(600)"]
    scripts = [drivers.script(tmp_path / str(number), sleeping, "") for number in range(2)]
    ended = drivers.script(tmp_path / "ended", [sys.executable, "-c", ""], "")
    assert ended.wait(60.0) == WELL
    wait_until(lambda: scripts[0].log_tail() == "hello", "the script's first line")
    late = scripts[0].wait(0.0)
    assert late is not None
    assert late.error.endswith("the last line of its log: hello")
    drivers.close()
    assert [each.wait(60.0).died for each in scripts] == [True, True]
