"""Processes that run a job under test, and may be killed: a driver, or the job's own script."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from txnlog_kafka.wire.invariants import present
from txnlog_testing.failpoints import SITE, lines_of
from txnlog_testing.processes import signal_all
from txnlog_testing.variables import ARMED_VARIABLE, FIRED_VARIABLE, REACHED_VARIABLE

POLL_S = 0.005
START_SECONDS_MAX = 300.0
SPARK_CONFIG = {
    "spark.master": "local[2,4]",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
    ),
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}
"""Two threads; a task may fail three times. Generated code takes seconds to compile, and changes no
result; a JVM that compiles less starts sooner."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a run: `error` is its text, "" if it ended well; `died` if its process is gone."""

    error: str = ""
    died: bool = False
    is_late: bool = False


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of processes whose failpoints are armed by files of this folder."""
    package_parent = str(Path(__file__).resolve().parents[2])
    # A job imports what the test beside it imports, in the driver and in Python workers.
    path = [str(SITE), package_parent, os.environ.get("PYTHONPATH", ""), *filter(None, sys.path)]
    warm_python = Path(sys.executable).with_name("txnlog-python")
    python = str(warm_python if warm_python.exists() else sys.executable)
    return {
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, path))),
        ARMED_VARIABLE: f"@{folder / 'armed'}",
        FIRED_VARIABLE: str(folder / "fired"),
        REACHED_VARIABLE: str(folder / "reached"),
    }


class Run(ABC):
    """Process that runs a job to the end of its input, in a session of its own; its failpoints are
    armed by a file."""

    def __init__(
        self, folder: Path, command: Sequence[str], armed: str = "", *, is_commanded: bool = False
    ) -> None:
        """Start it; one that `is_commanded` has commands on standard input, and answers."""
        folder.mkdir(parents=True)
        self.folder = folder
        self.arm(armed)
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if is_commanded else subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_commanded else log,
                stderr=log,
                env=environment(folder),
                start_new_session=True,
            )

    def arm(self, failpoint: str) -> None:
        """Arm this failpoint, and no other, in all processes of the driver."""
        beside = self.folder / "armed.new"
        beside.write_text(failpoint, encoding="utf-8")
        beside.replace(self.folder / "armed")

    def fired(self) -> tuple[str, ...]:
        """Return the failpoints that fired."""
        return lines_of(self.folder / "fired")

    def forget_reached(self) -> None:
        """Forget which steps were reached."""
        (self.folder / "reached").unlink(missing_ok=True)

    def reached(self) -> frozenset[str]:
        """Return the steps that were reached since, as `step:when`."""
        return frozenset(lines_of(self.folder / "reached"))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        signal_all(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL all its processes, unless it has ended."""
        if self._process.poll() is None:
            signal_all(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def log_tail(self) -> str:
        """Return the end of what the driver and the job have printed."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-3000:].strip()

    def wait(self, seconds_max: float, until: Callable[[], bool] | None = None) -> Outcome | None:
        """Return the outcome; None as soon as `until()` is true. A longer run is late."""
        deadline = time.monotonic() + seconds_max
        while True:
            outcome = self._outcome()
            if outcome is not None:
                return outcome
            if until is not None and until():
                return None
            if time.monotonic() > deadline:
                late = f"it still ran after {seconds_max:g} s; the last line of its log: "
                return Outcome(late + self._last_line(), is_late=True)

    def _last_line(self) -> str:
        return self.log_tail().rpartition("\n")[2][:400]

    @abstractmethod
    def _outcome(self) -> Outcome | None:
        """Wait for a moment; return the outcome if there is one."""


class Driver(Run):
    """Process with a SparkSession that runs one job after another."""

    def __init__(self, folder: Path, spark_config: Mapping[str, str]) -> None:
        """Start it; it gets ready by itself."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        config = folder.with_suffix(".json")
        own = {"spark.sql.warehouse.dir": str(folder.with_suffix(".warehouse"))}
        config.write_text(json.dumps({**SPARK_CONFIG, **own, **spark_config}), encoding="utf-8")
        command = [sys.executable, "-m", "txnlog_testing.prove.driver_main", str(config)]
        super().__init__(folder, command, is_commanded=True)
        self._is_ready = False
        self._buffer = b""

    def tell(self, command: Mapping[str, object]) -> None:
        """Send a command, once the driver is ready; `wait` has its outcome."""
        if not self._is_ready:
            outcome = self.wait(START_SECONDS_MAX)
            if outcome != Outcome():
                raise RuntimeError(f"the driver of the job did not start: {self.log_tail()}")
            self._is_ready = True
        commands = present(self._process.stdin, "it was started with a pipe")
        commands.write(json.dumps(command).encode() + b"\n")
        commands.flush()

    def _outcome(self) -> Outcome | None:
        answers = present(self._process.stdout, "it was started with a pipe")
        if not select.select([answers], [], [], POLL_S)[0]:
            return None
        more = os.read(answers.fileno(), 65536)
        self._buffer += more
        if not more:
            return Outcome("its process died", died=True)
        line, newline, rest = self._buffer.partition(b"\n")
        if not newline:
            return None
        self._buffer = rest
        return Outcome(str(json.loads(line).get("error", "")))


class Script(Run):
    """Run of the job's own script, which ends when it has read its input."""

    def _outcome(self) -> Outcome | None:
        try:
            code = self._process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            return None
        if code < 0:
            return Outcome(f"it died of {signal.Signals(-code).name}", died=True)
        return Outcome("" if code == 0 else f"exit code {code}: {self._last_line()}")
