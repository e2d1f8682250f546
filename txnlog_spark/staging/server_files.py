"""File names and private directories that the staging server shares with the process that starts
it."""

from __future__ import annotations

from pathlib import Path

from txnlog_kafka.processes import is_private
from txnlog_spark.errors import StagingFailed

SOCKET_FILE = "socket"
START_FILE = "start.lock"
ALIVE_FILE = "alive.lock"
"""Lock that the server holds while it lives; the file contains its process id."""
LOG_FILE = "server.log"
BACKLOG = 1024
STAGED_SUFFIX = ".staged"


def make_private(*directories: Path) -> None:
    """Make private directories, each inside the one before. Raises StagingFailed if another user
    made one."""
    for each in directories:
        each.mkdir(mode=0o700, exist_ok=True)
        check_private(each)


def check_private(*directories: Path) -> None:
    """Raise StagingFailed for a directory that another user made or may enter."""
    for each in directories:
        if not is_private(each):
            raise StagingFailed(
                f"{each} is not a directory of this user alone: remove it, or set TMPDIR and "
                "stagingDirectory"
            )


def last_line(directory: Path) -> str:
    """Return the last line of the log of the server in `directory`, for an error; "" without a
    log: the server runs on another machine, or has ended in order."""
    try:
        lines = (directory / LOG_FILE).read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f"{lines[-1]} (see {directory / LOG_FILE})" if lines else ""
