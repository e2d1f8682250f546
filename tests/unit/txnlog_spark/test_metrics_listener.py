"""The Prometheus metrics of a query, from Spark's events and the sink's reports."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql.streaming.listener import SourceProgress
from support.brokers.probe import wait_until

from txnlog_spark.metrics import MetricsListener, offsets_behind_latest
from txnlog_spark.sink.commit_reports import CommitReport, send

QUERY = uuid.uuid4()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[CollectorRegistry]:
    with tempfile.TemporaryDirectory() as short:  # a socket's path has 107 bytes at most
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield CollectorRegistry()


@pytest.fixture
def listener(registry: CollectorRegistry):
    made = MetricsListener(registry)
    yield made
    made.close()


def source(end: object, latest: object) -> SourceProgress:
    return SourceProgress("txnlog", "null", str(end), str(latest), 5, 0.0, 0.0, {})


def progress(*sources: SourceProgress) -> SimpleNamespace:
    shown = SimpleNamespace(id=QUERY, name="shouter", numInputRows=5, sources=list(sources))
    return SimpleNamespace(progress=shown)


END = '{"t":{"0":90,"1":50},"txnlog.cluster.id=A":{}}'
LATEST = '{"t":{"0":100,"1":50,"2":7}}'


def test_the_lag_is_shown_by_partition_and_as_sparks_three_figures() -> None:
    assert offsets_behind_latest(source(END, LATEST)) == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "10",
        "avgOffsetsBehindLatest": "5.0",
    }


@pytest.mark.parametrize(("end", "latest"), [(END, None), ('{"logOffset":3}', '{"logOffset":4}')])
def test_a_source_without_partitions_has_no_such_figures(end, latest) -> None:
    assert offsets_behind_latest(source(end, latest)) == {}


def test_progress_events_fill_rows_and_lag_and_the_end_of_a_query_removes_the_lag(
    listener: MetricsListener, registry: CollectorRegistry
) -> None:
    listener.onQueryProgress(progress(source(END, LATEST)))
    lag = {"query": "shouter", "source": "0", "topic": "t", "partition": "0"}
    assert registry.get_sample_value("txnlog_source_lag_offsets", lag) == 10
    behind = {"query": "shouter", "source": "0", "of": "avg"}
    assert registry.get_sample_value("txnlog_source_offsets_behind_latest", behind) == 5.0
    listener.onQueryProgress(progress(source('{"u":{"0":1}}', '{"u":{"0":1}}')))
    assert registry.get_sample_value("txnlog_source_lag_offsets", lag) is None
    listener.onQueryTerminated(SimpleNamespace(id=QUERY))
    text = generate_latest(registry).decode()
    assert 'txnlog_input_rows_total{query="shouter"} 10.0' in text
    assert "txnlog_source_lag_offsets{" not in text


def test_what_may_be_counted_once_is_shown_as_none_before(
    listener: MetricsListener, registry: CollectorRegistry
) -> None:
    """Prometheus' increase() is 0 for a series that begins at 1."""
    listener.onQueryStarted(SimpleNamespace(id=QUERY, name="shouter"))
    shown = generate_latest(registry).decode()
    for outcome in ("committed", "aborted", "fenced", "unknown"):
        assert f'txnlog_transactions_total{{outcome="{outcome}",query="shouter"}} 0.0' in shown
    for name in ("commits_failed", "batches_replayed", "input_rows", "produced_bytes"):
        assert f'txnlog_{name}_total{{query="shouter"}} 0.0' in shown


def test_reports_of_this_drivers_queries_are_counted(
    listener: MetricsListener, registry: CollectorRegistry
) -> None:
    listener.onQueryStarted(SimpleNamespace(id=QUERY, name=None))
    send(CommitReport(str(uuid.uuid4()), 0, "committed", produced_records=1000))
    done = CommitReport(str(QUERY), 0, "committed", 1, 9, 90, 8, 80, 2, {"produce": 40.0})
    for report in (done, CommitReport(str(QUERY), 0, "replayed"), CommitReport(str(QUERY), 1)):
        send(report)
    send(CommitReport(str(QUERY), 1, "fenced"))
    query = {"query": str(QUERY)}

    def value(name: str, **more: str) -> float | None:
        return registry.get_sample_value(f"txnlog_{name}", query | more)

    wait_until(lambda: value("commits_failed_total") == 2, "the last report is counted")
    assert value("transactions_total", outcome="committed") == 1
    assert value("transactions_total", outcome="aborted") == 1
    assert value("transactions_total", outcome="fenced") == 1
    assert value("batches_replayed_total") == 1
    assert [value(f"{n}_total") for n in ("staged_records", "staged_bytes")] == [9, 90]
    assert [value(f"{n}_total") for n in ("produced_records", "produced_bytes")] == [8, 80]
    assert value("commit_seconds_sum", phase="produce") == pytest.approx(0.04)
    assert value("commit_seconds_count", phase="total") == 4


def test_of_many_queries_that_have_ended_the_last_are_shown(
    listener: MetricsListener, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnlog_spark.metrics.listener.ENDED_MAX", 2)
    for number in (0, 1, 0, 2, 3):
        query_id = uuid.uuid4()
        listener.onQueryStarted(SimpleNamespace(id=query_id, name=f"q{number}"))
        shown = SimpleNamespace(id=query_id, name=f"q{number}", numInputRows=5, sources=[])
        listener.onQueryProgress(SimpleNamespace(progress=shown))
        listener.onQueryTerminated(SimpleNamespace(id=query_id))
    names = [f"q{n}" for n in range(4)]
    rows = [registry.get_sample_value("txnlog_input_rows_total", {"query": n}) for n in names]
    assert rows == [None, None, 5, 5]
