"""The client programs as processes: each library does all works at once, and prints what it saw."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaError
from support.clients.go_programs import go_program
from support.clients.talking import Talking
from support.kafka.java_tools import java_command

from txnlog_kafka.wire.error_codes import ErrorCode

HERE = Path(__file__).parent
END_SECONDS_MAX = 60
_NAMES = {code.name for code in ErrorCode if code.value > 0}
_TEXTS = {KafkaError(code.value).str(): code.name for code in ErrorCode if code.value > 0}
"""librdkafka's logs have its own texts, such as "Broker: Not leader for partition"."""
_TEXT = re.compile("|".join(map(re.escape, sorted(_TEXTS, key=len, reverse=True))))


def _works(adapter: str) -> list[str]:
    if adapter == "java":
        java_command()
    return [sys.executable, str(HERE / "works.py"), adapter]


LIBRARIES = {
    "librdkafka": lambda: _works("librdkafka"),
    "Java client": lambda: _works("java"),
    "franz-go": lambda: go_program("failover"),
    "kafka-python": lambda: _works("kafka-python"),
}
"""Functions that return the command of a library's program, or raise Unavailable."""


@dataclass(frozen=True)
class Event:
    """Event that a client saw: the fields of `support.clients.failover.events`."""

    at: int
    work: str
    ok: tuple[int, ...] = ()
    error: str = ""
    anew: bool = False


class Client(Talking):
    """A running program."""

    def __init__(self, library: str, folder: Path, words: Sequence[str]) -> None:
        self.library = library
        self.events: list[Event] = []
        self._folder = folder
        super().__init__(folder, [*LIBRARIES[library](), *words])

    def __exit__(self, *exc_info: object) -> None:
        self.end()

    def take(self, line: str) -> None:
        fields = json.loads(line)
        self.events.append(Event(**fields | {"ok": tuple(fields.get("ok", ()))}))

    def end(self) -> None:
        """Let it come to its end, or kill it."""
        if not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()

    def log_tail(self) -> str:
        """The last that it wrote of itself."""
        return self._logged()[-2000:]

    def _logged(self) -> str:
        """Return the log of the program and of its JVM."""
        return "".join(p.read_text(errors="replace") for p in self._folder.glob("*.log"))

    def logged_errors(self) -> set[str]:
        """Kafka's names of the brokers' errors that its log has, though the program saw none."""
        text = self._logged()
        named = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", text)) & _NAMES
        return named | {_TEXTS[found] for found in _TEXT.findall(text)}
