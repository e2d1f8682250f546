"""Several healthy queries in one session: Spark's planner workers are one pool for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery
from support.brokers.probe import wait_until
from support.clients.librdkafka import create_topic, read_topic, values_of
from support.spark.connector import PARTITIONS, Pipe

TRIGGERS_MS = (100, 1300, 150, 350, 125, 450, 200, 300)
"""The first two make different numbers of batches: their commits go through the workers in turn,
and a query's next commit is seldom in the worker of its last."""
WAIT_S = 3_000


def start(pipe: Pipe, rows: DataFrame, folder: Path, number: int) -> tuple[str, StreamingQuery]:
    """A query with a checkpoint, an output and a trigger of its own."""
    output = create_topic(pipe.bootstrap, f"{pipe.output}-{number}", PARTITIONS)
    sink = {
        "topic": output,
        "kafka.group.id": None,
        "checkpointLocation": str(folder / f"checkpoint-{number}"),
    }
    trigger = f"{TRIGGERS_MS[number]} milliseconds"
    return output, pipe.write(rows, **sink).trigger(processingTime=trigger).start()


def check_all(pipe: Pipe, folder: Path, batch_counts: list[int]) -> None:
    """Every query does its number of batches beside the others, none ends, nothing is doubled."""
    source = pipe.spark.readStream.format("rate").option("rowsPerSecond", 50)
    rows = source.option("numPartitions", 1).load().selectExpr("CAST(value AS STRING) AS value")
    queries = [start(pipe, rows, folder, number) for number in range(len(batch_counts))]
    try:

        def done() -> bool:
            for _, query in queries:
                assert query.isActive, f"a healthy query ended: {query.exception()}"
            ends = [query.lastProgress for _, query in queries]
            pairs = zip(ends, batch_counts, strict=True)
            return all(end is not None and end.batchId >= wanted for end, wanted in pairs)

        wait_until(done, f"{batch_counts} batches", timeout_s=WAIT_S)
    finally:
        for _, query in queries:
            query.stop()
    for output, _ in queries:
        seen = read_topic(pipe.bootstrap, output)
        numbers = sorted(map(int, values_of(seen)))
        assert numbers == list(range(len(numbers))), "a row is missing, or there twice"


@pytest.mark.chaos
@pytest.mark.parametrize("query_count", [2, 8])
def test_no_query_of_a_session_ends_in_a_hundred_batches(
    both_pipe: Pipe, tmp_path: Path, query_count: int
) -> None:
    check_all(both_pipe, tmp_path, [100] * query_count)
