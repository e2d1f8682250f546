"""Queries in the tests' own Spark session, between two topics of a broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.spark.spark_copy import CLASSES, QUICK


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
