"""A cluster that is a dictionary, below the source's planning: the answers of its `LogQueries`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from txnlog_kafka.operations.cluster_view import ClusterView, TopicView, parse_topic_id
from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.offsets import EARLIEST_TIMESTAMP
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import UnknownTopic
from txnlog_spark.group_note import GroupNote
from txnlog_spark.offsets import SourceNote, with_source_note
from txnlog_spark.source import available, stream
from txnlog_spark.source.log_queries import LogQueries, Offsets
from txnlog_spark.source.selection import PlanSettings
from txnlog_spark.source.settings import read_source_settings
from txnlog_spark.source.stream import TxnLogStreamReader

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ALL = ReadAllAvailable()

T = TypeVar("T")


def run(operation: Operation[T]) -> T:
    """The result of an operation that asks for nothing."""
    try:
        ask = next(operation)
    except StopIteration as stop:
        return stop.value
    raise AssertionError(f"nobody answers {ask}")


class Cluster:
    """Offsets per partition; `high` differs from `end` while a transaction is open."""

    def __init__(self) -> None:
        self.clock: Callable[[], float] = time.monotonic
        """Clock of the cluster, in seconds."""
        self.earliest = {P0: 0, P1: 0}
        self.end = {P0: 100, P1: 50}
        self.high: dict[TopicPartition, int] = {}
        self.confirmed: dict[TopicPartition, int] = {}
        """High watermarks of the leaders that most brokers say, where another one has answered."""
        self.committed: dict[TopicPartition, int] = {}
        self.group_notes: list[GroupNote] = []
        """Notes of the group, beside these offsets."""
        self.deleted: tuple[str, ...] = ()
        self.unlisted: frozenset[str] = frozenset()
        self.cluster_id: str | None = None
        self.ids: dict[str, str] = {}
        """Ids of topics, as most brokers know them."""
        self.matching: list[frozenset[str] | None] = []
        self.asked: list[tuple[str, bool]] = []
        """Requests for offsets, and whether each was for a reader of committed records."""

    def brokers(self, settings: PlanSettings) -> LogQueries:
        """Return the brokers as a client that is connected to the cluster has them."""
        topics = {t: TopicView(parse_topic_id(each), {}) for t, each in self.ids.items()}
        session = Session(
            lambda: self.clock() * 1000,
            cluster=ClusterView(cluster_id=self.cluster_id, topics=topics),
            notice=logging.getLogger("session").warning,
            bootstrap_servers="h:1",
        )
        return _Answers(session, settings, self)

    def _refuse(self, topics) -> None:
        gone = tuple(sorted(set(topics) & set(self.deleted)))
        if gone:
            raise UnknownTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "gone", topics=gone)

    def discover(self, known, without, matching):
        self.matching.append(matching)
        self._refuse({*self.deleted} - without)
        hidden = without | (self.unlisted - {p.topic for p in known})
        return tuple(p for p in sorted(self.end) if p.topic not in hidden)

    def offsets_at(self, specs: Mapping[TopicPartition, int], *, read_committed: bool) -> Offsets:
        self._refuse(p.topic for p in specs)
        is_earliest = EARLIEST_TIMESTAMP in specs.values()
        self.asked.append(("earliest" if is_earliest else "latest", read_committed))
        ends = self.end if read_committed else self.end | self.high
        return {p: (self.earliest if is_earliest else ends)[p] for p in specs}


@dataclass(frozen=True, slots=True)
class _Answers(LogQueries):
    """LogQueries that answer from a dictionary."""

    cluster: Cluster

    def discover(self, *, known=(), without=frozenset(), matching=None) -> Operation[Any]:
        yield from ()
        return self.cluster.discover(known, without, matching)

    def recreated(self, noted) -> Operation[dict[str, str]]:
        yield from ()
        now = self.cluster.ids
        return {t: now[t] for t, before in noted.items() if now.get(t, before) != before}

    def offsets_at(self, specs, *, read_committed: bool = True) -> Operation[Offsets]:
        yield from ()
        isolation = read_committed and self.settings.read_committed
        return self.cluster.offsets_at(specs, read_committed=isolation) if specs else {}

    def confirm_log_ends(self, positions, said) -> Operation[Offsets]:
        yield from ()
        return {p: self.cluster.confirmed.get(p, said[p]) for p in positions}

    def committed(self, partitions=(), **_how: object) -> Operation[Offsets]:
        yield from ()
        return dict(self.cluster.committed)

    def visible_group(self) -> Operation[tuple[Offsets, list[GroupNote]]]:
        yield from ()
        return dict(self.cluster.committed), self.cluster.group_notes


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster that the stream reader is connected to from now on."""
    made = Cluster()

    def ask(settings, operation):
        return run(operation(made.brokers(settings)))

    monkeypatch.setattr(stream, "ask", ask)
    monkeypatch.setattr(available, "DISCOVERY_MS", 0)
    return made


def reader(**options: str) -> TxnLogStreamReader:
    base = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "startingOffsets": "earliest"}
    return TxnLogStreamReader(read_source_settings(base | options, streaming=True))


def taken(
    source: TxnLogStreamReader, start: dict, end: dict
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the offsets that the batch reads of each partition; the batch is small enough for one
    task."""
    (share,) = source.partitions(start, end)
    return {r.topic_partition: (r.start_offset, r.end_offset) for r in share.ranges}


def at(first: int, second: int | None = None) -> dict[str, dict[str, int]]:
    return {"t": {"0": first} | ({} if second is None else {"1": second})}


def noted(offset: dict, cluster_id: str) -> dict:
    return with_source_note(offset, SourceNote(cluster_id, None))
