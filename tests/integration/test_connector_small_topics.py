"""Small rows to a topic whose max.message.bytes is below the size of the staged record batches."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from support.clients.librdkafka import create_topic
from support.clients.librdkafka_client import LibrdkafkaAdmin
from support.spark.connector import Pipe, error_of

LIMIT = "max.message.bytes"
ROWS = 5_000


def topic_of(pipe: Pipe, name: str, bytes_max: int) -> str:
    """A topic of one partition with this limit."""
    return create_topic(pipe.bootstrap, name, 1, {LIMIT: str(bytes_max)})


def set_limit(pipe: Pipe, topic: str, bytes_max: int) -> None:
    LibrdkafkaAdmin(pipe.bootstrap).alter_configs(topic, (LIMIT, "SET", str(bytes_max)))


def rows_of_110_bytes(pipe: Pipe) -> DataFrame:
    """Rows in their order, which no codec makes much smaller than half."""
    text = "substr(concat(lpad(id, 6, '0'), sha2(cast(id as string), 512)), 1, 110)"
    return pipe.spark.range(0, ROWS, 1, 1).selectExpr(f"{text} as value")


def values_of(pipe: Pipe, topic: str) -> list[str]:
    """Return the values in the order of the log; `topic` has one partition."""
    read = pipe.read(topic).orderBy("offset").selectExpr("cast(value as string) v")
    return [row.v for row in read.collect()]


@pytest.mark.live
def test_small_rows_pass_whatever_the_topics_limit_is(
    both_pipe: Pipe, unique: Callable[[str], str]
) -> None:
    pipe = both_pipe
    named, in_column = (topic_of(pipe, unique(name), 100_000) for name in ("named", "column"))
    rows = rows_of_110_bytes(pipe)
    expected = [row.value for row in rows.collect()]
    options = {"kafka.compression.type": "zstd"}
    pipe.save(rows, topic=named, **options)
    pipe.save(rows.selectExpr("value", f"'{in_column}' as topic"), topic=None, **options)
    assert values_of(pipe, named) == expected
    assert values_of(pipe, in_column) == expected


def test_a_limit_that_is_lowered_under_a_query_costs_it_nothing(
    both_pipe: Pipe, unique: Callable[[str], str]
) -> None:
    pipe = both_pipe
    output = topic_of(pipe, unique("lowered"), 2**20)
    values = [row.value for row in rows_of_110_bytes(pipe).collect()]
    query = pipe.write(pipe.stream().select("value"), topic=output).start()
    try:
        pipe.feed(values[: ROWS // 2], partition=0)
        query.processAllAvailable()
        set_limit(pipe, output, 100_000)
        pipe.feed(values[ROWS // 2 :], partition=0)
        query.processAllAvailable()
    finally:
        query.stop()
    assert values_of(pipe, output) == values


def test_a_single_record_over_the_limit_passes_when_it_is_raised_as_the_error_says(
    both_pipe: Pipe, unique: Callable[[str], str]
) -> None:
    pipe = both_pipe
    topic = topic_of(pipe, unique("single"), 1_000)
    row = pipe.spark.sql("select 'k' as key, repeat('x', 5000) as value")
    line = error_of(lambda: pipe.save(row, topic=topic))
    found = re.search(r"a record with key b'k' \(a record batch of (\d+) bytes", line)
    assert found is not None, line
    assert f"to {topic}-0" in line
    assert "max.message.bytes is smaller: raise it to at least this size" in line
    set_limit(pipe, topic, int(found[1]))
    pipe.save(row, topic=topic)
    assert values_of(pipe, topic) == ["x" * 5_000]
