"""The processes of the demo: a broker, and jobs under spark-submit.

Each is a child of this process, is ended with it, and is killed by its own process id only. What a
child says on stdout becomes a progress line; its stderr goes to a log file named on failure.
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

from txnlog_spark.wire.invariants import present

ROOT = Path(__file__).resolve().parents[1]
_POLL_SECONDS = 0.2


class Narrator:
    """Progress lines with the time since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """One line, at once."""
        print(f"[{self.seconds():6.1f} s] {text}", flush=True)

    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._started


class DemoFailed(Exception):
    """The demo cannot go on: what was expected, and where to look."""


class BrokerProcess:
    """`python -m broker_sim` on one data directory, restarted on the port it first got."""

    def __init__(self, data_dir: Path, narrator: Narrator) -> None:
        self._data_dir = data_dir
        self._narrator = narrator
        self._port = 0
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap_servers = ""

    def start(self) -> None:
        """Start it and wait until it is ready."""
        command = [sys.executable, "-m", "broker_sim", "start", "--data-dir", str(self._data_dir)]
        command += ["--port", str(self._port), "--exit-with-pid", str(os.getpid())]
        log = self._data_dir.with_suffix(".log")
        with log.open("a", encoding="utf-8") as stderr:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT
            )
        stdout = self._process.stdout
        line = stdout.readline().strip() if stdout else ""
        _, ready, servers = line.partition("READY bootstrap.servers=")
        if not ready:
            raise DemoFailed(f"the broker did not start: see {log}")
        self.bootstrap_servers = servers
        self._port = int(servers.rsplit(":", 1)[1])
        self._narrator.say(f"broker is ready at {servers}, data in {self._data_dir}")

    def kill(self) -> None:
        """SIGKILL, as a power cut would end it."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: a clean stop."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
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


class SparkJob:
    """One job under spark-submit; its stdout lines are shown as they come."""

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
        self._reader = threading.Thread(target=self._show, args=(narrator, shown_as), daemon=True)
        self._reader.start()

    def _show(self, narrator: Narrator, shown_as: str) -> None:
        for line in present(self._process.stdout, "it was started with a pipe"):
            narrator.say(f"{shown_as} | {line.rstrip()}")

    def wait(self, timeout_seconds: float, watch: Callable[[], None] = lambda: None) -> int:
        """Exit code, -9 when it was killed; `watch` is called again and again meanwhile."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            watch()
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
        """Kill it, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def spark_environment() -> dict[str, str]:
    """Same interpreter on both sides of Spark, and the packages of this tree on its path."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
    }
