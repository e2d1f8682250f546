"""`dead-letters show`: what it prints, without Java."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.clients.librdkafka import create_topic, plain_producer, transact, transactional

from txnlog_spark.tools.cli import main

ROOT = Path(__file__).resolve().parents[2]
NO_LETTER = "no dead letter: it has no header __connect.errors.topic"


def headers(*given: tuple[str, bytes | None]) -> list[tuple[str, bytes | None]]:
    """Headers of Kafka Connect's, and one of the record's own."""
    return [("h", b"x"), *((f"__connect.errors.{name}", value) for name, value in given)]


def letter(topic: str, offset: int, problem: bytes) -> list[tuple[str, bytes | None]]:
    """The headers of a record of partition 3."""
    return headers(
        ("topic", topic.encode()), ("partition", b"3"), ("offset", b"%d" % offset),
        ("stage", b"VALUE_CONVERTER"), ("exception.message", problem),
    )  # fmt: skip


def show_without_java(bootstrap: str, topic: str) -> dict[str, Any]:
    """Return the command's output on a machine without Java."""
    command = [sys.executable, "-m", "txnlog_spark", "dead-letters", "show", "--json"]
    done = subprocess.run(
        [*command, "--bootstrap-server", bootstrap, "--topic", topic],
        env={"PATH": "", "JAVA_HOME": "/nonexistent", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Return the command's output in this process."""

    def show_here(bootstrap: str, topic: str, *more: str) -> dict[str, Any]:
        where = ["--bootstrap-server", bootstrap, "--topic", topic]
        assert main(["dead-letters", "show", "--json", *more, *where]) == 0
        return json.loads(capsys.readouterr().out)

    return show_here


@pytest.fixture
def topic(shared_brokers, unique: Callable[[str], str]) -> tuple[str, str]:
    """(address, a topic of two partitions)."""
    bootstrap = shared_brokers("broker_sim").bootstrap_servers
    return bootstrap, create_topic(bootstrap, unique("dlq"), 2)


def test_show_lists_the_letters_by_partition_and_offset_without_java(topic, shown) -> None:
    bootstrap, name = topic
    records = [
        (1, letter("orders", 7, b"not JSON")),
        (1, letter("orders", 8, b"\xff is not UTF-8") + letter("orders.dlq", 9, b"once more")),
        (0, None),
        (0, headers(("topic", None))),
        (0, headers(("topic", b"orders"))),
    ]
    made = plain_producer(bootstrap)
    for partition, given in records:
        made.produce(name, b"v", partition=partition, headers=given)
        assert made.flush(30) == 0
    transact(transactional(bootstrap, f"{name}-id"), name, "aborted", commits=False)
    first = {
        f"{name}-0 at 0": NO_LETTER,
        f"{name}-0 at 1": NO_LETTER,
        f"{name}-0 at 2": "orders-None at None, None: None",
        f"{name}-1 at 0": "orders-3 at 7, VALUE_CONVERTER: not JSON",
        f"{name}-1 at 1": "orders.dlq-3 at 9, VALUE_CONVERTER: once more",
    }
    found = show_without_java(bootstrap, name)
    assert found == {"topic": name, "dead_letters": 5, "first": first}
    assert list(found["first"]) == list(first)
    some = shown(bootstrap, name, "--max-messages", "4")
    assert some == found | {"first": dict(list(first.items())[:4])}
    assert shown(bootstrap, name, "--max-messages", "0") == found | {"first": {}}


def test_a_topic_without_letters_is_shown_as_that_and_a_missing_one_is_refused(
    topic, shown, capsys: pytest.CaptureFixture[str]
) -> None:
    bootstrap, name = topic
    assert shown(bootstrap, name) == {"topic": name, "dead_letters": 0, "first": {}}
    where = ["--bootstrap-server", bootstrap, "--topic", f"{name}-other"]
    assert main(["dead-letters", "show", *where]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("txnlog_spark: [TXNLOG_UNKNOWN_TOPIC]")
