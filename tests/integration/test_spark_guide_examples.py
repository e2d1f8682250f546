"""Spark's own examples for `kafka`, with that one word changed to `txnlog`.

The word count is the file that PySpark installs. Each Python example of the "Structured Streaming +
Kafka Integration Guide" is a row: the options that the example sets, with the addresses and names
of the test. The guide's writers need two additions, as docs/migration.md says: `mode("append")`
and the option `checkpointLocation`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame
from support.brokers.probe import wait_until
from support.clients.librdkafka import create_topic, produce_values
from support.spark.connector import Pipe, finish

EXAMPLES = Path(pyspark.__file__).parent / "examples" / "src" / "main" / "python"
WORD_COUNT = EXAMPLES / "sql" / "streaming" / "structured_kafka_wordcount.py"
ONE = {"subscribe": "topic1"}
BOTH = {"subscribe": "topic1,topic2"}
PATTERN = {"subscribePattern": "topic.*"}
STREAMS = {
    "1 topic": (ONE, 60),
    "1 topic, with headers": (ONE | {"includeHeaders": "true"}, 60),
    "multiple topics": (BOTH, 70),
    "a pattern": (PATTERN, 70),
}
"""Options of `readStream`, and how many of the records that come later it reads."""
BATCHES = {
    "1 topic": (ONE, 60),
    "explicit offsets": (
        BOTH
        | {
            "startingOffsets": '{"topic1":{"0":23,"1":-2},"topic2":{"0":-2}}',
            "endingOffsets": '{"topic1":{"0":50,"1":-1},"topic2":{"0":-1}}',
        },
        27 + 10,
    ),
    "a pattern": (PATTERN | {"startingOffsets": "earliest", "endingOffsets": "latest"}, 70),
}
"""Options of `read`, and how many records it reads."""


class Guide:
    """The guide's topics, under names of the test, and its reader."""

    def __init__(self, pipe: Pipe, unique: Callable[[str], str]) -> None:
        self.pipe = pipe
        self._names = {name: unique(f"guide-{name}") for name in ("topic1", "topic2")}
        create_topic(pipe.bootstrap, self._names["topic1"], 2)
        create_topic(pipe.bootstrap, self._names["topic2"], 1)

    def feed(self) -> None:
        """60 records to the first topic, all in partition 0, and 10 to the second."""
        for name, count in (("topic1", 60), ("topic2", 10)):
            values = map(str, range(count))
            produce_values(self.pipe.bootstrap, self._names[name], values, partition=0)

    def load(self, reader: Any, options: dict[str, str]) -> DataFrame:
        """An example's rows, as the guide selects them."""
        reader = reader.format("txnlog").option("kafka.bootstrap.servers", self.pipe.bootstrap)
        for name, value in options.items():
            reader = reader.option(name, self._renamed(value))
        wanted = ["CAST(key AS STRING)", "CAST(value AS STRING)"]
        return reader.load().selectExpr(
            *wanted, *(["headers"] if "includeHeaders" in options else [])
        )

    def _renamed(self, text: str) -> str:
        text = text.replace("topic.*", "guide-topic.*" + self._names["topic1"][-9:])
        for name, own in self._names.items():
            text = text.replace(name, own)
        return text


@pytest.fixture
def guide(pipe: Pipe, unique: Callable[[str], str]) -> Guide:
    """The topics are empty."""
    return Guide(pipe, unique)


def test_the_word_count_that_pyspark_installs_counts_words(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = WORD_COUNT.read_text().replace('.format("kafka")', '.format("txnlog")')
    monkeypatch.setattr(sys, "argv", [WORD_COUNT.name, pipe.bootstrap, "subscribe", pipe.input])
    code = compile(text, str(WORD_COUNT), "exec")
    program = Thread(target=exec, args=(code, {"__name__": "__main__"}))
    program.start()
    streams = pipe.spark.streams
    try:
        wait_until(lambda: any(q.lastProgress for q in streams.active), "the query")
        (query,) = streams.active
        pipe.feed(["a b", "b c", "a a"])

        def counted() -> int:
            return sum(p.numInputRows for p in query.recentProgress)

        wait_until(lambda: counted() == 3, "the lines are counted")
        assert query.lastProgress.stateOperators[0].numRowsTotal == 3
    finally:
        for each in streams.active:
            each.stop()
        program.join()


def test_the_guides_batch_examples_read_what_they_name(guide: Guide) -> None:
    guide.feed()
    for name, (options, count) in BATCHES.items():
        assert guide.load(guide.pipe.spark.read, options).count() == count, name


@pytest.mark.chaos
def test_the_guides_streaming_examples_read_what_comes(guide: Guide) -> None:
    spark = guide.pipe.spark
    queries = {}
    for name, (options, _) in STREAMS.items():
        rows = guide.load(spark.readStream, options)
        queries[name] = rows.writeStream.format("noop").start()
    try:
        wait_until(lambda: all(q.lastProgress for q in queries.values()), "all begin at the end")
        guide.feed()
        for name, query in queries.items():
            count = STREAMS[name][1]

            def read(query: Any = query) -> int:
                return sum(p.numInputRows for p in query.recentProgress)

            wait_until(lambda read=read, count=count: read() == count, name)
    finally:
        for query in queries.values():
            query.stop()


@pytest.mark.chaos
def test_the_guides_writers_write_to_the_named_topic_and_to_that_of_each_row(guide: Guide) -> None:
    pipe = guide.pipe
    pipe.feed(range(3))
    servers = {"kafka.bootstrap.servers": pipe.bootstrap}
    named = ["CAST(key AS STRING)", "CAST(value AS STRING)"]
    of_rows = [f"'{pipe.output}' AS topic", *named]
    for number, (columns, options) in enumerate(((named, {"topic": pipe.output}), (of_rows, {}))):
        frame = pipe.read().selectExpr(*columns)
        frame.write.format("txnlog").options(**servers, **options).mode("append").save()
        stream = pipe.stream(**{"kafka.group.id": None}).selectExpr(*columns).writeStream
        stream = stream.format("txnlog").options(**servers, **options)
        checkpoint = f"{pipe.checkpoint}-{number}"
        finish(stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
    assert pipe.output_values() == sorted(["0", "1", "2"] * 4)
