"""A Spark Connect server as a process, and programs that are its clients.

The server is PySpark's own, started as its `start-connect-server.sh` does. A client is a process
with `SPARK_REMOTE`, which makes the session of an unchanged job a remote one; this process has a
session of the classic kind, and one process cannot have both.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from support.brokers.probe import free_ports, is_open, wait_until
from support.brokers.processes import started
from support.core.object_counts import SITE
from support.spark.spark_copy import (
    REPOSITORY,
    RUN_SECONDS_MAX,
    SPARK_CONFIG,
    SPARK_SUBMIT,
    conf_arguments,
    java_options,
    spark_environment,
)

PATH = (SITE, REPOSITORY, Path(__file__).resolve().parents[2])
MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer:
    """A server on a port of its own, which it keeps when it is started again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._log = folder / "server.log"
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def remote(self) -> str:
        return f"sc://127.0.0.1:{self._port}"

    def start(self, failpoints: str = "") -> None:
        """Start it with these failpoints armed; returns when it listens."""
        settings = (
            SPARK_CONFIG
            | java_options()
            | {
                "spark.connect.grpc.binding.address": "127.0.0.1",
                "spark.connect.grpc.binding.port": str(self._port),
            }
        )
        command = [str(SPARK_SUBMIT), "--master", "local[2]", "--class", MAIN_CLASS]
        command += [*conf_arguments(settings), "spark-internal"]
        fired = self._folder / "fired"
        environment = spark_environment(*PATH) | {
            "TXNLOG_FAILPOINTS": failpoints,
            "TXNLOG_FAILPOINTS_FIRED": str(fired),
        }
        self._process = started(
            command, self._log, env=environment, cwd=self._folder, start_new_session=True
        )
        wait_until(self._listens, "the Spark Connect server")

    def _listens(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        return is_open(self._port)

    def wait(self) -> int:
        return self._process.wait(RUN_SECONDS_MAX)

    def stop(self) -> None:
        """SIGKILL to it and its Python processes."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def client(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a program of this folder; both outputs are in its `stdout`."""
        return started(
            [sys.executable, str(Path(__file__).with_name(program)), *arguments],
            self._log,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=spark_environment(*PATH) | {"SPARK_REMOTE": self.remote},
            cwd=self._folder,
            text=True,
        )

    def run(self, program: str, *arguments: str) -> str:
        """Run a program to its end, which must be 0; what it printed."""
        client = self.client(program, *arguments)
        try:
            printed, _ = client.communicate(timeout=RUN_SECONDS_MAX)
        finally:
            client.kill()
        assert client.returncode == 0, printed[-3000:] + self._log.read_text()[-1000:]
        return printed
