"""Metrics of a running query: Spark's progress, and Prometheus metrics over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from urllib.request import urlopen

from support.brokers.probe import wait_until
from support.clients.librdkafka import transact, transactional
from support.spark.connector import Pipe

from txnlog_spark.metrics import offsets_behind_latest, serve_metrics


def scraped(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_a_query_that_waits_for_an_open_transaction_is_shown_to_be_behind(
    pipe: Pipe, unique: Callable[[str], str]
) -> None:
    interval = "spark.sql.streaming.noDataProgressEventInterval"
    pipe.spark.conf.set(interval, "100")
    pipe.feed(range(3), partition=0)
    exposition = serve_metrics(pipe.spark, port=0)
    query = pipe.write(pipe.stream().select("value")).start()
    try:
        query.processAllAvailable()
        still_open = transactional(pipe.bootstrap, unique("open"))
        transact(still_open, pipe.input, "open", commits=None)
        pipe.feed(range(9), partition=0)
        lag = f'partition="0",query="{query.id}",source="0",topic="{pipe.input}"}} 10.0'
        wait_until(lambda: lag in scraped(exposition.port), "the lag of a query without batches")
        behind = offsets_behind_latest(query.lastProgress.sources[0])
        assert behind["maxOffsetsBehindLatest"] == "10"
        still_open.commit_transaction(30)
        query.processAllAvailable()
        wait_until(lambda: lag not in scraped(exposition.port), "that it is not behind any more")
    finally:
        query.stop()
        exposition.close()
        pipe.spark.conf.unset(interval)


def test_a_query_can_be_watched_from_outside(pipe: Pipe) -> None:
    pipe.feed(range(100))
    exposition = serve_metrics(pipe.spark, port=0)

    def shown() -> str:
        return scraped(exposition.port)

    try:
        name = f"copy of {pipe.input}"
        query = pipe.copy(source={"maxOffsetsPerTrigger": 60}, sink={"queryName": name})
        assert query.name == name
        first, second = (p for p in query.recentProgress if p.numInputRows)
        assert [p.sink.numOutputRows for p in (first, second)] == [60, 40]
        behind = offsets_behind_latest(first.sources[0])
        assert sum(float(behind[k]) for k in behind if k.startswith("avg")) * 3 == 40
        assert offsets_behind_latest(second.sources[0])["maxOffsetsBehindLatest"] == "0"
        label = f'query="{name}"'
        done = f'txnlog_transactions_total{{outcome="committed",{label}}} 2.0'
        wait_until(lambda: done in shown(), "both commits are counted")
        wait_until(lambda: f"txnlog_input_rows_total{{{label}}} 100.0" in shown(), "all rows are")
        text = shown()
        assert f"txnlog_produced_records_total{{{label}}} 100.0" in text
        assert f'txnlog_commit_seconds_count{{phase="end_transaction",{label}}} 2.0' in text
    finally:
        exposition.close()
