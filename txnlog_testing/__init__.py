"""Exactly-once, proven: fixtures for tests with Kafka, and a proof for any streaming job.

`exactly_once(job, input=..., output=...)` runs a job undisturbed and then broken in many ways. The
fixtures `kafka` and `kafka_cluster` are there in every test of an environment with this package.
Nothing here imports Spark before it is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker_sim import Kafka, KafkaRecord, LocalCluster
    from txnlog_testing.failpoints import STEPS
    from txnlog_testing.prove.outputs import Files, Table, Topic
    from txnlog_testing.prove.proof import exactly_once
    from txnlog_testing.prove.report import NotExactlyOnce, Report

_HOMES = {
    "Files": "prove.outputs",
    "Kafka": "broker_sim",
    "KafkaRecord": "broker_sim",
    "LocalCluster": "broker_sim",
    "NotExactlyOnce": "prove.report",
    "Report": "prove.report",
    "STEPS": "failpoints",
    "Table": "prove.outputs",
    "Topic": "prove.outputs",
    "exactly_once": "prove.proof",
}

__all__ = [
    "STEPS",
    "Files",
    "Kafka",
    "KafkaRecord",
    "LocalCluster",
    "NotExactlyOnce",
    "Report",
    "Table",
    "Topic",
    "exactly_once",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    return getattr(import_module(home if home == "broker_sim" else f"{__name__}.{home}"), name)
