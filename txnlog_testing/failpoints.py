"""Failpoints: named places where a test may kill, stop or fail the driver.

Nothing of this is in the connector. A test that breaks a job puts `SITE` on PYTHONPATH, and arms by
the environment; so it reaches every Python process of a Spark application
(`txnlog_testing.arming`):

    TXNLOG_FAILPOINTS="end_txn:after:kill-driver@3;produce.first:after:raise"
    TXNLOG_FAILPOINTS_FIRED=/path/of/a/file
    TXNLOG_FAILPOINTS_REACHED=/path/of/another

`TXNLOG_FAILPOINTS=@/path` reads the entries from that file each time, so that a process that runs
can be armed. The third variable names a file that gets a line for each step that is reached. Each
entry is step:when:action with an optional @batch id, and fires once: it appends a line to the
file named by TXNLOG_FAILPOINTS_FIRED *before* it acts, and an entry that is in that file is spent,
also for the process that is started after the kill. Without the file it is once per process.

    kill-driver      SIGKILL the Spark JVM, its Python children, and this process
    kill-self        SIGKILL this process
    stop-driver      SIGSTOP the JVM, its Python children and this process; a test sends SIGCONT
    raise            raise FailpointRaised
    drop-request     the next requests are not sent, and their outcome is unknown
    drop-response    the next requests are sent and answered, and their outcome is unknown
    kill-driver-on-send  kill-driver as soon as the next requests have been written to the socket
    hook:<path>      create <path>.reached and wait until <path>.go exists
"""

from __future__ import annotations

import enum
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from txnlog_spark.errors import OptionError, TxnLogError
from txnlog_testing.processes import kill_driver, signal_driver
from txnlog_testing.variables import ARMED_VARIABLE, FIRED_VARIABLE, REACHED_VARIABLE

SITE = Path(__file__).with_name("process_site")
"""Folder for PYTHONPATH: its `sitecustomize` arms each Python process that starts."""
HOOK_WAIT_S_MAX = 600.0
HOOK_PAUSE_S = 0.05
_ACTIONS = (
    "kill-driver",
    "kill-self",
    "stop-driver",
    "raise",
    "drop-request",
    "drop-response",
    "kill-driver-on-send",
)

STEPS = (
    "look_up",
    "init_producer_id",
    "judge",
    "add_partitions",
    "add_offsets",
    "txn_offset_commit",
    "produce",
    "produce.first",
    "produce.middle",
    "produce.last",
    "end_txn",
)
"""The failpoints that a commit reaches; txn_offset_commit and produce at the same time."""
ALL_STEPS = (*STEPS, "collect", "offset_log", "commit_log", "source_commit", "write")
"""The same with those around a commit, and around the writes of a foreachBatch."""


ANY_BATCH = -1
"""Spark does not tell a source which batch it plans: a failpoint there cannot name one."""


class FailpointRaised(TxnLogError):
    """The action `raise`."""

    condition = "TXNLOG_FAILPOINT"


class Interference(enum.Enum):
    """Interference with the requests that are sent next, up to the first wait after one of them."""

    NONE = "none"
    DROP_REQUEST = "drop-request"
    DROP_RESPONSE = "drop-response"
    KILL_ON_SEND = "kill-driver-on-send"


@dataclass(frozen=True, slots=True)
class ArmedFailpoint:
    """Armed entry; with `batch_id` None it fires at the first batch that comes along."""

    step: str
    when: str
    action: str
    batch_id: int | None = None

    @property
    def text(self) -> str:
        """The entry as it was written: its name in the file of fired ones."""
        batch = "" if self.batch_id is None else f"@{self.batch_id}"
        return f"{self.step}:{self.when}:{self.action}{batch}"

    def matches(self, step: str, when: str, batch_id: int) -> bool:
        """True if the failpoint belongs to this step of this batch."""
        return (self.step, self.when) == (step, when) and self.batch_id in (None, batch_id)


def parse_failpoints(text: str) -> tuple[ArmedFailpoint, ...]:
    """Return the entries of TXNLOG_FAILPOINTS. Raises OptionError for an invalid entry."""
    return tuple(_parse_entry(entry.strip()) for entry in text.split(";") if entry.strip())


def _parse_entry(entry: str) -> ArmedFailpoint:
    parts = entry.split(":", 2)
    if len(parts) != 3 or parts[1] not in ("before", "after"):
        raise OptionError(ARMED_VARIABLE, entry, "expected step:before|after:action[@batch id]")
    action, separator, batch = parts[2].rpartition("@")
    if not separator or not batch.isdigit():
        action, batch = parts[2], ""
    if action not in _ACTIONS and not action.startswith("hook:"):
        allowed = ", ".join((*_ACTIONS, "hook:<path>"))
        raise OptionError(ARMED_VARIABLE, entry, f"the action must be one of {allowed}")
    return ArmedFailpoint(parts[0], parts[1], action, int(batch) if batch else None)


_fired_here: set[str] = set()


def reached(step: str, when: str, batch_id: int) -> Interference:
    """Act on the failpoints armed for this place; a no-op unless the environment arms some.

    Raises FailpointRaised for the action `raise`, and OptionError for a malformed environment.
    """
    armed = _armed_text()
    _note_reached(step, when)
    if not armed:
        return Interference.NONE
    for failpoint in parse_failpoints(armed):
        if failpoint.matches(step, when, batch_id) and _fire_once(failpoint):
            return _perform_action(failpoint)
    return Interference.NONE


def _armed_text() -> str:
    text = os.environ.get(ARMED_VARIABLE, "")
    if not text.startswith("@"):
        return text
    path = Path(text.removeprefix("@"))
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _note_reached(step: str, when: str) -> None:
    name, place = os.environ.get(REACHED_VARIABLE), f"{step}:{when}"
    if name and place not in lines_of(name):
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(place + "\n")


def _fire_once(failpoint: ArmedFailpoint) -> bool:
    """Record that it fires; False when it has fired before."""
    if failpoint.text in _fired_here or failpoint.text in fired():
        return False
    _fired_here.add(failpoint.text)
    name = os.environ.get(FIRED_VARIABLE)
    if name:
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(failpoint.text + "\n")
            file.flush()
            os.fsync(file.fileno())
    return True


def fired() -> tuple[str, ...]:
    """The entries that have fired, in their order, by any process that shares the file."""
    return lines_of(os.environ.get(FIRED_VARIABLE))


def lines_of(name: str | Path | None) -> tuple[str, ...]:
    """Return the lines of a file that may not be there."""
    if not name or not Path(name).exists():
        return ()
    return tuple(Path(name).read_text(encoding="utf-8").splitlines())


def _perform_action(failpoint: ArmedFailpoint) -> Interference:
    action = failpoint.action
    if action.startswith("hook:"):
        _wait_for_hook(action.removeprefix("hook:"))
        return Interference.NONE
    if action == "kill-driver":
        kill_driver()
    elif action == "kill-self":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop-driver":
        signal_driver(signal.SIGSTOP)
    elif action == "raise":
        raise FailpointRaised(f"failpoint {failpoint.text}")
    else:
        return Interference(action)
    return Interference.NONE


def _wait_for_hook(path: str) -> None:
    Path(path + ".reached").touch()
    deadline, go = time.monotonic() + HOOK_WAIT_S_MAX, Path(path + ".go")
    while not go.exists():
        if time.monotonic() > deadline:
            raise FailpointRaised(f"failpoint hook: {go} did not come in {HOOK_WAIT_S_MAX:g} s")
        time.sleep(HOOK_PAUSE_S)
