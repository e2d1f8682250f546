"""Processes of a Spark application, found in /proc: the driver's JVM and the Python below it."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from txnlog_kafka.processes import application_pid


def kill_driver() -> None:
    """SIGKILL the Spark JVM, its Python children and this process; does not return."""
    signal_driver(signal.SIGKILL)


def signal_driver(number: signal.Signals) -> None:
    """Send a signal to the driver's JVM, its Python descendants, and this process last.

    The JVM is a child of a Python process that started it, and in Spark's own Python processes the
    nearest ancestor. A child comes first: tests may run below another JVM, such as an editor's.
    """
    processes, own = _processes(), os.getpid()
    jvm = _child_jvm(processes, own) or application_pid()
    below = _descendants(processes, jvm)
    _send([pid for pid in below if pid == jvm or "python" in processes[pid][1]] + [own], number)


def signal_all(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and to all below it, from the top, and to this process last."""
    _send(_descendants(_processes(), pid), number)


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in sorted(dict.fromkeys(pids), key=lambda each: each == os.getpid()):
        # The process may have ended since /proc was read, for example along with its parent.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _processes() -> dict[int, tuple[int, str]]:
    """Return (parent pid, command name) by pid, from /proc; empty if there is no /proc."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text(encoding="utf-8", errors="replace")
        except OSError:
            # The process has ended since /proc was listed, so it needs no signal.
            continue
        pid, _, rest = text.partition(" (")
        name, _, fields = rest.rpartition(") ")
        found[int(pid)] = (int(fields.split()[1]), name)
    # The parent of a server of `txnlog-python` may have ended: the server's last argument is its
    # JVM. The processes that it forks have the same arguments.
    servers = {pid: jvm for pid in found if (jvm := _jvm_of_forks(pid)) is not None}
    for server, jvm in servers.items():
        if found[server][0] not in servers:
            found[server] = (jvm, found[server][1])
    return found


def _jvm_of_forks(pid: int) -> int | None:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return int(words[-2]) if b"txnlog_python.server" in words else None


def _child_jvm(processes: dict[int, tuple[int, str]], pid: int) -> int | None:
    return next((each for each, found in processes.items() if found == (pid, "java")), None)


def _descendants(processes: dict[int, tuple[int, str]], root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, ())
    return found
