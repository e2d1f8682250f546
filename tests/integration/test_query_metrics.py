"""What a running query shows: Spark's progress, and Prometheus metrics over HTTP."""

from __future__ import annotations

from urllib.request import urlopen

from support.connector import Pipe
from support.probe import wait_until

from txnlog_spark.metrics import offsets_behind_latest, serve_metrics


def test_a_query_can_be_watched_from_outside(pipe: Pipe) -> None:
    pipe.feed(range(100))
    exposition = serve_metrics(pipe.spark, port=0)

    def shown() -> str:
        with urlopen(f"http://127.0.0.1:{exposition.port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

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
