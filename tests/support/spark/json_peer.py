"""A program of these tests with a Spark session of its own, which answers requests in JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from support.brokers.processes import talking

TESTS = Path(__file__).resolve().parents[2]
ANSWER = "answer "
"""Begin of the lines that are answers, among all that Spark prints."""


class Peer:
    """The process: a line of its stdin is a request, a line of its stdout behind ANSWER the
    answer."""

    def __init__(self, program: str, *arguments: str) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join((str(TESTS.parent), str(TESTS))),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [sys.executable, program, *arguments]
        self._process = talking(command, Path(os.devnull), env=environment)

    def answer_to(self, line: str) -> str:
        """Return the answer to one request."""
        self._process.stdin.write(line)
        self._process.stdin.flush()
        return self.next_answer()

    def next_answer(self) -> str:
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return line.removeprefix(ANSWER)
        raise AssertionError("the process with the Spark session has ended")

    def stop(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


class JsonPeer(Peer):
    """A peer that answers once when its session is there."""

    def __init__(self, program: str, jars: list[Path]) -> None:
        super().__init__(program, *map(str, jars))
        self.next_answer()

    def ask(self, **wanted: Any) -> dict[str, Any]:
        """The answer to one request."""
        return json.loads(self.answer_to(json.dumps(wanted) + "\n"))
