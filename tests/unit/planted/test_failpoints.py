"""Failpoints: armed by the environment, fire once, and kill exactly the driver's processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from planted import failpoints
from planted.failpoints import (
    Failpoint,
    FailpointRaised,
    Interference,
    parse_failpoints,
    reached,
)
from support.brokers.probe import wait_until
from support.core.census import SITE

from txnlog_spark.errors import OptionError

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def arm(monkeypatch, tmp_path):
    """Arms failpoints in this process; each call forgets what has fired in it."""

    def armed(text: str) -> None:
        monkeypatch.setattr(failpoints, "_fired_here", set())
        monkeypatch.setenv(failpoints.ARMED_VARIABLE, text)
        monkeypatch.setenv(failpoints.FIRED_VARIABLE, str(tmp_path / "fired"))

    return armed


def test_nothing_happens_when_nothing_is_armed(monkeypatch):
    monkeypatch.delenv(failpoints.ARMED_VARIABLE, raising=False)
    assert reached("end_txn", "before", 1) is Interference.NONE


def test_entries_are_read():
    text = "end_txn:after:kill-driver@3; produce.first:before:raise ;judge:after:hook:/tmp/a:b@2"
    assert parse_failpoints(text) == (
        Failpoint("end_txn", "after", "kill-driver", 3),
        Failpoint("produce.first", "before", "raise"),
        Failpoint("judge", "after", "hook:/tmp/a:b", 2),
    )


@pytest.mark.parametrize(
    "text", ["end_txn", "end_txn:after", "end_txn:during:raise", "end_txn:after:explode"]
)
def test_a_malformed_entry_is_refused(text):
    with pytest.raises(OptionError, match=r"TXNLOG_FAILPOINTS"):
        parse_failpoints(text)


def test_an_entry_fires_once_and_says_so_before_it_acts(arm):
    arm("end_txn:after:raise@3")
    assert reached("end_txn", "after", 2) is Interference.NONE
    assert reached("end_txn", "before", 3) is Interference.NONE
    with pytest.raises(FailpointRaised):
        reached("end_txn", "after", 3)
    assert failpoints.fired() == ("end_txn:after:raise@3",)
    assert reached("end_txn", "after", 3) is Interference.NONE


def test_an_entry_that_another_process_fired_is_spent(arm):
    arm("end_txn:after:raise")
    with pytest.raises(FailpointRaised):
        reached("end_txn", "after", 0)
    arm("end_txn:after:raise")
    assert reached("end_txn", "after", 0) is Interference.NONE


@pytest.mark.parametrize("action", ["drop-request", "drop-response", "kill-driver-on-send"])
def test_what_concerns_the_next_calls_is_left_to_the_host(arm, action):
    arm(f"end_txn:before:{action}")
    assert reached("end_txn", "before", 0) is Interference(action)


def test_a_hook_waits_until_it_may_go_on(arm, tmp_path):
    arm(f"txn_offset_commit:after:hook:{tmp_path}/hook")
    waiting = threading.Thread(target=reached, args=("txn_offset_commit", "after", 0))
    waiting.start()
    wait_until((tmp_path / "hook.reached").exists, "the hook")
    assert waiting.is_alive()
    (tmp_path / "hook.go").touch()
    waiting.join(timeout=60)
    assert not waiting.is_alive()


KIND_OF_CLIENT = """
from txnlog_spark import client_cache
from txnlog_spark.sink import writers
from txnlog_spark.source.stream import TxnLogStreamReader
{then}
print(client_cache.Client.__name__, writers.commit_streaming.__module__,
      TxnLogStreamReader.commit.__module__)
"""
PLAIN = "Client txnlog_spark.sink.committer txnlog_spark.source.stream\n"
ARMED = "FaultInjectingClient planted.failpoints planted.failpoints\n"


@pytest.mark.parametrize(
    ("site", "armed", "then", "printed"),
    [
        pytest.param(True, "end_txn:after:raise", "", ARMED, id="imported later"),
        pytest.param(
            False,
            "end_txn:after:raise",
            "import planted.arming; planted.arming.arm_if_asked()",
            ARMED,
            id="imported before, as in a warm Python",
        ),
        pytest.param(True, "", "", PLAIN, id="nothing is armed"),
        pytest.param(False, "end_txn:after:kill-self", "", PLAIN, id="the variable alone"),
    ],
)
def test_failpoints_come_into_the_connector_from_the_tests_alone(site, armed, then, printed):
    path = [*([SITE] if site else []), REPOSITORY, REPOSITORY / "tests"]
    environment = os.environ | {
        failpoints.ARMED_VARIABLE: armed,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
    }
    program = KIND_OF_CLIENT.format(then=then)
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout == printed
