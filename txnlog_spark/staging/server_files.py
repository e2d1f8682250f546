"""What the process that starts the staging server and the server itself share: names of files, and
directories of this user alone."""

from __future__ import annotations

from pathlib import Path

from txnlog_kafka.host.processes import is_private
from txnlog_spark.errors import StagingFailed

SOCKET_FILE = "socket"
START_FILE = "start.lock"
ALIVE_FILE = "alive.lock"
"""Locked by the server as long as it lives; holds its process id."""
LOG_FILE = "server.log"
BACKLOG = 1024
STAGED_SUFFIX = ".staged"


def make_private(*directories: Path) -> None:
    """Make them, each in the one before. Raises StagingFailed where somebody else has."""
    for each in directories:
        each.mkdir(mode=0o700, exist_ok=True)
        check_private(each)


def check_private(*directories: Path) -> None:
    """Raise StagingFailed for one that others may enter, or have made."""
    for each in directories:
        if not is_private(each):
            raise StagingFailed(
                f"{each} is not a directory of this user alone: remove it, or set TMPDIR and "
                "stagingDirectory"
            )
