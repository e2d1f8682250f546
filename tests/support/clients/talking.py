"""Programs that are killed, or told something, while they run."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from support.brokers.probe import NotReady
from support.brokers.processes import talking

CALL_TIMEOUT_S = 600


class Talking:
    """A process whose lines of stdout are read while it runs. A context manager."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log_path = folder / "process.log"
        self._process = talking(command, self._log_path, cwd=folder)
        self.seen: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._pump, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def _pump(self) -> None:
        for line in self._process.stdout:
            if line.endswith("\n"):  # the last one of a killed process may be torn
                self.take(line.rstrip("\n"))
        self._lines.put(None)

    def take(self, line: str) -> None:
        """Called with each line, in a thread of its own."""
        self._lines.put(line)

    def wait_line(self, wanted: Callable[[str], bool], what: str) -> str:
        """The next line that is `wanted`; those before it are in `seen`. NotReady otherwise."""
        while True:
            try:
                line = self._lines.get(timeout=CALL_TIMEOUT_S)
            except queue.Empty:
                why = f"nothing for {CALL_TIMEOUT_S} s instead of {what}{self._tail()}"
                raise NotReady(why) from None
            if line is None:
                raise NotReady(f"ended instead of {what}{self._tail()}")
            self.seen.append(line)
            if wanted(line):
                return line

    def wait_event(self, name: str, **fields: object) -> dict[str, Any]:
        """The next JSON line with this `name` (or `event`) and these fields."""
        found: dict[str, Any] = {}

        def wanted(line: str) -> bool:
            if not line.startswith("{"):
                return False
            found.clear()
            found.update(json.loads(line))
            given = found.get("name", found.get("event"))
            return given == name and all(found.get(k) == v for k, v in fields.items())

        self.wait_line(wanted, f"{name} {fields}")
        return dict(found)

    def so_far(self) -> list[str]:
        while not self._lines.empty():
            line = self._lines.get()
            if line is not None:
                self.seen.append(line)
        return self.seen

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def account(self) -> str:
        """Return the exit code and the end of the output: for the message of a test that fails."""
        self.so_far()
        return f"exit code {self._process.poll()}{self._tail()}"

    def _tail(self) -> str:
        lines = "\n".join(self.seen[-20:])
        return f"\n{lines}\n{self._log_path.read_text(errors='replace')[-2000:]}"

    def tell(self, line: str) -> None:
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait_end(self) -> int:
        """Wait for the program's end; its exit code."""
        return self._process.wait(timeout=CALL_TIMEOUT_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
