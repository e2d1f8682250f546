"""A query that several sources feed, and a checkpoint that lost its newest batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from support.clients.librdkafka import create_topic
from support.spark.connector import Pipe, finish


@pytest.fixture
def second(both_pipe: Pipe, unique: Callable[[str], str]) -> str:
    """The second source's topic."""
    return create_topic(both_pipe.bootstrap, unique("second"), 2)


def both(pipe: Pipe, second: str) -> DataFrame:
    return pipe.stream().union(pipe.stream(subscribe=second)).select("key", "value")


def run_to_the_end(pipe: Pipe, second: str) -> None:
    finish(pipe.write(both(pipe, second)).trigger(availableNow=True).start())


def run_until_all_is_read(pipe: Pipe, second: str) -> None:
    query = pipe.write(both(pipe, second)).trigger(processingTime="100 milliseconds").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()


@pytest.mark.parametrize("advanced", ["first", "second"])
def test_a_lost_batch_of_one_source_is_found_again_though_the_other_has_new_input(
    both_pipe: Pipe, second: str, advanced: str
) -> None:
    pipe = both_pipe
    pipe.feed(range(10))
    pipe.feed(range(10, 20), topic=second)
    run_to_the_end(pipe, second)
    pipe.feed(range(20, 25), topic=pipe.input if advanced == "first" else second)
    run_to_the_end(pipe, second)
    last = max(pipe.logged("offsets"))
    for log in ("offsets", "commits"):
        pipe.lose(log, last)
    pipe.feed(range(25, 30), topic=second if advanced == "first" else pipe.input)
    run_until_all_is_read(pipe, second)
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(30)))


def test_a_trigger_that_runs_one_batch_reads_both_sources_also_after_a_restart(
    both_pipe: Pipe, second: str
) -> None:
    pipe = both_pipe
    for first in (0, 20):
        pipe.feed(range(first, first + 10))
        pipe.feed(range(first + 10, first + 20), topic=second)
        finish(pipe.write(both(pipe, second)).trigger(once=True).start())
        assert pipe.output_values() == sorted(map(str, range(first + 20)))
