"""Topics that come, go and come again while a query with subscribePattern runs."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery
from support.brokers.probe import wait_until
from support.clients.librdkafka import create_topic
from support.clients.librdkafka_client import LibrdkafkaAdmin
from support.spark.connector import Pipe, shown_error

WAIT_S = 120


def start(pipe: Pipe, fail_on_data_loss: str) -> StreamingQuery:
    """A query of all topics that begin as the input does."""
    rows = pipe.stream(
        subscribe=None,
        subscribePattern=f"{pipe.input}.*",
        failOnDataLoss=fail_on_data_loss,
        **{"kafka.metadata.max.age.ms": 100},
    )
    writer = pipe.write(rows.select("key", "value"))
    return writer.trigger(processingTime="100 milliseconds").start()


def wait_for(pipe: Pipe, query: StreamingQuery, count: int) -> None:
    """Return when the output has the numbers below `count`, each once."""

    def done() -> bool:
        assert query.isActive, f"the query ended: {query.exception()}"
        return len(pipe.output_values()) >= count

    wait_until(done, f"{count} records", timeout_s=WAIT_S)
    assert pipe.output_values() == sorted(map(str, range(count)))


@pytest.mark.live
def test_a_running_query_goes_on_when_the_topic_that_its_progress_lies_on_is_deleted(
    both_pipe: Pipe,
) -> None:
    pipe = both_pipe
    kept = create_topic(pipe.bootstrap, f"{pipe.input}-b", 1)
    pipe.feed(range(5))
    pipe.feed(range(5, 10), topic=kept)
    query = start(pipe, "false")
    try:
        wait_for(pipe, query, 10)
        recorded = json.loads((pipe.checkpoint / "txnlog" / "attempt.json").read_text())
        assert recorded["progress_partition"] == [pipe.input, 0]
        LibrdkafkaAdmin(pipe.bootstrap).delete_topic(pipe.input)
        for end in (15, 20):
            pipe.feed(range(end - 5, end), topic=kept)
            wait_for(pipe, query, end)
    finally:
        query.stop()
    assert pipe.output_values("read_uncommitted") == pipe.output_values(), "nothing was aborted"


@pytest.mark.chaos
def test_a_running_query_reads_new_topics_and_goes_on_without_vanished_ones(
    both_pipe: Pipe,
) -> None:
    pipe = both_pipe
    pipe.feed(range(10))
    query = start(pipe, "false")
    try:
        wait_for(pipe, query, 10)
        second = create_topic(pipe.bootstrap, f"{pipe.input}-b", 1)
        pipe.feed(range(10, 20), topic=second)
        wait_for(pipe, query, 20)
        LibrdkafkaAdmin(pipe.bootstrap).delete_topic(second)
        pipe.feed(range(20, 25))
        wait_for(pipe, query, 25)
        third = create_topic(pipe.bootstrap, f"{pipe.input}-c", 2)
        pipe.feed(range(25, 30), topic=third)
        wait_for(pipe, query, 30)
    finally:
        query.stop()


@pytest.mark.chaos
def test_a_vanished_topic_stops_the_query_that_may_lose_nothing(both_pipe: Pipe) -> None:
    pipe = both_pipe
    second = create_topic(pipe.bootstrap, f"{pipe.input}-b", 1)
    pipe.feed(range(5))
    pipe.feed(range(5, 10), topic=second)
    query = start(pipe, "true")
    try:
        wait_for(pipe, query, 10)
        LibrdkafkaAdmin(pipe.bootstrap).delete_topic(second)
        with pytest.raises(PySparkException) as stopped:
            query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    assert "TXNLOG_DATA_LOSS" in shown_error(stopped.value)
