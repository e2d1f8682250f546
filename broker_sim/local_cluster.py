"""A cluster of broker processes on this machine, for tests, demos and notebooks."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import javaproperties

from txnlog_spark.wire.invariants import present

READY_PREFIX = "READY bootstrap.servers="
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0


class ClusterError(RuntimeError):
    """A broker process did not do what was asked; the text has the end of its log."""


class LocalCluster:
    """Broker processes on one data directory; use it as a context manager.

    `with LocalCluster(directory) as cluster:` starts them, `cluster.bootstrap_servers` is what
    clients need, and leaving the block stops them. The data stays. Each broker's stderr goes to
    `<data_dir>/broker-<id>.log`. Brokers end by themselves when this process dies.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        brokers: int = 1,
        config: Mapping[str, str | int | bool] | None = None,
    ) -> None:
        """`config` has broker configurations by Kafka's names; with `listeners`, the first of them
        is the one that `bootstrap_servers` names. Nothing is started yet."""
        if brokers != 1:
            raise ValueError(f"brokers={brokers} is not supported yet, only 1 is")
        self.data_dir = Path(data_dir)
        self._config = dict(config or {})
        self._ports: dict[int, int] = dict.fromkeys(range(brokers), 0)
        self._processes: dict[int, subprocess.Popen[str]] = {}

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of each broker, separated by commas; ports survive restarts."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def start(self) -> None:
        """Start every broker that does not run; returns when all are ready."""
        for broker_id in self._ports:
            if not self.is_running(broker_id):
                self._launch(broker_id)

    def stop(self) -> None:
        """Stop every running broker cleanly (SIGTERM)."""
        for broker_id in list(self._processes):
            process = self._processes.pop(broker_id)
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _close(process)

    def kill(self, broker_id: int = 0) -> None:
        """SIGKILL a broker, and wait until it is gone."""
        process = self._processes.pop(broker_id)
        process.kill()
        process.wait()
        _close(process)

    def restart(self, broker_id: int = 0) -> None:
        """Start a killed broker, or stop a running one cleanly before: same port, same data."""
        if self.is_running(broker_id):
            process = self._processes.pop(broker_id)
            process.terminate()
            process.wait(STOP_SECONDS_MAX)
            _close(process)
        self._launch(broker_id)

    def is_running(self, broker_id: int = 0) -> bool:
        """Whether the process lives."""
        process = self._processes.get(broker_id)
        return process is not None and process.poll() is None

    def pid(self, broker_id: int = 0) -> int:
        """The process id of a running broker."""
        return self._processes[broker_id].pid

    def broker_dir(self, broker_id: int = 0) -> Path:
        """The folder with the broker's partitions."""
        return self.data_dir / f"broker-{broker_id}"

    def _launch(self, broker_id: int) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-m", "broker_sim", "start",
            "--data-dir", str(self.data_dir),
            "--config", str(self._write_config(broker_id)),
            "--exit-with-pid", str(os.getpid()),
        ]  # fmt: skip
        if "listeners" not in self._config:
            command += ["--port", str(self._ports[broker_id])]
        package_parent = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join(p for p in (package_parent, os.environ.get("PYTHONPATH")) if p)
        with self._log_path(broker_id).open("a") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        self._processes[broker_id] = process
        self._ports[broker_id] = self._await_ready(broker_id, process)

    def _write_config(self, broker_id: int) -> Path:
        """A file for this user alone: it may have passwords, which no command line may show."""
        path = self.data_dir / f"broker-{broker_id}.properties"
        values = {"node.id": str(broker_id)}
        for name, value in self._config.items():
            values[name] = str(value).lower() if isinstance(value, bool) else str(value)
        path.unlink(missing_ok=True)
        path.touch(0o600, exist_ok=False)
        path.write_text(javaproperties.dumps(values, timestamp=False), encoding="utf-8")
        return path

    def _await_ready(self, broker_id: int, process: subprocess.Popen[str]) -> int:
        """The port the broker says it is ready on."""
        deadline = time.monotonic() + START_SECONDS_MAX
        output = present(process.stdout, "the process was started with a pipe")
        while time.monotonic() < deadline:
            readable, _, _ = select.select([output], [], [], 0.2)
            line = output.readline() if readable else ""
            if line.startswith(READY_PREFIX):
                return int(line.strip().rpartition(":")[2])
            if readable and not line:
                break
        process.kill()
        process.wait()
        del self._processes[broker_id]
        _close(process)
        raise ClusterError(f"broker {broker_id} did not start: {self._log_tail(broker_id)}")

    def _log_path(self, broker_id: int) -> Path:
        return self.data_dir / f"broker-{broker_id}.log"

    def _log_tail(self, broker_id: int) -> str:
        text = self._log_path(broker_id).read_text(errors="replace")
        return text[-2000:].strip() or "it printed nothing"


def _close(process: subprocess.Popen[str]) -> None:
    if process.stdout is not None:
        process.stdout.close()
