"""Several healthy queries in one session: Spark's planner workers are one pool for all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.streaming import StreamingQuery
from support.connector import PARTITIONS, Pipe
from support.librdkafka import create_topic, read_topic, values_of
from support.probe import wait_until

TRIGGERS_MS = (200, 500, 300, 700, 250, 900, 400, 600)
WAIT_S = 3_000


def start(pipe: Pipe, folder: Path, number: int) -> tuple[str, StreamingQuery]:
    """A query with a group, a checkpoint, an output and a trigger of its own."""
    output = create_topic(pipe.bootstrap, f"{pipe.output}-{number}", PARTITIONS)
    group = f"{pipe.group}-{number}"
    rows = pipe.stream(**{"kafka.group.id": group, "maxOffsetsPerTrigger": 20})
    sink = {
        "topic": output,
        "kafka.group.id": group,
        "checkpointLocation": str(folder / f"checkpoint-{number}"),
    }
    writer = pipe.write(rows.select("key", "value"), **sink)
    trigger = f"{TRIGGERS_MS[number]} milliseconds"
    return output, writer.trigger(processingTime=trigger).start()


def check_all(pipe: Pipe, folder: Path, query_count: int, batch_count: int) -> None:
    """Every query does `batch_count` batches beside the others, none ends, nothing is doubled."""
    record_count = 20 * batch_count
    pipe.feed(range(record_count))
    queries = [start(pipe, folder, number) for number in range(query_count)]
    try:

        def done() -> bool:
            for _, query in queries:
                error = query.exception()
                assert query.isActive, f"a healthy query ended: {error}"
            ends = [query.lastProgress for _, query in queries]
            return all(end is not None and end.batchId >= batch_count for end in ends)

        wait_until(done, f"{batch_count} batches of {query_count} queries", timeout_s=WAIT_S)
        expected = sorted(map(str, range(record_count)))
        for output, _ in queries:
            seen = read_topic(pipe.bootstrap, output, isolation="read_uncommitted")
            assert values_of(seen) == expected
    finally:
        for _, query in queries:
            query.stop()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_queries_of_a_session_do_not_fence_themselves(both_pipe: Pipe, tmp_path: Path) -> None:
    check_all(both_pipe, tmp_path, 2, 12)


@pytest.mark.chaos
@pytest.mark.parametrize("query_count", [2, 8])
def test_no_query_of_a_session_ends_in_a_hundred_batches(
    both_pipe: Pipe, tmp_path: Path, query_count: int, unique: Callable[[str], str]
) -> None:
    check_all(both_pipe, tmp_path, query_count, 100)
