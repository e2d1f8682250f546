"""Processes of this machine: the application, and whether a process lives; locks, private files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import select
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

APPLICATION_VARIABLE = "TXNLOG_APPLICATION_PID"
"""A variable of processes that `txnlog-python` has forked, and of those that they start."""
_START_TIME_FIELD = 19
"""Index in /proc/PID/stat, counted from the state, which follows the name in parentheses."""
_POLL_S = 0.05
"""Interval of looking, if the end of a process cannot be waited for."""


def start_time(pid: int) -> str | None:
    """Return when a process started, as the system writes it; None if it is gone or cannot be
    looked at.

    The system uses a process id again, but never with the same start. A process that has ended and
    whose parent has not waited for it counts as gone.
    """
    try:
        return _look_at_process(pid)
    except OSError:
        return None


def has_ended(pid: int, started: str | None) -> bool:
    """True if the process with this id and start is gone; False if it cannot be looked at.

    `started` None: the process was gone when it was looked at first.
    """
    try:
        found = _look_at_process(pid)
    except OSError:
        return False
    return found is None or found != started


def _look_at_process(pid: int) -> str | None:
    """Return the start of a process, None if it is gone. Raises OSError if it cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _look_by_ps(pid)
    except ProcessLookupError:  # it ended while it was read
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[_START_TIME_FIELD]


def _ps(fields: str, pid: int) -> str | None:
    """Return the output of ps for a process, in one form for all processes; None without output."""
    asked = ["ps", "-o", fields, "-p", str(pid)]
    environment = os.environ | {"LC_ALL": "C", "TZ": "UTC"}
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=True, env=environment)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def _look_by_ps(pid: int) -> str | None:
    """Look at a process on a system without /proc, such as macOS."""
    found = (_ps("stat=,lstart=", pid) or "").split()
    if found:
        return None if found[0].startswith("Z") else " ".join(found[1:])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    raise OSError(f"ps says nothing of process {pid}, which is there")


def wait_for_end(pid: int, timeout_s: float) -> None:
    """Return when the process has ended, at the latest after `timeout_s`."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):  # not on every system; or it ended just now
        time.sleep(min(timeout_s, _POLL_S))
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(timeout_s * 1000)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[TextIO]:
    """Wait for an exclusive lock on this file; yield the file, open.

    A link is refused: if others may write the folder, the link may lead to another file of this
    user.
    """
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def is_private(directory: Path) -> bool:
    """True if it is a directory of this user alone: in a shared folder others may have made it."""
    found = directory.lstat()
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and stat.S_IMODE(found.st_mode) & 0o077 == 0
    )


def remove_directory(directory: Path) -> None:
    """Remove a directory with all its content, renamed first: another process may create it again.

    The new name is random: a name by the process id may be left over from a process that was killed
    here.
    """
    ended = directory.with_name(f"{directory.name}.{secrets.token_hex(8)}.ended")
    # Another process may have removed the directory first. If the directory cannot be removed, it
    # takes space, and does no other harm.
    with contextlib.suppress(OSError):
        directory.rename(ended)
        shutil.rmtree(ended, ignore_errors=True)


def application_pid() -> int:
    """Return the process whose end is the application's: the nearest ancestor JVM, else the JVM of
    a process that `txnlog-python` has forked, else this process."""
    pid = os.getpid()
    while pid >= 1:  # in a container the JVM may be the first process
        found = _name_and_parent(pid)
        if found is None:
            break
        name, parent = found
        if name == "java":
            return pid
        pid = parent
    if (jvm := os.environ.get(APPLICATION_VARIABLE)) is not None:
        found = _name_and_parent(int(jvm))
        if found is not None and found[0] == "java":
            return int(jvm)
    return os.getpid()


def _name_and_parent(pid: int) -> tuple[str, int] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _name_and_parent_by_ps(pid)
    name, rest = stat[stat.index("(") + 1 :].rsplit(")", 1)
    return name, int(rest.split()[1])


def _name_and_parent_by_ps(pid: int) -> tuple[str, int] | None:
    """Return name and parent on a system without /proc, such as macOS."""
    try:
        parent, command = (_ps("ppid=,comm=", pid) or "").split(maxsplit=1)
        return Path(command.strip()).name, int(parent)
    except ValueError:
        return None
