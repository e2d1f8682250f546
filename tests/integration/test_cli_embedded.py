"""The commands on the embedded broker of a directory: --path instead of --bootstrap-server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.brokers.probe import wait_until

from broker_sim.__main__ import main
from txnlog_kafka.host.broker_process import ADDRESS_FILE
from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.processes import start_time

ROOT = Path(__file__).resolve().parents[2]
CONSUME = ("consume", "--from-beginning", "--topic", "orders", "--path", ".txnlog")


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """`python -m broker_sim` in a folder, as a person runs it."""
    return subprocess.Popen(
        [sys.executable, "-m", "broker_sim", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, *words: str, text: str = "") -> str:
    """Run a command that must succeed; return its output."""
    process = start(folder, *words)
    out, error = process.communicate(text, timeout=600)
    assert process.returncode == 0, error
    return out


def broker_pid(folder: Path) -> int:
    """The process of the broker that was recorded last."""
    return int(json.loads((folder / ".txnlog" / ADDRESS_FILE).read_text())["pid"])


def is_alive(pid: int) -> bool:
    """Return True if the process exists and has not ended."""
    return start_time(pid) is not None


def test_creating_a_topic_makes_the_broker_and_commands_after_it_have_one_each_with_its_data(
    tmp_path,
):
    run(tmp_path, "topics", "create", "--topic", "orders", "--path", ".txnlog")
    for number in range(2):
        produce = ("produce", "--path", ".txnlog", "--topic", "orders")
        assert "orders  2" in run(tmp_path, *produce, text=f"a{number}\nb{number}\n")
    found = run(tmp_path, *CONSUME, "--max-messages", "4").split()
    assert found == ["a0", "b0", "a1", "b1"]
    assert "orders" in run(tmp_path, "topics", "list", "--path", ".txnlog")


def check_found_by_an_application(folder: Path) -> None:
    """An application that comes while the command runs attaches to the same broker."""
    record = json.loads((folder / ".txnlog" / ADDRESS_FILE).read_text())
    with Client(record["bootstrap.servers"]) as client:
        client.run(refresh_metadata(client.session, ()))
        assert client.session.cluster.cluster_id == record["cluster.id"]


@pytest.mark.parametrize("ended_by", ["its end", "SIGINT"])
def test_a_command_uses_the_running_broker_and_leaves_it_running(tmp_path, ended_by):
    run(tmp_path, "produce", "--path", ".txnlog", "--topic", "orders", text="first\n")
    first = start(tmp_path, *CONSUME)
    assert first.stdout is not None
    assert first.stdout.readline() == "first\n"
    pid = broker_pid(tmp_path)
    if ended_by == "SIGINT":
        check_found_by_an_application(tmp_path)
    run(tmp_path, "produce", "--path", ".txnlog", "--topic", "orders", text="second\n")
    assert (broker_pid(tmp_path), is_alive(pid)) == (pid, True)
    assert first.stdout.readline() == "second\n"
    if ended_by == "SIGINT":
        first.send_signal(2)
        assert first.wait(60) == 130
    else:
        first.kill()
    first.communicate(timeout=600)
    wait_until(lambda: not is_alive(pid), "the broker to end with the command that started it")


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys) -> Callable[..., str]:
    """Return the one line of a command that must be refused, run in this process."""
    monkeypatch.chdir(tmp_path)

    def line_of(*words: str) -> str:
        assert main(words) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return line_of


def test_a_file_in_place_of_the_directory_is_no_traceback(tmp_path, refused):
    (tmp_path / "file").write_text("")
    line = refused("topics", "list", "--path", "file")
    assert line.startswith(f"broker_sim: --path file: {tmp_path}/file is a file")


READING = (
    ("consume", "--topic", "orders"),
    ("topics", "list"),
    ("topics", "describe"),
    ("topics", "delete", "--topic", "orders"),
    ("groups", "list"),
    ("transactions", "find-hanging"),
)


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_command_that_reads_makes_no_broker_for_a_mistyped_path(tmp_path, refused, words):
    line = refused(*words, "--path", ".txnlgo")
    assert line.startswith(f"broker_sim: --path .txnlgo: there is no broker's data at {tmp_path}/")
    assert not list(tmp_path.iterdir())
