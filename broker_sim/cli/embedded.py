"""The brokers that a command talks to: those of --bootstrap-server, or the embedded one of --path.

The embedded broker is found and started as the connector does it, so that a command and a job never
run two brokers on one directory. A broker that the command started is stopped before the command
ends: the next one, or the job, then finds the directory free.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from broker_sim.cli.cluster import Refused
from txnlog_spark.embedded import ADDRESS_FILE, ensure_broker

STOP_S_MAX = 30.0
_POLL_S = 0.02


@contextlib.contextmanager
def servers_of(options: argparse.Namespace) -> Iterator[str]:
    """`host:port,host:port` of the options. Raises Refused, TxnLogError when none can be had."""
    if options.path is None:
        yield options.bootstrap_server
        return
    try:
        servers = ensure_broker(options.path)
    except OSError as error:
        raise Refused(f"--path {options.path}: {error.strerror or error}") from error
    try:
        yield servers
    finally:
        _stop_own(Path(options.path))


def _stop_own(directory: Path) -> None:
    """Stop the recorded broker if it is a child of this process, which then started it."""
    try:
        pid = int(json.loads((directory / ADDRESS_FILE).read_text())["pid"])
        if _has_ended(pid):
            return
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError, KeyError, TypeError):
        return  # no child of ours (ChildProcessError), or nothing recorded any more
    deadline = time.monotonic() + STOP_S_MAX
    while not _has_ended(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _has_ended(pid: int) -> bool:
    """Whether a child has ended. Raises ChildProcessError when it is none."""
    return os.waitpid(pid, os.WNOHANG)[0] == pid
