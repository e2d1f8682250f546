"""A program of these tests with a Spark session of its own, which answers requests in JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.brokers.processes import die_with_parent
from support.spark.spark_source_reader import ANSWER

TESTS = Path(__file__).resolve().parents[2]


class JsonPeer:
    """The process: a line of its stdin is a request, a line of its stdout behind ANSWER the answer.

    It answers once when its session is there.
    """

    def __init__(self, program: str, jars: list[Path]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, program, *map(str, jars)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join((str(TESTS.parent), str(TESTS))),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one short libc call
        )  # fmt: skip
        self._answer()

    def _answer(self) -> dict[str, Any]:
        for line in self._process.stdout or ():
            if line.startswith(ANSWER):
                return dict(json.loads(line.removeprefix(ANSWER)))
        raise AssertionError("the process with the Spark session has ended")

    def ask(self, **wanted: Any) -> dict[str, Any]:
        """The answer to one request."""
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
