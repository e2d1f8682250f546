"""From Spark's own `kafka` sink to `txnlog` on one checkpoint, back for a while, and again."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import sink_switcher
from support.apache_kafka import die_with_parent
from support.availability import available
from support.connector import shown_error
from support.librdkafka import create_topic, produce_values, read_topic, values_of
from support.spark_kafka_jars import spark_kafka_jars
from support.spark_source_reader import ANSWER

from txnlog_spark.tools.cli import main as tool

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

TESTS = Path(__file__).resolve().parents[1]


class Switcher:
    """The process with the Spark session, and the query's options."""

    def __init__(self, jars: list[str], common: dict[str, str], topics: tuple[str, str]) -> None:
        self._common = common
        self._topics = topics
        path = os.pathsep.join((str(TESTS.parent), str(TESTS)))
        self._process = subprocess.Popen(
            [sys.executable, sink_switcher.__file__, *jars],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one short libc call
        )  # fmt: skip
        self._answer()

    def _answer(self) -> dict[str, Any]:
        for line in self._process.stdout or ():
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        raise AssertionError("the process with the Spark session has ended")

    def run(self, source: str, sink: str, checkpoint: Path) -> str:
        """Copy what is there; the error, "" without one."""
        first, second = self._topics
        read = {"subscribe": first, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"}
        write = {"topic": second, "checkpointLocation": str(checkpoint)}
        group = {"kafka.group.id": f"group-{first}"}
        wanted = {
            "source": source,
            "sink": sink,
            "read": self._common | read | (group if source == "txnlog" else {}),
            "write": self._common | write | (group if sink == "txnlog" else {}),
        }
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        return str(self._answer().get("error", ""))

    def stop(self) -> None:
        """End the session."""
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()


@pytest.fixture
def world(shared_brokers, unique: Callable[[str], str]) -> Iterator[tuple[str, str, str, Switcher]]:
    """(bootstrap, input, output, the query)."""
    jars = [str(jar) for jar in available(spark_kafka_jars)]
    bootstrap = shared_brokers("broker_sim").bootstrap_servers
    topics = create_topic(bootstrap, unique("in"), 1), create_topic(bootstrap, unique("out"), 1)
    switcher = Switcher(jars, {"kafka.bootstrap.servers": bootstrap}, topics)
    yield bootstrap, *topics, switcher
    switcher.stop()


def test_a_migration_there_and_back_and_there_again_loses_and_doubles_nothing(
    world, tmp_path: Path
) -> None:
    bootstrap, source, target, query = world
    checkpoint = tmp_path / "checkpoint"
    fed = 0

    def feed() -> None:
        nonlocal fed
        produce_values(bootstrap, source, [f"v{n:03}" for n in range(fed, fed + 50)])
        fed += 50

    feed()
    assert query.run("kafka", "kafka", checkpoint) == ""
    for connector in ("txnlog", "kafka"):
        feed()
        assert query.run(connector, connector, checkpoint) == ""
    feed()
    line = shown_error(Exception(query.run("txnlog", "txnlog", checkpoint)))
    assert "[TXNLOG_PROGRESS.BEHIND]" in line
    (command,) = re.findall(r"python -m txnlog_spark (progress set .*? --execute)", line)
    places = {"HOST:PORT": bootstrap, "DIR": str(checkpoint)}
    assert tool([places.get(word, word) for word in shlex.split(command)]) == 0
    assert query.run("txnlog", "txnlog", checkpoint) == ""
    assert values_of(read_topic(bootstrap, target)) == [f"v{n:03}" for n in range(fed)]
