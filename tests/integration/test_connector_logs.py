"""Warnings of the connector in Spark's table of Python worker logs, and those that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from support.spark.connector import Pipe, finish

from txnlog_spark import foreach_batch

OPERATING = Path(__file__).resolve().parents[2] / "docs" / "operating.md"
LOGGING = "spark.sql.pyspark.worker.logging.enabled"


@pytest.fixture
def logging_pipe(pipe: Pipe) -> Iterator[Pipe]:
    """A pipe in a session that collects the logs of its Python workers."""
    pipe.spark.conf.set(LOGGING, "true")
    yield pipe
    pipe.spark.conf.unset(LOGGING)


def warnings_of(spark: SparkSession, *words: str) -> list[str]:
    """Return the warnings with these words that the session's table has."""
    rows = spark.tvf.python_worker_logs().where("level = 'WARNING'").collect()
    return [row.msg for row in rows if all(word in row.msg for word in words)]


def test_warnings_of_batch_reads_and_writes_are_in_sparks_table_of_worker_logs(
    logging_pipe: Pipe,
) -> None:
    logging_pipe.feed(range(3))
    assert logging_pipe.read(**{"kafka.linger.ms": 5}).count() == 3
    assert warnings_of(logging_pipe.spark, "kafka.linger.ms", "no effect")
    logging_pipe.save(logging_pipe.rows(["x"]), **{"kafka.batch.size": 5})
    assert warnings_of(logging_pipe.spark, "kafka.batch.size", "no effect")


def test_warnings_of_a_querys_sink_are_not_in_the_table_of_the_session_that_started_it(
    logging_pipe: Pipe,
) -> None:
    """Spark runs a streaming query in a session of its own, and the table is a session's."""
    logging_pipe.feed(range(3))
    logging_pipe.copy(sink={"kafka.max.block.ms": 5})
    assert logging_pipe.output_values() == ["0", "1", "2"]
    assert not warnings_of(logging_pipe.spark, "kafka.max.block.ms", "no effect")
    assert f"`{LOGGING}`" in OPERATING.read_text()


# ------------------------------------------------------------------ a plain write in foreachBatch


def run(
    pipe: Pipe, function: Callable[[DataFrame, int], None], checkpoint: str
) -> tuple[StreamingQuery, list[str]]:
    """Run a query of three batches; return it, and its session's warnings of at-least-once."""
    sessions = [pipe.spark]

    def noted(batch: DataFrame, batch_id: int) -> None:
        sessions.append(batch.sparkSession)
        function(batch.select("value"), batch_id)

    rows = pipe.stream(maxOffsetsPerTrigger=1, **{"group.id": None})
    query = rows.writeStream.foreachBatch(noted).option("checkpointLocation", checkpoint)
    ended = finish(query.trigger(availableNow=True).start())
    return ended, warnings_of(sessions[-1], "at-least-once")


def test_a_plain_write_in_foreach_batch_is_told_of_foreach_batch_once(logging_pipe: Pipe) -> None:
    pipe = logging_pipe
    pipe.feed(range(3), partition=0)
    query, warnings = run(pipe, lambda rows, _: pipe.save(rows), f"{pipe.checkpoint}-plain")
    (warning,) = warnings
    assert query.id in warning
    assert "txnlog_spark.foreach_batch" in warning
    assert pipe.output_values() == ["0", "1", "2"]


def test_writes_that_are_exactly_once_or_in_no_query_are_told_nothing(logging_pipe: Pipe) -> None:
    pipe = logging_pipe
    pipe.feed(range(3), partition=0)
    checkpoint = str(pipe.checkpoint)
    servers = {"kafka.bootstrap.servers": pipe.bootstrap, "topic": pipe.output}
    exact = foreach_batch(checkpointLocation=checkpoint, **servers, **{"group.id": pipe.group})

    def both(rows: DataFrame, batch_id: int) -> None:
        exact(rows, batch_id)
        pipe.save(rows, txnAppId=pipe.group, txnVersion=batch_id)

    _, warnings = run(pipe, both, checkpoint)
    pipe.save(pipe.rows(["x"]))
    assert warnings == warnings_of(pipe.spark, "at-least-once") == []
    assert pipe.output_values() == ["0", "0", "1", "1", "2", "2", "x"]
