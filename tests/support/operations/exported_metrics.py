"""The metrics that the product exports, asked of the product: names, types, labels."""

from __future__ import annotations

import re
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from unittest import mock

from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql.streaming.listener import SourceProgress
from support.core.core_cluster import CoreCluster, replicated

from broker_sim.core.broker import Broker
from broker_sim.core.effects import Input, Step
from broker_sim.server.metrics import BrokerMetrics
from txnlog_spark.metrics import MetricsListener
from txnlog_spark.sink.commit_reports import CommitReport

Metrics = Mapping[str, frozenset[str]]
"""The labels that samples of each name have, such as `txnlog_commit_seconds_bucket`."""
PHASES_MS = dict.fromkeys(("checkpoint", "takeover", "produce", "end_transaction"), 1.0)


def of_queries() -> Metrics:
    """Return the metrics of a driver whose query has committed a batch."""
    registry = CollectorRegistry()
    query = uuid.uuid4()
    offsets = '{"orders":{"0":1}}'
    source = SourceProgress("txnlog", "null", offsets, offsets, 5, 0.0, 0.0, {})
    progress = SimpleNamespace(id=query, name="shouter", numInputRows=5, sources=[source])
    with tempfile.TemporaryDirectory() as short, mock.patch.object(tempfile, "tempdir", short):
        listener = MetricsListener(registry)
        listener.onQueryProgress(SimpleNamespace(progress=progress))
        listener.close()
    listener._count_report("shouter", CommitReport(str(query), 0, "committed", phases_ms=PHASES_MS))
    return _labels(generate_latest(registry).decode())


def of_brokers() -> Metrics:
    """Return the metrics of a broker of a cluster after clients have written and read a topic."""
    cluster = CoreCluster(3)
    cluster.create(replicated(0, 1, 2))
    broker: Broker = cluster.brokers[0]
    metrics = BrokerMetrics()
    carry_out = broker.step

    def step(item: Input) -> Step:
        found = carry_out(item)
        metrics.count(item, found, broker.parts)
        return found

    broker.step = step
    cluster.produce(0, "a")
    cluster.settle()
    cluster.fetch(0)
    return _labels(metrics.text(broker.parts, 0))


def _labels(text: str) -> Metrics:
    found: dict[str, set[str]] = defaultdict(set)
    for name, labels in re.findall(r"^(\w+)(\{.*\})? \S+$", text, re.MULTILINE):
        found[name] |= set(re.findall(r'(\w+)="', labels))
    return {name: frozenset(labels) for name, labels in found.items()}


_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_MATCHERS = re.compile(r"\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^]]*\]")
_OPERATORS = {"and", "or", "unless", "bool", "offset", "group_left", "group_right", "inf", "nan"}


def metrics_of(expression: str) -> set[str]:
    """The names of the metrics that a PromQL expression reads."""
    bare = _STRING.sub('""', expression)
    for pattern in (_MATCHERS, _GROUPING, _RANGE):
        bare = pattern.sub(" ", bare)
    names = re.findall(r"(?<![\w.$])[a-zA-Z_:][\w:]*(?!\w)(?!\s*\()", bare)
    return {name for name in names if name.lower() not in _OPERATORS}


def labels_of(expression: str) -> Iterator[str]:
    """The labels that it matches on, groups by, or joins on."""
    bare = _STRING.sub('""', expression)
    for matchers in _MATCHERS.findall(bare):
        yield from re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)
    for group in _GROUPING.findall(bare):
        yield from re.findall(r"\w+", group)
