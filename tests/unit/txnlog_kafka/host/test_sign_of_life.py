"""The line that a command shows on a terminal while it works."""

from __future__ import annotations

import io
import re
import socket
import sys
import threading

import pytest

from broker_sim.cli.main import main
from txnlog_kafka.host import sign_of_life
from txnlog_kafka.host.sign_of_life import CLEAR, SignOfLife


class Terminal(io.StringIO):
    """A standard error that people look at; `written` is set with each text."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        done = super().write(text)
        self.written.set()
        return done


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error from now on; not as a fixture, as pytest takes it anew for each test."""
    monkeypatch.setattr(sign_of_life, "QUIET_S", 0.01)
    monkeypatch.setattr(sign_of_life, "TICK_S", 0.01)
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    return found


def test_the_line_says_what_is_done_and_is_gone_at_the_end(monkeypatch) -> None:
    terminal = open_terminal(monkeypatch)
    with SignOfLife("reading") as sign:
        assert terminal.written.wait(10)
        sign.doing = "reading: 3 of 4"
        for _ in range(2):  # one may have been on its way
            terminal.written.clear()
            assert terminal.written.wait(10)
    shown = terminal.getvalue()
    assert shown.startswith(f"{CLEAR}reading: ")
    assert f"{CLEAR}reading: 3 of 4: " in shown
    assert shown.endswith(CLEAR)


def test_short_work_unwanted_signs_and_what_is_no_terminal_show_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = open_terminal(monkeypatch)
    with SignOfLife("printing", is_wanted=False):
        assert not terminal.written.wait(0.1)
    monkeypatch.setattr(sign_of_life, "QUIET_S", 60)
    with SignOfLife("quick"):
        pass
    monkeypatch.setattr(sign_of_life, "QUIET_S", 0.01)
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    with SignOfLife("in a file"):
        assert not terminal.written.wait(0.1)
    assert terminal.getvalue() == ""


def test_a_command_that_waits_for_a_broker_shows_it_and_then_its_error(monkeypatch) -> None:
    terminal = open_terminal(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        words = ["groups", "list", "--bootstrap-server", address, "--timeout-ms", "300"]
        assert main(words) == 1
    signs, _, error = terminal.getvalue().rpartition(f"{CLEAR}{CLEAR}broker_sim: ")
    assert re.fullmatch(rf"({re.escape(CLEAR)}groups list: \d+ s)+", signs)
    assert error.count("\n") == 1
