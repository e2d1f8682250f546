"""Several applications on one path: one ends, and the others neither notice nor fail."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.brokers.probe import pause, wait_until

from broker_sim.server.process import LINGER_SECONDS, PARENT_POLL_SECONDS
from txnlog_kafka.host.broker_process import ensure_broker

REPOSITORY = Path(__file__).resolve().parents[2]
NOTICED_SECONDS = PARENT_POLL_SECONDS + LINGER_SECONDS + 1
"""After this a broker whose application has ended would have stopped, had it no clients."""

APPLICATION = """
import sys
from txnlog_kafka.host.client import Client
from txnlog_kafka.host.broker_process import ensure_broker
from txnlog_kafka.operations.metadata import refresh_metadata
print("begun", flush=True)
address = ensure_broker(sys.argv[1], is_made=True)
with Client(address) as client:
    for line in sys.stdin:
        client.run(refresh_metadata(client.session, ()))
        print(address, flush=True)
"""


class Application:
    """A process of its own that uses the embedded broker, and says so when asked."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", APPLICATION, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        assert self.process.stdout.readline() == "begun\n"

    def ask(self) -> str:
        """The broker's address, after it has answered there."""
        self.process.stdin.write("ask\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the application ended with {self.process.wait()}"
        return line.strip()

    def kill(self) -> None:
        """SIGKILL, as when a driver dies."""
        self.process.kill()
        with contextlib.suppress(OSError):  # nobody reads what was not flushed
            self.process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Application]]:
    """Starts applications on one path; at the end all have gone, and the broker too."""
    running: list[Application] = []

    def started() -> Application:
        running.append(Application(tmp_path))
        return running[-1]

    yield started
    for each in running:
        each.kill()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(broker_pid(tmp_path), signal.SIGKILL)


def broker_pid(path: Path) -> int:
    """The recorded process."""
    return int(json.loads((path / "embedded.json").read_text())["pid"])


def has_ended(pid: int) -> bool:
    """Return True if the process is gone, or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except OSError:
        return True


def test_who_attached_goes_on_when_the_application_that_started_the_broker_ends(
    start, tmp_path: Path
) -> None:
    first, second = start(), start()
    address = first.ask()
    assert second.ask() == address
    broker = broker_pid(tmp_path)
    first.kill()
    until = time.monotonic() + NOTICED_SECONDS
    while time.monotonic() < until:
        assert second.ask() == address
        pause()
    assert start().ask() == address, "who comes now finds it, too"
    assert not has_ended(broker)


def test_a_broker_ends_with_its_last_application(start, tmp_path: Path) -> None:
    first, second = start(), start()
    assert first.ask() == second.ask()
    broker = broker_pid(tmp_path)
    first.kill()
    second.kill()
    wait_until(lambda: has_ended(broker), "the broker to end")


@pytest.mark.parametrize("by", ["the application", "a signal"])
def test_who_comes_while_a_broker_stands_still_and_then_ends_gets_one(
    start, tmp_path: Path, by: str
) -> None:
    first = start()
    first.ask()
    broker = broker_pid(tmp_path)
    os.kill(broker, signal.SIGSTOP)
    try:
        if by == "a signal":
            os.kill(broker, signal.SIGTERM)
        first.kill()
        second = start()
    finally:
        os.kill(broker, signal.SIGCONT)
    assert second.ask() == ensure_broker(str(tmp_path), is_made=True)


def test_who_comes_in_the_moment_of_the_end_never_fails(start, tmp_path: Path) -> None:
    for _ in range(3):
        application = start()
        application.ask()
        os.kill(broker_pid(tmp_path), signal.SIGTERM)
        application.kill()
