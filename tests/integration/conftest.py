"""Queries in the tests' own Spark session, between two topics of a broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.query.checkpoint_query import Query
from support.query.staging_home import staging_home, staging_settings
from support.spark.spark_copy import CLASSES, QUICK

from txnlog_kafka.host.client import Client
from txnlog_kafka.wire.messages import api_of
from txnlog_spark.staging.address import StagingSettings


@pytest.fixture
def pipe(connector_spark, shared_brokers, tmp_path: Path, unique: Callable[[str], str]):
    """Two topics of broker_sim with three partitions each, and a query's options around them."""
    from support.spark.connector import Pipe

    return Pipe(connector_spark, shared_brokers("broker_sim"), tmp_path, unique)


@pytest.fixture
def both_pipe(connector_spark, broker, tmp_path: Path, unique: Callable[[str], str]):
    """The same on both brokers in turn."""
    from support.spark.connector import Pipe

    return Pipe(connector_spark, broker, tmp_path, unique)


@pytest.fixture
def quick_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each JVM that the test starts compiles and loads little: it lives for some seconds."""
    options = (*QUICK, f"-XX:SharedArchiveFile={CLASSES}")
    monkeypatch.setenv("JDK_JAVA_OPTIONS", " ".join(options))


@pytest.fixture
def query(broker, tmp_path: Path, unique: Callable[[str], str]) -> Query:
    """A query whose checkpoint is made by hand, on both brokers in turn."""
    return Query(broker, tmp_path / "checkpoint", unique)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the requests that our clients send from now on, by API."""
    sent: Counter[str] = Counter()
    original = Client._send_call

    def send(client, call, requests):
        sent[api_of(call.message).key.name] += 1
        return original(client, call, requests)

    monkeypatch.setattr(Client, "_send_call", send)
    return sent


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create a folder for staging servers of this test alone; end them with the test."""
    with staging_home(monkeypatch) as folder:
        yield folder


@pytest.fixture
def settings(home: Path) -> StagingSettings:
    """A staging server there."""
    return staging_settings(bind_address="127.0.0.1", directory=str(home / "spool"))
