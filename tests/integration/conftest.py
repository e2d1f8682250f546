"""Spark in the tests' own process, with the Python that runs the tests in its workers too."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.fixture(scope="module")
def connector_spark() -> Iterator:
    """One small session a module; a failed task is tried again, as on a cluster."""
    from support.connector import start_session

    spark = start_session("local[2,3]")
    yield spark
    spark.stop()


@pytest.fixture
def pipe(connector_spark, shared_brokers, tmp_path: Path, unique: Callable[[str], str]):
    """Two topics of broker_sim with three partitions each, and a query's options around them."""
    from support.connector import Pipe

    return Pipe(connector_spark, shared_brokers("broker_sim"), tmp_path, unique)


@pytest.fixture
def both_pipe(connector_spark, broker, tmp_path: Path, unique: Callable[[str], str]):
    """The same on both brokers in turn."""
    from support.connector import Pipe

    return Pipe(connector_spark, broker, tmp_path, unique)
