"""Processes of a Spark application, found in /proc: the driver's JVM and the Python below it."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def kill_driver() -> None:
    """SIGKILL the Spark JVM, its Python children and this process; does not return."""
    signal_driver(signal.SIGKILL)


def signal_driver(number: signal.Signals) -> None:
    """Send a signal to the driver's JVM, its Python descendants, and this process last.

    The JVM is the nearest ancestor, or the child of a driver that a Python process started.
    """
    processes = _processes()
    jvm = _ancestor_jvm(processes, os.getpid()) or _child_jvm(processes, os.getpid())
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


def _ancestor_jvm(processes: dict[int, tuple[int, str]], pid: int) -> int | None:
    while pid in processes:
        parent, name = processes[pid]
        if name == "java":
            return pid
        pid = parent
    return None


def _child_jvm(processes: dict[int, tuple[int, str]], pid: int) -> int | None:
    return next((each for each, found in processes.items() if found == (pid, "java")), None)


def signal_all(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and to all below it, from the top."""
    for each in _descendants(_processes(), pid):
        _send(each, number)


def _descendants(processes: dict[int, tuple[int, str]], root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, ())
    return found


def _python_descendants(processes: dict[int, tuple[int, str]], root: int) -> list[int]:
    below = _descendants(processes, root)[1:]
    return [pid for pid in below if "python" in processes[pid][1]]
