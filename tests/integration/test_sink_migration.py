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
from support.brokers.processes import die_with_parent
from support.clients.librdkafka import create_topic, produce_values, read_topic, values_of
from support.harness.availability import available
from support.spark import sink_switcher
from support.spark.connector import shown_error
from support.spark.spark_kafka_jars import spark_kafka_jars
from support.spark.spark_source_reader import ANSWER

from txnlog_spark.tools.cli import main as tool

pytestmark = [pytest.mark.kafka, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

TESTS = Path(__file__).resolve().parents[1]


class Switcher:
    """The process with the Spark session."""

    def __init__(self, jars: list[str], bootstrap: str) -> None:
        self._common = {"kafka.bootstrap.servers": bootstrap}
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

    def run(self, source: str, sink: str, topics: tuple[str, str], checkpoint: Path) -> str:
        """Copy what is there; the error, "" without one."""
        first, second = topics
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


class Migrating:
    """A query, its topics and its checkpoint, with one connector or the other at either end."""

    def __init__(self, switcher: Switcher, bootstrap: str, folder: Path, unique: Any) -> None:
        self._switcher = switcher
        self.bootstrap = bootstrap
        self.checkpoint = folder / "checkpoint"
        self._topics = tuple(create_topic(bootstrap, unique(name), 1) for name in ("in", "out"))
        self._fed = 0

    def feed_and_run(self, source: str, sink: str) -> str:
        """Copy 50 records more; the error, "" without one."""
        values = [f"v{n:03}" for n in range(self._fed, self._fed + 50)]
        produce_values(self.bootstrap, self._topics[0], values)
        self._fed += 50
        return self.run(source, sink)

    def run(self, source: str, sink: str) -> str:
        """Copy what is there."""
        return self._switcher.run(source, sink, self._topics, self.checkpoint)

    def lose_the_last_commit(self) -> None:
        """As if the driver had died between Kafka's commit and Spark's."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.glob("[0-9]*"))
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    def check(self, isolation: str) -> None:
        """Fail unless each record was copied once."""
        seen = read_topic(self.bootstrap, self._topics[1], isolation=isolation)
        assert values_of(seen) == [f"v{n:03}" for n in range(self._fed)]


@pytest.fixture(scope="module")
def switcher(shared_brokers) -> Iterator[Switcher]:
    """The Spark session with both connectors."""
    jars = [str(jar) for jar in available(spark_kafka_jars)]
    made = Switcher(jars, shared_brokers("broker_sim").bootstrap_servers)
    yield made
    made.stop()


@pytest.fixture
def query(
    switcher: Switcher, shared_brokers, tmp_path: Path, unique: Callable[[str], str]
) -> Migrating:
    """A query that has not run yet."""
    bootstrap = shared_brokers("broker_sim").bootstrap_servers
    return Migrating(switcher, bootstrap, tmp_path, unique)


def test_a_migration_there_and_back_and_there_again_loses_and_doubles_nothing(
    query: Migrating,
) -> None:
    for connector in ("kafka", "txnlog", "kafka"):
        assert query.feed_and_run(connector, connector) == ""
    line = shown_error(Exception(query.feed_and_run("txnlog", "txnlog")))
    assert "[TXNLOG_PROGRESS.BEHIND]" in line
    (command,) = re.findall(r"python -m txnlog_spark (progress set .*? --execute)", line)
    places = {"HOST:PORT": query.bootstrap, "DIR": str(query.checkpoint)}
    assert tool([places.get(word, word) for word in shlex.split(command)]) == 0
    assert query.run("txnlog", "txnlog") == ""
    query.check("read_committed")


def test_sparks_own_source_feeds_the_sink_exactly_once_and_hands_over_to_ours(
    query: Migrating,
) -> None:
    """Also where a batch that `kafka` planned is done again, by either source."""
    assert query.feed_and_run("kafka", "txnlog") == ""
    for source in ("kafka", "txnlog"):
        query.lose_the_last_commit()
        assert query.feed_and_run(source, "txnlog") == ""
    query.check("read_uncommitted")
