"""Host of a read's requests: brokers that cannot be reached at first, and the cached answers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.query.source_cluster import ALL, Cluster, at, reader, run, stand_in

from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.session import Session
from txnlog_spark.errors import DataLoss, DeadlineExceeded
from txnlog_spark.source import host
from txnlog_spark.source.available import SourceState
from txnlog_spark.source.log_queries import LogQueries
from txnlog_spark.source.plan_batch import latest_offset
from txnlog_spark.source.settings import read_source_settings

UNREACHABLE = DeadlineExceeded("reaching a broker", 5, "refused")


@pytest.mark.parametrize(("tries", "failures"), [("3", 2), ("1", 0)])
def test_brokers_are_tried_to_be_reached_as_often_as_the_option_says(
    monkeypatch: pytest.MonkeyPatch, tries: str, failures: int
) -> None:
    outcomes: list[Exception | None] = [UNREACHABLE] * failures + [None, UNREACHABLE]
    pauses: list[float] = []

    def client_for(_connection: object) -> SimpleNamespace:
        if (error := outcomes.pop(0)) is not None:
            raise error
        return SimpleNamespace(session=Session(lambda: 7), run=run)

    monkeypatch.setattr(host, "client_for", client_for)
    monkeypatch.setattr(host, "time", SimpleNamespace(sleep=pauses.append))
    given = {"fetchOffset.numRetries": tries, "fetchOffset.retryIntervalMs": "40"}
    servers = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    settings = read_source_settings(servers | given, streaming=True)

    def clock(brokers: LogQueries) -> Operation[int]:
        yield from ()
        assert brokers.settings is settings
        return brokers.session.monotonic_ms()

    assert (host.ask(settings, clock), pauses) == (7, [0.04] * failures)
    outcomes[:] = [UNREACHABLE] * (failures + 1)
    with pytest.raises(DeadlineExceeded):
        host.ask(settings, clock)


def test_a_question_that_fails_leaves_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    source = reader()
    with pytest.raises(DataLoss):
        source.latestOffset(at(101, 50), ALL)
    assert source.reportLatestOffset() is None
    assert source.latestOffset(at(90, 50), ALL) == source.reportLatestOffset() == at(100, 50)


def test_what_an_operation_is_given_stays_as_it_is() -> None:
    cluster, before = Cluster(), SourceState()
    settings = reader(startingOffsets="latest")._settings
    end, after = run(latest_offset(cluster.brokers(settings), before, at(1, 1), None))
    assert (end, after.latest) == (at(100, 50), at(100, 50))
    assert before == SourceState()
