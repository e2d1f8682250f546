"""A StreamingQueryListener that gives Prometheus the figures of Spark and the sink for each query.

It has two sources: Spark's progress events (rows, lag), and the reports that the sink's workers
send of each commit (`commit_reports`). It ignores reports of queries that this driver does not run.
When a query ends, its lag is removed; its counters stay, so that the last batch is scraped.
"""

from __future__ import annotations

import logging
import secrets
import threading
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
)

from txnlog_spark.metrics.lag import lag_of, offsets_behind_latest
from txnlog_spark.sink.commit_reports import CommitReport, Receiver

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
except ImportError as error:
    raise ImportError(
        "txnlog_spark.metrics needs prometheus-client: install txnlog_spark[metrics]"
    ) from error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQueryManager

LOOPBACK = "127.0.0.1"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Buckets of a commit's latency, in seconds; transactions time out at 300 s by default."""

OUTCOMES = ("committed", "aborted", "fenced", "unknown")

ENDED_MAX = 100
"""Number of ended queries that are still shown."""

logger = logging.getLogger(__name__)


class MetricsListener(StreamingQueryListener):
    """Listener that fills `registry`. Add it with `spark.streams.addListener`, and `close` it at
    the end.

    With the session's `streams` it also shows the growing lag of a query that runs no batches.
    """

    def __init__(
        self, registry: CollectorRegistry, streams: StreamingQueryManager | None = None
    ) -> None:
        self._streams = streams
        self._labels: dict[str, str] = {}
        self._ended: dict[str, None] = {}
        """Labels of ended queries; the query that ended last is at the end."""
        self._shown: dict[str, set[tuple[str, int, str, int]]] = {}
        self._lock = threading.Lock()
        self._make_commit_metrics(registry)
        self._make_source_metrics(registry)
        self._receiver = Receiver(secrets.token_hex(4))
        self._thread = threading.Thread(
            target=self._receive_reports, name="txnlog-metrics", daemon=True
        )
        self._thread.start()

    def _make_commit_metrics(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(f"txnlog_{name}", text, ("query", *more), registry=registry)

        self._seconds = Histogram(
            "txnlog_commit_seconds", "Time that commits of micro-batches took, by phase.",
            ("query", "phase"), registry=registry, buckets=SECONDS,
        )  # fmt: skip
        self._transactions = counter(
            "transactions", "Transactions by outcome: committed, aborted, fenced, unknown.",
            "outcome",
        )  # fmt: skip
        self._replayed = counter("batches_replayed", "Committed batches that Spark replayed.")
        self._failed = counter("commits_failed", "Commits that ended with an error.")
        self._written = {
            "staged_records": counter("staged_records", "Records that tasks staged."),
            "staged_bytes": counter("staged_bytes", "Bytes of record batches that tasks staged."),
            "produced_records": counter("produced_records", "Records in committed transactions."),
            "produced_bytes": counter("produced_bytes", "Bytes in committed transactions."),
        }

    def _make_source_metrics(self, registry: CollectorRegistry) -> None:
        self._rows = Counter(
            "txnlog_input_rows", "Rows that a query read.", ("query",), registry=registry
        )
        self._lag = Gauge(
            "txnlog_source_lag_offsets",
            "Offsets that were there when the last batch was planned and are not in it.",
            ("query", "source", "topic", "partition"),
            registry=registry,
        )
        self._behind = Gauge(
            "txnlog_source_offsets_behind_latest",
            "The lag over all partitions of a source: min, max or avg.",
            ("query", "source", "of"),
            registry=registry,
        )

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Note the query before its first commit."""
        self.watch(str(event.id), event.name)

    def watch(self, query_id: str, name: str | None) -> None:
        """Count reports of this query from now on; its label is the name, without a name the id.

        Its counters begin at 0 here. Prometheus sees no increase in a series that begins at 1, so
        an event that is counted once, such as a fenced transaction, would raise no alert.
        """
        label = name or query_id
        with self._lock:
            self._labels[query_id] = label
        for outcome in OUTCOMES:
            self._transactions.labels(label, outcome)
        for counter in (self._replayed, self._failed, self._rows, *self._written.values()):
            counter.labels(label)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Count the rows of a batch, and show its lag."""
        progress = event.progress
        self.watch(str(progress.id), progress.name)
        label = progress.name or str(progress.id)
        self._rows.labels(label).inc(progress.numInputRows)
        self._show_lag(label, progress.sources)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Show the lag alone: the query could read nothing, but records may be there."""
        query = None if self._streams is None else self._streams.get(str(event.id))
        progress = None if query is None else query.lastProgress
        if progress is not None:
            self._show_lag(progress.name or str(progress.id), progress.sources)

    def _show_lag(self, label: str, sources: list[SourceProgress]) -> None:
        shown = set()
        for index, source in enumerate(sources):
            for (topic, partition), lag in lag_of(source).items():
                self._lag.labels(label, index, topic, partition).set(lag)
                shown.add((label, index, topic, partition))
            for name, value in offsets_behind_latest(source).items():
                self._behind.labels(label, index, name[:3]).set(float(value))
        for gone in self._shown.get(label, set()) - shown:
            self._lag.remove(*gone)
        self._shown[label] = shown

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the lag of the query, and all metrics of queries that ended long ago."""
        with self._lock:
            label = self._labels.pop(str(event.id), None)
            running = set(self._labels.values())
        if label is None:
            return
        self._shown.pop(label, None)
        self._forget_label(label, self._lag, self._behind)
        self._ended.pop(label, None)
        self._ended[label] = None
        while len(self._ended) > ENDED_MAX:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            if oldest not in running:
                counters = (self._transactions, self._replayed, self._failed, self._rows)
                self._forget_label(oldest, *counters, *self._written.values(), self._seconds)

    def close(self) -> None:
        """Receive no more reports. Remove the listener from `spark.streams` first."""
        self._receiver.close()
        self._thread.join()

    def _forget_label(self, label: str, *metrics: Counter | Gauge | Histogram) -> None:
        for metric in metrics:
            metric.remove_by_labels({"query": label})

    def _receive_reports(self) -> None:
        for report in self._receiver.reports():
            with self._lock:
                label = self._labels.get(report.query_id)
            if label is not None:
                logger.info("%s", report)
                self._count_report(label, report)

    def _count_report(self, label: str, report: CommitReport) -> None:
        for phase, duration_ms in (*report.phases_ms.items(), ("total", report.duration_ms)):
            self._seconds.labels(label, phase).observe(duration_ms / 1000)
        for name, counter in self._written.items():
            counter.labels(label).inc(getattr(report, name))
        self._transactions.labels(label, "aborted").inc(report.transactions_aborted)
        if report.outcome == "replayed":
            self._replayed.labels(label).inc()
        elif report.outcome != "failed":
            self._transactions.labels(label, report.outcome).inc()
        if report.outcome not in ("committed", "replayed"):
            self._failed.labels(label).inc()


class Exposition:
    """Metrics of one session, served until `close`."""

    def __init__(self, spark: SparkSession, listener: MetricsListener, server: Any) -> None:
        self._spark = spark
        self._listener = listener
        self._server = server

    @property
    def port(self) -> int:
        """The port of `/metrics`."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving, and remove the listener from the session."""
        self._spark.streams.removeListener(self._listener)
        self._listener.close()
        self._server.shutdown()
        self._server.server_close()


def serve_metrics(
    spark: SparkSession,
    port: int,
    address: str = LOOPBACK,
    registry: CollectorRegistry | None = None,
) -> Exposition:
    """Serve `http://address:port/metrics` for all queries of the session; port 0 takes a free port.

    Call it before queries are started, or their first commits are not counted. It has no login:
    anybody who can reach the address can read it. `registry` may contain metrics of your own.
    """
    registry = CollectorRegistry() if registry is None else registry
    listener = MetricsListener(registry, spark.streams)
    server, _ = start_http_server(port, addr=address, registry=registry)
    spark.streams.addListener(listener)
    for query in spark.streams.active:
        listener.watch(str(query.id), query.name)
    return Exposition(spark, listener, server)
