"""The embedded broker: what `format("txnlog")` talks to when it is given a path, not a cluster.

`ensure_broker(path)` gives the address of the one broker whose data is under `path`, and starts it
as a process of its own when none is running: `python -m broker_sim start`. Whoever comes first
starts it, under a file lock, and writes the address beside the data; the others find it there. The
broker ends with the application that started it (its JVM, else this process), and its data stays.
An address is believed only when the cluster that answers there is the one that was started here:
process ids and ports are used again, by the brokers of other directories among others.
`broker_sim` is never imported: the connector ships without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from txnlog_spark.client.driver import Client
from txnlog_spark.errors import DeadlineExceeded, OptionError, TxnLogError
from txnlog_spark.protocol.calls import call_all
from txnlog_spark.protocol.effects import ANY_NODE, Call, Operation, Unanswered
from txnlog_spark.wire.messages import APIS, ApiKey

START_TIMEOUT_S = 60.0
ADDRESS_FILE = "embedded.json"
ADDRESS_VERSION = 2
"""1 had no cluster id."""
CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_MS = 15_000
"""A broker may be busy with a large batch; whatever else has the port may never answer."""
READY_PREFIX = "READY bootstrap.servers="


def ensure_broker(path: str) -> str:
    """The `host:port` of the embedded broker under `path`, started if it is not running.

    Raises OptionError when there is no `broker_sim` to start, TxnLogError when it does not start.
    """
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
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory / "embedded.lock"):
        address = _running_at(directory)
        if address is None:
            address = _start(directory)
        return address


def _running_at(directory: Path) -> str | None:
    """The recorded address, if its process lives and the recorded cluster answers there."""
    try:
        recorded: dict[str, Any] = json.loads((directory / ADDRESS_FILE).read_text())
        address, pid = str(recorded["bootstrap.servers"]), int(recorded["pid"])
        cluster_id = str(recorded["cluster.id"])
        os.kill(pid, 0)
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S):
            pass
        return address if _cluster_id(address) == cluster_id else None
    except (OSError, ValueError, KeyError, TypeError, TxnLogError):
        return None


def _cluster_id(address: str) -> str:
    """Which cluster answers at this address. Raises TxnLogError when none does."""
    with Client(address) as client:
        return client.run(_ask_cluster_id(address))


def _ask_cluster_id(address: str) -> Operation[str]:
    """Asked once: a broker that just died must be replaced now, not waited for."""
    request = APIS[ApiKey.METADATA].request(topics=[], allow_auto_topic_creation=False)
    (outcome,) = yield from call_all((Call(ANY_NODE, request, ANSWER_TIMEOUT_MS),))
    if isinstance(outcome, Unanswered):
        raise TxnLogError(f"no broker answers at {address}: {outcome.reason}")
    cluster_id = outcome.message.cluster_id
    if not cluster_id:
        raise TxnLogError(f"the broker at {address} does not tell its cluster id")
    return str(cluster_id)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start(directory: Path) -> str:
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
        "cluster.id": cluster_id,
    }
    written = directory / (ADDRESS_FILE + ".new")
    written.write_text(json.dumps(record))
    written.replace(directory / ADDRESS_FILE)
    return address


def _wait_ready(process: subprocess.Popen[bytes], log_path: Path) -> str:
    """The address from the broker's READY line."""
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
                raise TxnLogError(
                    f"the embedded broker ended with exit code {process.wait()}: {_tail(log_path)}"
                )
            line += chunk
    text = line.decode("utf-8", "replace").strip()
    if not text.startswith(READY_PREFIX):
        process.kill()
        process.wait()
        raise TxnLogError(f"the embedded broker said {text!r} instead of its address")
    return text.removeprefix(READY_PREFIX)


def _tail(log_path: Path) -> str:
    """The last line of the broker's log, where its reason stands."""
    lines = log_path.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1] if lines else 'no output'} (see {log_path})"


def application_pid() -> int:
    """The process whose end is the application's: the nearest ancestor JVM, else this one."""
    pid = os.getpid()
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        name, rest = stat[stat.index("(") + 1 :].rsplit(")", 1)
        if name == "java":
            return pid
        pid = int(rest.split()[1])
    return os.getpid()
