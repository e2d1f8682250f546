"""A cluster that is a dictionary, below the stream reader: what `source.brokers` would answer."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from txnlog_kafka.wire.errors import ErrorCode
from txnlog_kafka.wire.topics import TopicPartition
from txnlog_spark.errors import UnknownTopic
from txnlog_spark.offsets import SourceNote, with_source_note
from txnlog_spark.source import brokers, stream
from txnlog_spark.source.settings import read_source_settings
from txnlog_spark.source.stream import TxnLogStreamReader

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ALL = ReadAllAvailable()


class Cluster:
    """Offsets per partition; `high` differs from `end` while a transaction is open."""

    def __init__(self) -> None:
        self.earliest = {P0: 0, P1: 0}
        self.end = {P0: 100, P1: 50}
        self.high: dict[TopicPartition, int] = {}
        self.confirmed: dict[TopicPartition, int] = {}
        """High watermarks of the leaders that most brokers say, where another one has answered."""
        self.committed: dict[TopicPartition, int] = {}
        self.deleted: tuple[str, ...] = ()
        self.unlisted: frozenset[str] = frozenset()
        self.cluster_id: str | None = None
        self.matching: list[frozenset[str] | None] = []
        self.asked: list[tuple[str, bool]] = []
        """Which offsets were asked for, and whether for a reader of what is committed."""

    def _refuse(self, topics) -> None:
        gone = tuple(sorted(set(topics) & set(self.deleted)))
        if gone:
            raise UnknownTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "gone", topics=gone)

    def discover(self, _settings, known=(), without=frozenset(), matching=None):
        self.matching.append(matching)
        self._refuse({*self.deleted} - without)
        hidden = without | (self.unlisted - {p.topic for p in known})
        return tuple(p for p in sorted(self.end) if p.topic not in hidden)

    def fetch_offsets(self, settings, partitions, which, *, read_committed=None):
        self._refuse(p.topic for p in partitions)
        read_committed = settings.read_committed if read_committed is None else read_committed
        self.asked.append((which, read_committed))
        ends = self.end if read_committed else self.end | self.high
        return {p: (self.earliest if which == "earliest" else ends)[p] for p in partitions}

    def confirm_log_ends(self, _settings, positions, said):
        return {p: self.confirmed.get(p, said[p]) for p in positions}

    def fetch_committed(self, _settings, _partitions=(), **_how) -> dict[TopicPartition, int]:
        return dict(self.committed)

    def connected_cluster(self, _settings) -> str | None:
        return self.cluster_id


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster that the stream reader is connected to from now on."""
    made = Cluster()
    for module in (stream, brokers):
        monkeypatch.setattr(module, "discover", made.discover)
        monkeypatch.setattr(module, "fetch_offsets", made.fetch_offsets)
        monkeypatch.setattr(module, "confirm_log_ends", made.confirm_log_ends)
        monkeypatch.setattr(module, "fetch_committed", made.fetch_committed)
    monkeypatch.setattr(stream, "connected_cluster", made.connected_cluster)
    monkeypatch.setattr(stream, "DISCOVERY_SECONDS", 0.0)
    return made


def reader(clock: Callable[[], float] = time.monotonic, **options: str) -> TxnLogStreamReader:
    base = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "startingOffsets": "earliest"}
    return TxnLogStreamReader(read_source_settings(base | options, streaming=True), clock)


def taken(
    source: TxnLogStreamReader, start: dict, end: dict
) -> dict[TopicPartition, tuple[int, int]]:
    """What the batch reads of each partition; all of it is small enough for one task."""
    (share,) = source.partitions(start, end)
    return {r.topic_partition: (r.start_offset, r.end_offset) for r in share.ranges}


def at(first: int, second: int | None = None) -> dict[str, dict[str, int]]:
    return {"t": {"0": first} | ({} if second is None else {"1": second})}


def noted(offset: dict, cluster_id: str, group_id: str | None = None) -> dict:
    return with_source_note(offset, SourceNote(cluster_id, group_id))
