"""Process of the embedded broker: the cluster of `format("txnlog")` with a path instead of servers.

`ensure_broker(path)` returns the address of the one broker whose data is under `path`. If no broker
runs there, it starts one as a process of its own: `python -m broker_sim start`. The first process
starts the broker, under a file lock, and writes the address beside the data; the other processes
read it there.

The broker ends with the application that started it (its JVM, else this process), or later, when
the last client of other applications has gone; its data stays. A broker that is about to end holds
the data a little longer: a process that comes then waits for its end, and starts the next broker.

If there is no data, only a process that writes creates a broker: a reader of a mistyped path would
get an empty broker. An address is believed only if the cluster that was started here answers at it:
process ids and ports are used again, for example by the brokers of other directories.

This module never imports `broker_sim`: the connector ships without it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from txnlog_kafka.errors import DeadlineExceeded, OptionError, TxnLogError, do_this
from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.calls import call
from txnlog_kafka.operations.effects import ANY_NODE, Call, Operation, Unanswered
from txnlog_kafka.processes import application_pid, has_ended, locked, start_time, wait_for_end
from txnlog_kafka.wire.messages import APIS, ApiKey

START_TIMEOUT_S = 60.0
ADDRESS_FILE = "embedded.json"
LOCK_FILE = "embedded.lock"
DATA_FILE = "data/meta.properties"
ADDRESS_VERSION = 3
"""Version of the address file: 1 had no cluster id, 2 had no start of the process."""
CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_MS = 15_000
"""Timeout of the broker's answer. A broker may be busy with a large batch; another server on the
port may never answer."""
END_POLL_S = 0.2
"""Interval between questions to a broker that does not answer, and has not ended."""
READY_PREFIX = "READY bootstrap.servers="
LOCKED = "another broker is running on"
"""Text that the broker prints if another broker holds the data."""


def ensure_broker(path: str, *, is_made: bool) -> str:
    """Return the `host:port` of the embedded broker under `path`; start it if it is not running.

    `is_made`: a folder without a broker's data gets a broker. Raises OptionError if there is no
    `broker_sim` to start, or no folder of a broker. Raises TxnLogError if the broker does not
    start, or if the broker before it neither answers nor ends.
    """
    if not path:
        raise OptionError("path", path, "name the folder of the embedded broker, such as .")
    directory = Path(path).absolute()
    address = _running_at(directory)
    if address is not None:
        return address
    if importlib.util.find_spec("broker_sim") is None:
        raise OptionError(
            "kafka.bootstrap.servers",
            None,
            "set it to host:port of a cluster (broker_sim, the embedded broker, is not installed)",
        )
    try:
        _check_folder(path, directory, is_made=is_made)
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory / LOCK_FILE):
            return _running_or_gone(directory) or _start_broker(directory)
    except OSError as error:
        reason = f"{error.strerror or error}: {error.filename or directory}"
        raise OptionError("path", path, f"no broker can be started there, {reason}") from error


def _check_folder(path: str, directory: Path, *, is_made: bool) -> None:
    """Raise OptionError unless a broker has its data there, or a broker is made and can have it."""
    found = str(directory)
    if directory.is_symlink() and not directory.exists():
        target = directory.readlink()
        raise OptionError("path", path, f"{found} is a link to {target}, which does not exist")
    if directory.exists() and not directory.is_dir():
        raise OptionError("path", path, f"{found} is a file: name the folder of a broker")
    # The lock is there first: another process may be making the data now.
    if not is_made and not any((directory / each).exists() for each in (LOCK_FILE, DATA_FILE)):
        raise OptionError(
            "path",
            path,
            f"there is no broker's data at {found}: correct the path. The first query that writes "
            "there creates a broker",
        )


def running_broker(path: str) -> str | None:
    """Return `host:port` of the embedded broker under `path`, None if none runs; start nothing."""
    return _running_at(Path(path).absolute())


def _running_or_gone(directory: Path) -> str | None:
    """Return the recorded address once it answers, or None once the recorded process is gone.

    The broker's application may have just ended, or the machine is overloaded: a second broker
    would find the data locked.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        address = _running_at(directory)
        pid = None if address is not None else _recorded_process(directory)
        if pid is None:
            return address
        left = deadline - time.monotonic()
        if left <= 0:
            raise TxnLogError(
                f"the embedded broker of {directory} (process {pid}) has neither answered nor "
                f"ended for {START_TIMEOUT_S:.0f} s: if it hangs, end it and start the query "
                "again, its data is safe; or give another path"
                + do_this(f"kill -9 {pid}", "if it hangs")
            )
        wait_for_end(pid, min(left, END_POLL_S))


def _recorded_process(directory: Path) -> int | None:
    """Return the id of the recorded process if it lives, and is still the broker."""
    try:
        recorded: dict[str, Any] = json.loads((directory / ADDRESS_FILE).read_text())
        pid, started = int(recorded["pid"]), str(recorded["pid.started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if start_time(pid) == started else None


def _running_at(directory: Path) -> str | None:
    """Return the recorded address, if its process lives and the recorded cluster answers there."""
    try:
        recorded: dict[str, Any] = json.loads((directory / ADDRESS_FILE).read_text())
        address, pid = str(recorded["bootstrap.servers"]), int(recorded["pid"])
        cluster_id = str(recorded["cluster.id"])
        if has_ended(pid, start_time(pid)):
            return None  # another server on its port may never answer
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S):
            pass
        return address if _cluster_id(address) == cluster_id else None
    except (OSError, ValueError, KeyError, TypeError, TxnLogError):
        return None


def _cluster_id(address: str) -> str:
    """Return the id of the cluster that answers at this address. Raises TxnLogError."""
    with Client(address) as client:
        return client.run(_ask_cluster_id(address))


def _ask_cluster_id(address: str) -> Operation[str]:
    """Ask once: a broker that just died must be replaced now, not waited for."""
    request = APIS[ApiKey.METADATA].request(topics=[], allow_auto_topic_creation=False)
    outcome = yield from call(Call(ANY_NODE, request, ANSWER_TIMEOUT_MS))
    if isinstance(outcome, Unanswered):
        raise TxnLogError(f"no broker answers at {address}: {outcome.reason}")
    cluster_id = outcome.message.cluster_id
    if not cluster_id:
        raise TxnLogError(f"the broker at {address} does not report its cluster id")
    return str(cluster_id)


def _start_broker(directory: Path) -> str:
    command = [
        sys.executable, "-m", "broker_sim", "start",
        "--data-dir", str(directory / "data"), "--port", "0",
        "--exit-with-pid", str(application_pid()),
    ]  # fmt: skip
    log_path = directory / "broker.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            close_fds=True,
        )
    address = _wait_ready(process, log_path)
    try:
        cluster_id = _cluster_id(address)
    except TxnLogError:
        process.kill()  # it holds the directory, and without its address nobody would find it
        process.wait()
        raise
    record = {
        "version": ADDRESS_VERSION,
        "bootstrap.servers": address,
        "pid": process.pid,
        "pid.started": start_time(process.pid),
        "cluster.id": cluster_id,
    }
    written = directory / (ADDRESS_FILE + ".new")
    written.write_text(json.dumps(record))
    written.replace(directory / ADDRESS_FILE)
    return address


def _wait_ready(process: subprocess.Popen[bytes], log_path: Path) -> str:
    """Return the address from the broker's READY line."""
    output = process.stdout
    if output is None:
        raise TxnLogError("the embedded broker was started without a pipe")
    deadline = time.monotonic() + START_TIMEOUT_S
    line = b""
    with output:
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([output], [], [], left)[0]:
                process.kill()
                process.wait()
                waited_ms = int(START_TIMEOUT_S * 1000)
                raise DeadlineExceeded("start of the embedded broker", waited_ms, _tail(log_path))
            chunk = os.read(output.fileno(), 4096)
            if not chunk:
                raise _did_not_start(process.wait(), log_path)
            line += chunk
    text = line.decode("utf-8", "replace").strip()
    if not text.startswith(READY_PREFIX):
        process.kill()
        process.wait()
        raise TxnLogError(f"the embedded broker said {text!r} instead of its address")
    return text.removeprefix(READY_PREFIX)


def _did_not_start(exit_code: int, log_path: Path) -> TxnLogError:
    reason = _tail(log_path)
    if LOCKED in reason:
        return TxnLogError(
            f"the data under {log_path.parent} is in use by a broker that was started otherwise: "
            "stop that broker, or name it with kafka.bootstrap.servers, or give another path"
        )
    return TxnLogError(f"the embedded broker ended with exit code {exit_code}: {reason}")


def _tail(log_path: Path) -> str:
    """Return the last line of the broker's log, which has its reason."""
    lines = log_path.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1] if lines else 'no output'} (see {log_path})"
