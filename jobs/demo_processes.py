"""Processes of the demo: a broker or several with a registry, and jobs under spark-submit.

Each process is a child of this process, ends with it, and is killed by its own process id only. A
line of a child's stdout becomes a progress line; its stderr goes to a log file that a failure
names.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyspark

from txnlog_kafka.wire.invariants import present

ROOT = Path(__file__).resolve().parents[1]
_POLL_SECONDS = 0.2
SILENT_SECONDS_MAX = 10.0
REPLICATED = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    # A broker that is killed is replaced within seconds.
    "registry.session.timeout.ms": 6000,
    "registry.heartbeat.interval.ms": 500,
}
"""Configuration of each broker, if there are several."""


class Narrator:
    """Progress lines with the time since the start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = self._last = clock()

    def say(self, text: str) -> None:
        """Print one line, at once."""
        self._last = self._clock()
        print(f"[{self._last - self._started:6.1f} s] {text}", flush=True)

    def wait_for(self, what: str) -> None:
        """Print a line that names the wait, if there was no line for a while."""
        if self._clock() - self._last >= SILENT_SECONDS_MAX:
            self.say(f"waiting for {what}")


class DemoFailed(Exception):
    """Failure of the demo; the text says what was expected, and where to look."""


class _Server:
    """Process of `python -m broker_sim`, restarted on its first port."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._arguments = arguments
        self._log = log
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    def join(self, registry: str, number: int) -> None:
        """Make the process that broker of a cluster with three replicas of everything, from its
        next start."""
        settings = {"registry.connect": registry, "node.id": number, **REPLICATED}
        for name, value in settings.items():
            self._arguments += ["--set", f"{name}={value}"]

    @property
    def is_running(self) -> bool:
        """True if it was started, and was not ended by `end`."""
        return self._process is not None

    def start(self) -> str:
        """Start the process and wait until it is ready; return its `host:port`."""
        command = [sys.executable, "-m", "broker_sim", *self._arguments]
        command += ["--port", str(self._port), "--exit-with-pid", str(os.getpid())]
        with self._log.open("a", encoding="utf-8") as stderr:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT
            )
        stdout = self._process.stdout
        ready, _, address = (stdout.readline().strip() if stdout else "").partition("=")
        if not ready.startswith("READY"):
            raise DemoFailed(f"broker_sim {self._arguments[0]} did not get ready: see {self._log}")
        self._port = int(address.rsplit(":", 1)[1])
        return address

    def end(self, number: signal.Signals) -> None:
        """Send the signal, and wait until the process has gone."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()


class BrokerProcess:
    """Broker of the demo, on one data directory; or brokers 0, 1, ... and their registry."""

    def __init__(self, data_dir: Path, narrator: Narrator, count: int = 1) -> None:
        self._data_dir = data_dir
        self._narrator = narrator
        self._brokers = [
            _Server(
                ["start", "--data-dir", str(data_dir)],
                data_dir.with_suffix(".log") if count == 1 else data_dir.with_name(f"{name}.log"),
            )
            for name in (f"broker-{number}" for number in range(count))
        ]
        self._registry: _Server | None = None
        self._addresses = [""] * count
        if count > 1:
            arguments = ["registry", "--data-dir", str(data_dir)]
            self._registry = _Server(arguments, data_dir.with_name("registry.log"))

    @property
    def bootstrap_servers(self) -> str:
        """Address `host:port` of each broker, separated by commas."""
        return ",".join(self._addresses)

    def start(self) -> None:
        """Start the processes that do not run, and wait until they are ready."""
        if self._registry is not None and not self._registry.is_running:
            address = self._registry.start()
            self._narrator.say(f"registry is ready at {address}")
            for number, broker in enumerate(self._brokers):
                broker.join(address, number)
        for number, broker in enumerate(self._brokers):
            if not broker.is_running:
                self._addresses[number] = broker.start()
                name = "broker" if self._registry is None else f"broker {number}"
                self._narrator.say(
                    f"{name} is ready at {self._addresses[number]}, data in {self._data_dir}"
                )

    def kill(self, number: int = 0) -> None:
        """Kill a broker by SIGKILL, as a power cut would end it."""
        self._brokers[number].end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop all processes cleanly by SIGTERM, the registry last."""
        for broker in self._brokers:
            broker.end(signal.SIGTERM)
        if self._registry is not None:
            self._registry.end(signal.SIGTERM)


class SparkJob:
    """Job under spark-submit; its stdout lines are shown as they come, and so is what it waits
    for."""

    def __init__(
        self,
        arguments: list[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        narrator: Narrator,
        shown_as: str,
    ) -> None:
        self.log = log
        self._narrator = narrator
        self._shown_as = shown_as
        self._awaited = f"the first line of {shown_as}, after the start of Spark (see {log})"
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        conf = ROOT / "conf"
        quiet = f"-Dlog4j2.configurationFile={conf / 'log4j2.properties'}"
        command = [str(submit), "--properties-file", str(conf / "spark-defaults.conf")]
        command += ["--conf", f"spark.driver.extraJavaOptions={quiet}", *arguments]
        with log.open("w", encoding="utf-8") as stderr:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=ROOT,
                env={**os.environ, **spark_environment(), **environment},
            )
        self._reader = threading.Thread(target=self._show, daemon=True)
        self._reader.start()

    def _show(self) -> None:
        for line in present(self._process.stdout, "it was started with a pipe"):
            self._awaited = f"the next line of {self._shown_as} (see {self.log})"
            self._narrator.say(f"{self._shown_as} | {line.rstrip()}")

    def wait(self, timeout_seconds: float, watch: Callable[[], None] = lambda: None) -> int:
        """Return the exit code, -9 if the job was killed; `watch` is called repeatedly
        meanwhile."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            watch()
            self._narrator.wait_for(self._awaited)
            try:
                code = self._process.wait(timeout=_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    self.end()
                    raise DemoFailed(
                        f"not done within {timeout_seconds:.0f} s: see {self.log}"
                    ) from None
                continue
            self._reader.join(timeout=5)
            return code

    def end(self) -> None:
        """Kill the job, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def spark_environment() -> dict[str, str]:
    """Return variables for the same interpreter on both sides of Spark, with this tree's
    packages."""
    python = str(Path(sys.executable).with_name("txnlog-python"))
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "PYTHONPATH": os.pathsep.join(path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
    }
