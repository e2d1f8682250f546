"""Records behind an open transaction: they count as lag, and one warning says where they are."""

from __future__ import annotations

import logging

import pytest
from support.query.source_cluster import ALL, P0, P1, Cluster, at, reader

from txnlog_spark.metrics import offsets_behind_latest
from txnlog_spark.offsets import to_json_value
from txnlog_spark.source.stream import TxnLogStreamReader


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 5_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster(cluster: Cluster, clock: Clock) -> Cluster:
    """A transaction is open in P0 from offset 100 on, with 30 offsets behind it."""
    cluster.clock, cluster.high = clock, {P0: 130}
    return cluster


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture):
    """Return a function that returns the warnings since its last call."""
    caplog.set_level(logging.WARNING)

    def since() -> list[str]:
        found = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        caplog.clear()
        return found

    return since


def poll(source: TxnLogStreamReader, clock: Clock, seconds: float) -> None:
    """An idle query asks a hundred times a second."""
    for _ in range(round(seconds * 100)):
        assert source.latestOffset(at(100, 50), ALL) == at(100, 50)
        clock.now += 0.01


def test_the_report_says_how_far_the_log_goes_and_the_batch_ends_before_what_is_open(
    cluster: Cluster, clock: Clock
) -> None:
    source = reader()
    end = source.latestOffset(at(100, 50), ALL)
    assert (end, source.reportLatestOffset()) == (at(100, 50), at(130, 50))
    shown = {"endOffset": end, "latestOffset": source.reportLatestOffset()}
    assert offsets_behind_latest(shown)["maxOffsetsBehindLatest"] == "30"


def test_the_high_watermark_is_asked_for_once_a_second(cluster: Cluster, clock: Clock) -> None:
    source = reader()
    poll(source, clock, 10)
    assert cluster.asked.count(("latest", True)) == 1_000
    assert cluster.asked.count(("latest", False)) in (10, 11)


def test_a_reader_of_uncommitted_records_has_nothing_to_ask(cluster: Cluster) -> None:
    source = reader(**{"kafka.isolation.level": "read_uncommitted"})
    assert source.latestOffset(at(0, 0), ALL) == at(130, 50)
    assert source.reportLatestOffset() == at(130, 50)
    assert cluster.asked == [("latest", False)]


def test_one_warning_when_nothing_could_be_read_for_a_minute(
    cluster: Cluster, clock: Clock, warned
) -> None:
    source = reader()
    poll(source, clock, 59)
    assert warned() == []
    poll(source, clock, 120)
    (text,) = warned()
    assert "t-0 (last stable offset 100, high watermark 130)" in text
    assert "t-1" not in text
    assert (
        "`kafka-transactions.sh --bootstrap-server h:1 describe-producers --topic t --partition 0`"
    ) in text
    assert "find-hanging --topic t --partition 0`" in text
    assert "\n" not in text


def test_the_minute_counts_from_when_the_transaction_was_seen_and_each_move_begins_another(
    cluster: Cluster, clock: Clock, warned
) -> None:
    cluster.high = {}
    source = reader()
    poll(source, clock, 90)
    for offset in (100, 101, 102):
        cluster.end = {P0: offset, P1: 50}
        cluster.high = {P0: offset + 9}
        for _ in range(50):
            source.latestOffset(at(100, 50), ALL)
            clock.now += 1
    assert warned() == []
    cluster.high = {}
    source.latestOffset(at(100, 50), ALL)
    cluster.end, cluster.high = {P0: 103, P1: 50}, {P0: 104}
    for _ in range(62):
        source.latestOffset(at(100, 50), ALL)
        clock.now += 1
    assert "last stable offset 103" in warned()[0], "the next one that hangs is warned of again"


def test_many_partitions_are_one_line(cluster: Cluster, clock: Clock, warned) -> None:
    many = [P0._replace(partition=n) for n in range(9)]
    cluster.earliest = dict.fromkeys(many, 0)
    cluster.end, cluster.high = dict.fromkeys(many, 100), dict.fromkeys(many, 130)
    source = reader()
    for _ in range(62):
        source.latestOffset(to_json_value(cluster.end), ALL)
        clock.now += 1
    (text,) = warned()
    assert "t-4 (last stable offset 100, high watermark 130) and 4 others" in text


def test_available_now_says_at_once_what_it_leaves_out(
    cluster: Cluster, clock: Clock, warned
) -> None:
    source = reader()
    source.prepareForTriggerAvailableNow()
    (text,) = warned()
    assert "ends before an open transaction" in text
    assert "t-0 (last stable offset 100, high watermark 130)" in text
    assert "describe-producers --topic t --partition 0`" in text
    assert source.latestOffset(at(0, 0), ALL) == at(100, 50)
    assert source.reportLatestOffset() == at(130, 50)
    assert warned() == []


def test_a_topic_that_is_deleted_between_both_questions_is_found_missing(
    cluster: Cluster, clock: Clock, warned, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = reader(failOnDataLoss="false")
    original = cluster.offsets_at

    def gone(specs, *, read_committed):
        if not read_committed:
            cluster.deleted = ("t",)
        return original(specs, read_committed=read_committed)

    monkeypatch.setattr(cluster, "offsets_at", gone)
    assert source.latestOffset(at(100, 50), ALL) == {}
    assert "t-0: its topic was deleted" in warned()[0]
