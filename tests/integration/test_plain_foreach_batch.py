"""A plain write in foreachBatch is at-least-once, and says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery
from support.spark.connector import Pipe, finish

from txnlog_spark import foreach_batch

LOGGING = "spark.sql.pyspark.worker.logging.enabled"
Function = Callable[[DataFrame, int], None]


class Warned:
    """A pipe whose session keeps the logs of its Python processes; Spark has a table of them."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe

    def run(self, function: Function, checkpoint: str) -> tuple[StreamingQuery, list[str]]:
        """Run a query of three batches; return it, and the warnings of its session."""
        sessions = [self.pipe.spark]

        def noted(batch: DataFrame, batch_id: int) -> None:
            sessions.append(batch.sparkSession)
            function(batch.select("value"), batch_id)

        rows = self.pipe.stream(maxOffsetsPerTrigger=1, **{"group.id": None})
        query = rows.writeStream.foreachBatch(noted).option("checkpointLocation", checkpoint)
        ended = finish(query.trigger(availableNow=True).start())
        return ended, self.in_table(sessions[-1])

    def in_table(self, session) -> list[str]:
        """Return the warnings that a session's table has of writes that are at-least-once."""
        rows = session.tvf.python_worker_logs().where("level = 'WARNING'").collect()
        return [row.msg for row in rows if "at-least-once" in row.msg]


@pytest.fixture
def warned(pipe: Pipe) -> Iterator[Warned]:
    pipe.spark.conf.set(LOGGING, "true")
    yield Warned(pipe)
    pipe.spark.conf.unset(LOGGING)


def test_a_plain_write_in_foreach_batch_is_told_of_foreach_batch_once(warned: Warned) -> None:
    pipe = warned.pipe
    pipe.feed(range(3), partition=0)
    query, warnings = warned.run(lambda rows, _: pipe.save(rows), f"{pipe.checkpoint}-plain")
    (warning,) = warnings
    assert query.id in warning
    assert "txnlog_spark.foreach_batch" in warning
    assert pipe.output_values() == ["0", "1", "2"]


def test_writes_that_are_exactly_once_or_in_no_query_are_told_nothing(warned: Warned) -> None:
    pipe = warned.pipe
    pipe.feed(range(3), partition=0)
    checkpoint = str(pipe.checkpoint)
    servers = {"kafka.bootstrap.servers": pipe.bootstrap, "topic": pipe.output}
    exact = foreach_batch(checkpointLocation=checkpoint, **servers, **{"group.id": pipe.group})

    def both(rows: DataFrame, batch_id: int) -> None:
        exact(rows, batch_id)
        pipe.save(rows, txnAppId=pipe.group, txnVersion=batch_id)

    _, warnings = warned.run(both, checkpoint)
    pipe.save(pipe.rows(["x"]))
    assert warnings == warned.in_table(pipe.spark) == []
    assert pipe.output_values() == ["0", "0", "1", "1", "2", "2", "x"]
