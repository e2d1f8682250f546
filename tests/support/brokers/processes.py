"""Programs that tests start beside themselves: none outlives the test process."""

from __future__ import annotations

import ctypes
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from support.brokers.probe import free_ports, is_open, wait_until

START_TIMEOUT_S = 600


def die_with_parent() -> None:
    """Have a child, before exec, killed when the test process dies, however it dies (Linux)."""
    pr_set_pdeathsig = 1
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(pr_set_pdeathsig, signal.SIGKILL)


def started(command: Sequence[str], log: Path, **how: Any) -> subprocess.Popen[Any]:
    """A process without input, whose outputs are appended to a file; `how` as for Popen."""
    with log.open("ab") as output:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        return subprocess.Popen(
            command,
            **streams | how,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one short libc call
        )


def talking(command: Sequence[str], log: Path, **how: Any) -> subprocess.Popen[str]:
    """The same with pipes to its input and from its output, of text."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return started(command, log, text=True, **pipes | how)


class Startable:
    """A context manager that starts, and stops in the end."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Server(ABC):
    """A program that listens on `port` until it is killed. A context manager."""

    what: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (self.port,) = free_ports(1)

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command that starts the server on `self.port`."""

    def __enter__(self) -> Self:
        self._process = started(self._command(), self._folder / "server.log", cwd=self._folder)
        wait_until(self._answers, f"{self.what} answers", timeout_s=START_TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        return is_open(self.port)
