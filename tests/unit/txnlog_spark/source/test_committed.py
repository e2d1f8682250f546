"""Start of a read from a group's offsets, which may stay undecided."""

from __future__ import annotations

import pytest
from support.query.source_cluster import run

from txnlog_kafka.operations import offsets
from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.offsets import CommittedOffset
from txnlog_kafka.operations.session import Deadline, Session
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import DeadlineExceeded, NoCommittedOffsets, OptionError
from txnlog_spark.source import log_queries
from txnlog_spark.source.log_queries import LogQueries
from txnlog_spark.source.settings import SourceSettings, read_source_settings

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
EARLIEST, LATEST = {P0: 0, P1: 0}, {P0: 100, P1: 50}


class Group:
    """A group's decided offsets, and whether a transaction holds newer ones pending.

    A read that insists on stable ones waits for `pending_ms`; then the transaction is aborted.
    """

    def __init__(self) -> None:
        self.decided: dict[TopicPartition, int] = {}
        self.pending_ms = 0
        self.waits_ms: list[int] = []

    def fetch_committed(
        self,
        _session: Session,
        _group_id: str,
        *,
        partitions: object = (),
        require_stable: bool = True,
        deadline: Deadline | None = None,
    ) -> Operation[dict[TopicPartition, CommittedOffset]]:
        yield from ()
        if require_stable:
            assert set(partitions) == {P0, P1}
            self.waits_ms.append(deadline.timeout_ms)
            if deadline.timeout_ms < self.pending_ms:
                raise DeadlineExceeded("reading", deadline.timeout_ms, "UNSTABLE_OFFSET_COMMIT")
        return {p: CommittedOffset(offset, "") for p, offset in self.decided.items()}


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    made = Group()
    monkeypatch.setattr(offsets, "fetch_committed", made.fetch_committed)

    def offsets_at(_brokers, specs, **_how):
        yield from ()
        return {
            p: (EARLIEST if at == offsets.EARLIEST_TIMESTAMP else LATEST)[p]
            for p, at in specs.items()
        }

    monkeypatch.setattr(LogQueries, "offsets_at", offsets_at)
    return made


def settings(word: str, **options: str) -> SourceSettings:
    base = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "startingOffsets": word}
    return read_source_settings(base | {"kafka.group.id": "g"} | options, streaming=True)


def start(word: str, *, sink_compares: bool = True) -> log_queries.Positions:
    made = settings(word)
    asked = LogQueries(Session(lambda: 0), made)
    return run(asked.find_positions(made.starting, (P0, P1), sink_compares=sink_compares))


WORDS = ("committed", "committedOrEarliest", "committedOrLatest")
LONG_MS = log_queries.COMMITTED_WAIT_MS_MIN


@pytest.mark.parametrize("word", WORDS)
def test_a_stream_does_not_wait_for_an_open_transaction_that_its_sink_will_end(
    group: Group, word: str
) -> None:
    group.decided, group.pending_ms = {P0: 70}, 300_000
    found = start(word)
    assert (found.offsets, found.committed) == ({P0: 70, P1: 0}, {P0: 70})
    assert group.waits_ms == [log_queries.DECIDED_WAIT_MS]


@pytest.mark.parametrize("word", WORDS)
def test_a_batch_read_waits_because_nothing_compares_later(group: Group, word: str) -> None:
    group.decided, group.pending_ms = {P0: 70}, 300_000
    assert start(word, sink_compares=False).offsets == {P0: 70, P1: 0}
    assert group.waits_ms == [LONG_MS]


def test_no_decided_position_is_believed_to_be_none_only_when_none_is_pending(group: Group) -> None:
    group.pending_ms = 300_000
    with pytest.raises(NoCommittedOffsets):
        start("committed")
    assert group.waits_ms == [log_queries.DECIDED_WAIT_MS, LONG_MS]
    group.pending_ms = LONG_MS + 1
    with pytest.raises(DeadlineExceeded, match="UNSTABLE_OFFSET_COMMIT"):
        start("committed")


@pytest.mark.parametrize(("word", "at"), [(WORDS[1], EARLIEST), (WORDS[2], LATEST)])
def test_a_first_start_does_not_wait_for_a_first_commit(
    group: Group, word: str, at: dict[TopicPartition, int]
) -> None:
    group.pending_ms = LONG_MS + 1
    found = start(word)
    assert (found.offsets, found.committed) == (at, {})


@pytest.mark.parametrize("word", WORDS)
def test_a_start_from_a_group_needs_its_name(word: str) -> None:
    with pytest.raises(OptionError, match=f"startingOffsets={word} needs a group"):
        read_source_settings({"subscribe": "t", "startingOffsets": word}, streaming=True)
