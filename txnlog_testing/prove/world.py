"""World of one run of the job: a broker of its own, its topics, its files and its checkpoint."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from broker_sim.client.kafka import read_row
from broker_sim.local_cluster import LocalCluster
from txnlog_testing.kafka import AT_ONCE
from txnlog_testing.prove.checkpoint import Checkpoints
from txnlog_testing.prove.compare import Row, record_row

FIRST_TIMESTAMP_MS = 1_767_225_600_000
"""Timestamp of the first input record, 1 January 2026; the next ones come a second apart."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

Feed = Callable[[Any, int], None]
"""Function that gets the world's `JobKafka` and the number of a wave, and makes its input."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Input of the job in waves: records by topic, and what `feed` makes besides."""

    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    waves: int
    partitions: int
    feed: Feed | None = None

    @classmethod
    def read(
        cls, given: Mapping[str, Sequence[Any]], waves: int, partitions: int, feed: Feed | None
    ) -> Inputs:
        """Return the input in rows of any form that `Kafka.produce` takes. Raises ValueError or
        TypeError for one that it does not take."""
        rows = {
            topic: [
                {"timestamp": FIRST_TIMESTAMP_MS + 1000 * number, **read_row(row, number)}
                for number, row in enumerate(each)
            ]
            for topic, each in given.items()
        }
        return cls(rows, waves, partitions, feed)

    @property
    def keys(self) -> frozenset[bytes]:
        """Keys of all input records."""
        return frozenset(row["key"] for rows in self.rows.values() for row in rows) - {None}

    def part(self, topic: str, wave: int) -> range:
        """Return the numbers of the topic's rows that come in this wave."""
        count = len(self.rows[topic])
        return range(count * wave // self.waves, count * (wave + 1) // self.waves)


class World:
    """Broker, folder and checkpoint that no other run shares."""

    def __init__(self, folder: Path, inputs: Inputs, output_topics: Sequence[str]) -> None:
        self.folder = folder
        self.checkpoints = Checkpoints(folder / "checkpoint")
        self.cluster = LocalCluster(folder / "broker", config=AT_ONCE, faults=True)
        self._inputs = inputs
        self._output_topics = output_topics

    def __enter__(self) -> World:
        (self.folder / "files").mkdir(parents=True)
        self.cluster.start()
        try:
            for topic in dict.fromkeys([*self._inputs.rows, *self._output_topics]):
                self.cluster.create_topic(topic, partitions=self._inputs.partitions)
        except BaseException:
            self.cluster.stop()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        if self.cluster.is_running():
            self.cluster.kill()
        self.cluster.stop()

    @property
    def kafka(self) -> dict[str, str]:
        """Arguments of the job's `JobKafka`."""
        return {
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "folder": str(self.folder / "files"),
        }

    def words(self, words: Sequence[str]) -> list[str]:
        """Return arguments of a script, with the places of this world in them."""
        places = {
            "{bootstrap}": self.cluster.bootstrap_servers,
            "{checkpoint}": str(self.checkpoints.root),
            "{path}": str(self.folder / "files"),
        }
        return [_replaced(word, places) for word in words]

    def feed(self, wave: int) -> None:
        """Produce the input of a wave: the same records at the same offsets in every world."""
        for topic, rows in self._inputs.rows.items():
            homes = defaultdict(list)
            for number in self._inputs.part(topic, wave):
                key = rows[number]["key"]  # all records of a key go to one partition
                home = number if key is None else crc32(key)
                homes[home % self._inputs.partitions].append(rows[number])
            for partition, records in sorted(homes.items()):
                self.cluster.produce(topic, records, partition)
        if self._inputs.feed is not None:
            from txnlog_testing.prove.job_kafka import JobKafka

            self._inputs.feed(JobKafka(**self.kafka), wave)

    def topic_rows(self, topic: str) -> list[Row]:
        """Return the committed records of an output topic, in the order of their partitions."""
        return [
            record_row(
                each.key, each.value, each.headers, f"{topic}-{each.partition}@{each.offset}"
            )
            for each in self.cluster.records(topic)
        ]

    def group_offsets(self) -> dict[str, dict[Any, int]]:
        """Return what each group has committed of the input topics.

        A group whose name has a UUID is of one run, such as those that Spark's source makes up.
        """
        found = {}
        for group in filter(lambda name: not _UUID.search(name), self.cluster.groups()):
            offsets = {
                place: offset
                for place, offset in self.cluster.committed(group).items()
                if place[0] in self._inputs.rows
            }
            if offsets:
                found[group] = offsets
        return found

    def remove(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.folder)


def _replaced(word: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        word = word.replace(name, value)
    return word
