"""World of one run of the job: a broker of its own, its topics, its files and its checkpoint."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from zlib import crc32

from broker_sim.client.kafka import is_record
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
    """Input of the job in waves: rows by topic, and what `feed` makes besides."""

    rows: Mapping[str, Sequence[Any]]
    waves: int
    partitions: int
    feed: Feed | None = None

    @property
    def keys(self) -> frozenset[bytes]:
        """Keys of all input records."""
        records = (record_of(row) for rows in self.rows.values() for row in rows)
        return frozenset(as_bytes(each["key"]) for each in records if each.get("key") is not None)

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            for partition in range(self._inputs.partitions):
                part = self._inputs.part(topic, wave)
                records = [(self._record(rows[number], number), number) for number in part]
                here = [each for each, number in records if self._home(each, number) == partition]
                self.cluster.produce(topic, here, partition)
        if self._inputs.feed is not None:
            from txnlog_testing.prove.job_kafka import JobKafka

            self._inputs.feed(JobKafka(**self.kafka), wave)

    def _home(self, record: Mapping[str, Any], number: int) -> int:
        """Return the partition of a record: one for all records of a key."""
        key = record.get("key")
        return (number if key is None else crc32(as_bytes(key))) % self._inputs.partitions

    def _record(self, row: Any, number: int) -> dict[str, Any]:
        return {"timestamp": FIRST_TIMESTAMP_MS + 1000 * number, **record_of(row)}

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


def record_of(row: Any) -> Mapping[str, Any]:
    """Return a row as a record, in the forms that `Kafka.produce` takes."""
    if isinstance(row, tuple):
        key, value = row
        return {"key": key, "value": value}
    return row if isinstance(row, Mapping) and is_record(row) else {"value": row}


def as_bytes(key: bytes | str) -> bytes:
    """Return a key as it is in a record."""
    return key if isinstance(key, bytes) else key.encode()


def _replaced(word: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        word = word.replace(name, value)
    return word
