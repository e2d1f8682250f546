"""Eight queries of one session through many triggers without input: nothing grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener
from support.brokers.probe import wait_until
from support.clients.librdkafka import create_topic, read_topic, values_of
from support.spark.connector import Pipe
from support.spark.resources import MIB, Application, check_flat

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

QUERIES = 8
WARM_TRIGGERS = 60
ROUNDS = 4
"""Batches with input among the triggers without: each goes through the sink."""
BOUNDS = {
    "heap_bytes": 48 * MIB,
    "jvm_threads": 24,
    "jvm_descriptors": 40,
    "python_processes": 4,
    "python_bytes": 12 * MIB,
    "python_threads": 2,
    "python_descriptors": 6,
}
"""Pools of threads, connections and workers grow and shrink. A leak of one thread for each batch
with input is 32, `ROUNDS` of each query; one for each trigger is a thousand."""
IDLE_EVENTS = "spark.sql.streaming.noDataProgressEventInterval"


class IdleTriggers(StreamingQueryListener):
    """Counts the triggers that found nothing, by query."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  Spark's names
        """Ignore the event; the test counts others."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Ignore the event; the test counts others."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """A trigger without input."""
        self.counts[str(event.id)] += 1

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Ignore the event; the test counts others."""


@pytest.fixture
def idle(connector_spark: SparkSession) -> Iterator[IdleTriggers]:
    """Every trigger without input is reported."""
    before = connector_spark.conf.get(IDLE_EVENTS)
    connector_spark.conf.set(IDLE_EVENTS, "0")
    listener = IdleTriggers()
    connector_spark.streams.addListener(listener)
    yield listener
    connector_spark.streams.removeListener(listener)
    connector_spark.conf.set(IDLE_EVENTS, before)


class Queries:
    """Copies of one topic, each to an output of its own."""

    def __init__(self, pipe: Pipe, folder: Path, idle: IdleTriggers) -> None:
        self.pipe = pipe
        self._idle = idle
        self._fed = 0
        self._outputs = [create_topic(pipe.bootstrap, f"{pipe.output}-{n}", 1) for n in range(8)]
        none = {"kafka.group.id": None}
        self.running: list[StreamingQuery] = []
        for number, output in enumerate(self._outputs):
            rows = pipe.stream(**none).select("key", "value")
            checkpoint = str(folder / f"checkpoint-{number}")
            writer = pipe.write(rows, topic=output, checkpointLocation=checkpoint, **none)
            self.running.append(writer.trigger(processingTime="20 milliseconds").start())

    def copy_some(self) -> None:
        """Ten records through all of them."""
        self.pipe.feed(range(self._fed, self._fed + 10))
        self._fed += 10
        wait_until(self._have_all, f"{self._fed} records in each output", timeout_s=300)

    def _have_all(self) -> bool:
        self._check_alive()
        ends = (q.lastProgress for q in self.running)
        return all(end is not None for end in ends) and all(
            len(read_topic(self.pipe.bootstrap, output)) >= self._fed for output in self._outputs
        )

    def _check_alive(self) -> None:
        for query in self.running:
            assert query.isActive, f"a healthy query ended: {query.exception()}"

    def idle_for(self, triggers: int) -> None:
        """Return when each has had so many triggers more without input."""
        goal = {str(q.id): self._idle.counts[str(q.id)] + triggers for q in self.running}

        def done() -> bool:
            self._check_alive()
            return all(self._idle.counts[query] >= count for query, count in goal.items())

        wait_until(done, f"{triggers} triggers of each", timeout_s=3000)

    def check_outputs(self) -> None:
        """Each record once in each."""
        for output in self._outputs:
            seen = read_topic(self.pipe.bootstrap, output, isolation="read_uncommitted")
            assert values_of(seen) == sorted(map(str, range(self._fed)))

    def stop(self) -> None:
        """End all."""
        for query in self.running:
            query.stop()


@pytest.mark.parametrize("triggers", [100, 1000])
def test_triggers_without_input_leave_memory_threads_and_descriptors_flat(
    pipe: Pipe, idle: IdleTriggers, tmp_path: Path, triggers: int
) -> None:
    application = Application(pipe.spark)
    queries = Queries(pipe, tmp_path, idle)
    try:
        queries.copy_some()
        assert application.find_servers() >= 1
        for _ in range(ROUNDS):
            queries.copy_some()
            queries.idle_for(WARM_TRIGGERS // ROUNDS)
        before = application.held()
        for _ in range(ROUNDS):
            queries.copy_some()
            queries.idle_for(triggers // ROUNDS)
        application.check_servers()
        check_flat(before, application.held(), BOUNDS)
    finally:
        queries.stop()
    queries.check_outputs()
