"""Failpoints: armed by the environment, fire once, and kill exactly the driver's processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.brokers.probe import wait_until
from support.core.object_counts import SITE

from txnlog_spark.errors import OptionError
from txnlog_testing import failpoints
from txnlog_testing.failpoints import (
    ArmedFailpoint,
    FailpointRaised,
    Interference,
    parse_failpoints,
    reached,
)
from txnlog_testing.variables import ARMED_VARIABLE, FIRED_VARIABLE

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def arm(monkeypatch, tmp_path):
    """Arms failpoints in this process; each call forgets what has fired in it."""

    def armed(text: str) -> None:
        monkeypatch.setattr(failpoints, "_fired_here", set())
        monkeypatch.setenv(ARMED_VARIABLE, text)
        monkeypatch.setenv(FIRED_VARIABLE, str(tmp_path / "fired"))

    return armed


def test_nothing_happens_when_nothing_is_armed(monkeypatch):
    monkeypatch.delenv(ARMED_VARIABLE, raising=False)
    assert reached("end_txn", "before", 1) is Interference.NONE


def test_entries_are_read():
    text = "end_txn:after:kill-driver@3; produce.first:before:raise ;judge:after:hook:/tmp/a:b@2"
    assert parse_failpoints(text) == (
        ArmedFailpoint("end_txn", "after", "kill-driver", 3),
        ArmedFailpoint("produce.first", "before", "raise"),
        ArmedFailpoint("judge", "after", "hook:/tmp/a:b", 2),
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
    waiting.join(timeout=600)
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
ARMED = "FaultInjectingClient txnlog_testing.points txnlog_testing.points\n"


@pytest.mark.parametrize(
    ("site", "armed", "then", "printed"),
    [
        pytest.param(True, "end_txn:after:raise", "", ARMED, id="imported later"),
        pytest.param(
            False,
            "end_txn:after:raise",
            "import txnlog_testing.arming; txnlog_testing.arming.arm_if_asked()",
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
        ARMED_VARIABLE: armed,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
    }
    program = KIND_OF_CLIENT.format(then=then)
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout == printed


CHILD = """
import sys, time
from pathlib import Path
sys.path[:0] = {roots!r}
Path({ready!r}).touch()
while not Path({go!r}).exists():
    time.sleep(0.01)
from txnlog_testing import failpoints
failpoints.reached("end_txn", "before", 0)
Path({survived!r}).touch()
"""

FAKE_JVM = """
import subprocess, sys, time
from pathlib import Path
Path("/proc/self/comm").write_text("java")
others = [subprocess.Popen([{python!r}, "-c", "import time; time.sleep(60)"]),
          subprocess.Popen([{python!r}, {child!r}])]
written = Path({pids!r} + ".new")
written.write_text(" ".join(str(p.pid) for p in others))
written.rename({pids!r})
time.sleep(60)
"""


def state_of(pid: int) -> str:
    """Return the process's state letter, or "gone" for a missing process or a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return "gone"
    return "gone" if state == "Z" else state


@pytest.fixture
def driver(tmp_path):
    """A process named java with two Python children; one of them reaches a failpoint on demand."""
    if not Path("/proc/self/comm").exists():
        pytest.skip("needs /proc")
    paths = {n: str(tmp_path / n) for n in ("ready", "go", "survived", "pids", "child.py")}
    child = CHILD.format(roots=[str(REPOSITORY), str(REPOSITORY / "tests")], **paths)
    Path(paths["child.py"]).write_text(child)
    jvm_code = FAKE_JVM.format(python=sys.executable, child=paths["child.py"], pids=paths["pids"])
    running = []

    def start(action: str) -> tuple[list[int], Path]:
        environment = os.environ | {
            ARMED_VARIABLE: f"end_txn:before:{action}",
            FIRED_VARIABLE: str(tmp_path / "fired"),
        }
        jvm = subprocess.Popen([sys.executable, "-c", jvm_code], env=environment)
        running.append(jvm)
        for name in ("pids", "ready"):
            wait_until(Path(paths[name]).exists, f"{name} of the driver's children")
        pids = [jvm.pid, *map(int, Path(paths["pids"]).read_text().split())]
        Path(paths["go"]).touch()
        return pids, Path(paths["survived"])

    yield start
    for jvm in running:
        listed = Path(paths["pids"]).read_text().split()
        for pid in [*map(int, listed), jvm.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        jvm.wait()


def test_kill_driver_ends_the_jvm_and_its_python_children(driver, tmp_path):
    pids, survived = driver("kill-driver")
    wait_until(lambda: all(state_of(p) == "gone" for p in pids), "the driver to be gone")
    assert not survived.exists()
    assert (tmp_path / "fired").read_text() == "end_txn:before:kill-driver\n"


def test_stop_driver_stops_all_and_they_go_on_when_told(driver):
    pids, survived = driver("stop-driver")
    wait_until(lambda: all(state_of(p) == "T" for p in pids), "the driver to be stopped")
    assert not survived.exists()
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    wait_until(survived.exists, "the driver to go on")


def test_kill_self_leaves_the_others_alone(driver):
    pids, survived = driver("kill-self")
    wait_until(lambda: state_of(pids[2]) == "gone", "the child to be gone")
    assert not survived.exists()
    assert state_of(pids[0]) != "gone"
    assert state_of(pids[1]) != "gone"


EDITOR = """
import subprocess, sys, time
from pathlib import Path
Path("/proc/self/comm").write_text("java")
driver = subprocess.Popen([{python!r}, "-c", {driver!r}])
driver.wait()
Path({survived!r}).touch()
"""
STARTED_BY_PYTHON = """
import os, subprocess, sys, time
from pathlib import Path
sys.path[:0] = {roots!r}
jvm = subprocess.Popen([{python!r}, "-c", "from pathlib import Path; import time; "
                        "Path('/proc/self/comm').write_text('java'); time.sleep(60)"])
while Path(f"/proc/{{jvm.pid}}/comm").read_text() != "java\\n":
    time.sleep(0.01)
Path({pids!r}).write_text(f"{{jvm.pid}} {{os.getpid()}}")
from txnlog_testing import processes
processes.kill_driver()
"""


def test_a_jvm_above_a_driver_that_python_started_is_left_alone(tmp_path):
    if not Path("/proc/self/comm").exists():
        pytest.skip("needs /proc")
    pids, survived = tmp_path / "pids", tmp_path / "survived"
    code = STARTED_BY_PYTHON.format(roots=[str(REPOSITORY)], python=sys.executable, pids=str(pids))
    editor = EDITOR.format(python=sys.executable, driver=code, survived=str(survived))
    assert subprocess.run([sys.executable, "-c", editor], check=False).returncode == 0
    assert survived.exists()
    assert [state_of(int(pid)) for pid in pids.read_text().split()] == ["gone", "gone"]
