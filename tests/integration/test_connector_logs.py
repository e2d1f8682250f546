"""Spark's table of Python worker logs: the connector's warnings that it has, and those it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.spark.connector import Pipe

OPERATING = Path(__file__).resolve().parents[2] / "docs" / "operating.md"
LOGGING = "spark.sql.pyspark.worker.logging.enabled"


@pytest.fixture
def logging_pipe(pipe: Pipe) -> Iterator[Pipe]:
    """A pipe in a session that collects the logs of its Python workers."""
    pipe.spark.conf.set(LOGGING, "true")
    yield pipe
    pipe.spark.conf.unset(LOGGING)


def has_warned_of(spark: SparkSession, option: str) -> bool:
    """Return True if the session's table has a warning that an option has no effect."""
    rows = spark.tvf.python_worker_logs().where("level = 'WARNING'").collect()
    return any(option in row.msg and "no effect" in row.msg for row in rows)


def test_warnings_of_batch_reads_and_writes_are_in_sparks_table_of_worker_logs(
    logging_pipe: Pipe,
) -> None:
    logging_pipe.feed(range(3))
    assert logging_pipe.read(**{"kafka.linger.ms": 5}).count() == 3
    assert has_warned_of(logging_pipe.spark, "kafka.linger.ms")
    logging_pipe.save(logging_pipe.rows(["x"]), **{"kafka.batch.size": 5})
    assert has_warned_of(logging_pipe.spark, "kafka.batch.size")


def test_warnings_of_a_querys_sink_are_not_in_the_table_of_the_session_that_started_it(
    logging_pipe: Pipe,
) -> None:
    """Spark runs a streaming query in a session of its own, and the table is a session's."""
    logging_pipe.feed(range(3))
    logging_pipe.copy(sink={"kafka.max.block.ms": 5})
    assert logging_pipe.output_values() == ["0", "1", "2"]
    assert not has_warned_of(logging_pipe.spark, "kafka.max.block.ms")
    assert f"`{LOGGING}`" in OPERATING.read_text()
