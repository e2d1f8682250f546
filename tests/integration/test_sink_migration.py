"""From Spark's own `kafka` sink to `txnlog` on one checkpoint, back for a while, and again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.librdkafka import create_topic, produce_values, read_topic, values_of
from support.harness.availability import available
from support.spark import sink_switcher
from support.spark.connector import shown_error
from support.spark.json_peer import JsonPeer
from support.spark.spark_kafka_jars import spark_kafka_jars

from txnlog_spark.tools.cli import main as tool

pytestmark = [pytest.mark.kafka, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]


class Migrating:
    """A query, its topics and its checkpoint, with one connector or the other at either end."""

    def __init__(self, switcher: JsonPeer, bootstrap: str, folder: Path, unique: Any) -> None:
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
        """Copy what is there; the error, "" without one."""
        first, second = self._topics
        common = {"kafka.bootstrap.servers": self.bootstrap}
        read = {"subscribe": first, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"}
        write = {"topic": second, "checkpointLocation": str(self.checkpoint)}
        group = {"kafka.group.id": f"group-{first}"}
        answer = self._switcher.ask(
            source=source,
            sink=sink,
            read=common | read | (group if source == "txnlog" else {}),
            write=common | write | (group if sink == "txnlog" else {}),
        )
        return str(answer.get("error", ""))

    def lose_the_last_commit(self) -> None:
        """Delete the last commit, as if the driver had died between Kafka's commit and Spark's."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.glob("[0-9]*"))
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    def check(self, isolation: str) -> None:
        """Fail unless each record was copied once."""
        seen = read_topic(self.bootstrap, self._topics[1], isolation=isolation)
        assert values_of(seen) == [f"v{n:03}" for n in range(self._fed)]


@pytest.fixture(scope="module")
def switcher() -> Iterator[JsonPeer]:
    """The Spark session with both connectors."""
    made = JsonPeer(sink_switcher.__file__, available(spark_kafka_jars))
    yield made
    made.stop()


@pytest.fixture
def query(
    switcher: JsonPeer, shared_brokers, tmp_path: Path, unique: Callable[[str], str]
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
    (command,) = re.findall(r"\nDo this if .*: python -m txnlog_spark (.*)$", line)
    assert tool(shlex.split(command)) == 0
    assert query.run("txnlog", "txnlog") == ""
    query.check("read_committed")


def test_sparks_own_source_feeds_the_sink_exactly_once_and_hands_over_to_ours(
    query: Migrating,
) -> None:
    """Either source may also do again a batch that `kafka` planned."""
    assert query.feed_and_run("kafka", "txnlog") == ""
    for source in ("kafka", "txnlog"):
        query.lose_the_last_commit()
        assert query.feed_and_run(source, "txnlog") == ""
    query.check("read_uncommitted")
