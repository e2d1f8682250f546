"""Failpoints: named places where a test may kill, stop or fail the driver.

Nothing of this is in the connector. A test puts `support/process_site` on PYTHONPATH, and arms by
the environment; so it reaches every Python process of a Spark application (`planted.arming`):

    TXNLOG_FAILPOINTS="end_txn:after:kill-driver@3;produce.first:after:raise"
    TXNLOG_FAILPOINTS_FIRED=/path/of/a/file

Each entry is step:when:action with an optional @batch id, and fires once: it appends a line to the
file named by TXNLOG_FAILPOINTS_FIRED *before* it acts, and an entry that is in that file is spent,
also for the process that is started after the kill. Without the file it is once per process.

    kill-driver      SIGKILL the Spark JVM (the nearest ancestor named java), its Python children,
                     and this process
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.brokers.probe import wait_until

from planted.arming import ARMED_VARIABLE
from txnlog_kafka.host.client import Client, Requests
from txnlog_kafka.operations.effects import Ask, Call, Failpoint, Outcome, Reply, Ticket, Unanswered
from txnlog_spark.errors import OptionError, TxnLogError

FIRED_VARIABLE = "TXNLOG_FAILPOINTS_FIRED"
HOOK_WAIT_S_MAX = 600.0
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
    armed = os.environ.get(ARMED_VARIABLE)
    if not armed:
        return Interference.NONE
    for failpoint in parse_failpoints(armed):
        if failpoint.matches(step, when, batch_id) and _fire_once(failpoint):
            return _act(failpoint)
    return Interference.NONE


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
    name = os.environ.get(FIRED_VARIABLE)
    if not name or not Path(name).exists():
        return ()
    return tuple(Path(name).read_text(encoding="utf-8").splitlines())


def _act(failpoint: ArmedFailpoint) -> Interference:
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
    wait_until(Path(path + ".go").exists, f"file {path}.go", timeout_s=HOOK_WAIT_S_MAX)


def kill_driver() -> None:
    """SIGKILL the Spark JVM, its Python children and this process; does not return."""
    signal_driver(signal.SIGKILL)


def signal_driver(number: signal.Signals) -> None:
    """Send a signal to the nearest ancestor JVM, its Python descendants, and this process last."""
    processes = _processes()
    jvm = _ancestor_jvm(processes, os.getpid())
    victims = [] if jvm is None else [jvm, *_python_descendants(processes, jvm)]
    for pid in victims:
        if pid != os.getpid():
            _send(pid, number)
    os.kill(os.getpid(), number)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _processes() -> dict[int, tuple[int, str]]:
    """Return (parent pid, command name) by pid, from /proc; empty if there is no /proc."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        pid, _, rest = text.partition(" (")
        name, _, fields = rest.rpartition(") ")
        found[int(pid)] = (int(fields.split()[1]), name)
    # The parent of a server of `txnlog-python` may have ended: the server's last argument is its
    # JVM. The processes that it forks have the same arguments.
    servers = {pid: jvm for pid in found if (jvm := _jvm_of_forks(pid)) is not None}
    for pid, jvm in servers.items():
        if found[pid][0] not in servers:
            found[pid] = (jvm, found[pid][1])
    return found


def _jvm_of_forks(pid: int) -> int | None:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return int(words[-2]) if b"txnlog_python.server" in words else None


def _ancestor_jvm(processes: dict[int, tuple[int, str]], pid: int) -> int | None:
    while pid in processes:
        parent, name = processes[pid]
        if name == "java":
            return pid
        pid = parent
    return None


def _python_descendants(processes: dict[int, tuple[int, str]], root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    found, queue = [], list(children.get(root, ()))
    while queue:
        pid = queue.pop(0)
        queue += children.get(pid, ())
        if "python" in processes[pid][1]:
            found.append(pid)
    return found


class FaultInjectingClient(Client):
    """A client whose operations stop at failpoints, and lose requests and answers there."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._interference = Interference.NONE
        self._has_interfered = False
        self._lost: set[Ticket] = set()

    def _perform_ask(self, ask: Ask, requests: Requests) -> Outcome:
        if isinstance(ask, Failpoint):
            found = reached(ask.step, ask.when, ask.batch_id)
            if not self._has_interfered:  # else a step of the other half, at the same time
                self._interference = found
            return None
        return super()._perform_ask(ask, requests)

    def _send_call(self, call: Call, requests: Requests) -> Ticket:
        self._has_interfered = self._interference is not Interference.NONE
        if self._interference is Interference.DROP_REQUEST:
            return requests.add(Unanswered("failpoint: not sent", sent=True))
        ticket = super()._send_call(call, requests)
        if self._interference is Interference.DROP_RESPONSE:
            self._lost.add(ticket)
        return ticket

    def _receive_outcome(
        self, tickets: frozenset[Ticket], within_ms: int | None, requests: Requests
    ) -> tuple[Ticket, Reply | Unanswered] | None:
        if self._has_interfered:
            if self._interference is Interference.KILL_ON_SEND:
                self._write_all()
                kill_driver()
            self._interference, self._has_interfered = Interference.NONE, False
        received = super()._receive_outcome(tickets, within_ms, requests)
        if received is not None and received[0] in self._lost:
            self._lost.remove(received[0])
            return received[0], Unanswered("failpoint: answer dropped", sent=True)
        return received

    def _write_all(self) -> None:
        while any(c.wants_write or not c.is_ready for c in self._connections.values()):
            self._wait_for_sockets()


def arm_clients(module: Any) -> None:
    """Make all clients of `txnlog_spark.client_cache` obey failpoints."""
    module.Client = FaultInjectingClient


def arm_reader(module: Any) -> None:
    """Put failpoints into `txnlog_spark.source.stream`: around Spark's log of offsets, and its
    commit."""
    reader = module.TxnLogStreamReader
    latest_offset, partitions, commit = reader.latestOffset, reader.partitions, reader.commit

    def planned(self: Any, start: Any, limit: Any) -> Any:
        end = latest_offset(self, start, limit)
        if end != start:
            reached("offset_log", "before", ANY_BATCH)
        return end

    def tasks(self: Any, start: Any, end: Any) -> Any:
        reached("offset_log", "after", ANY_BATCH)
        return partitions(self, start, end)

    def committed(self: Any, end: Any) -> None:
        commit(self, end)
        reached("source_commit", "before", ANY_BATCH)

    reader.latestOffset, reader.partitions, reader.commit = planned, tasks, committed


def arm_writer(module: Any) -> None:
    """Put failpoints into `txnlog_spark.sink.writers`: before Spark notes that the batch is done,
    of a stream or in foreachBatch."""
    commit = module.commit_streaming

    def committed(settings: Any, messages: Any, batch_id: int, run_id: str) -> None:
        commit(settings, messages, batch_id, run_id)
        reached("commit_log", "before", batch_id)

    module.commit_streaming = committed
