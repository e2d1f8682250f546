"""Batch reads and writes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from support.brokers.probe import wait_until
from support.clients.librdkafka import producer, transact, transactional
from support.spark.connector import Pipe, error_of

from txnlog_spark.client_cache import ConnectionSettings, client_for


@pytest.mark.matrix
def test_what_is_written_is_read_back_with_every_column(both_pipe: Pipe) -> None:
    pipe = both_pipe
    rows = pipe.spark.sql(
        """select cast('k' as binary) key, 'v' value, 1 partition,
                  array(named_struct('key', 'h', 'value', cast('x' as binary))) headers,
                  timestamp'2013-01-01 10:15:00.123' at
           union all select null, null, 2, null, null"""
    )
    pipe.save(rows, timestampColumn="at")
    read = pipe.read(pipe.output, includeHeaders="true").orderBy("partition").collect()
    assert [(r.key, r.value, r.topic, r.partition, r.offset) for r in read] == [
        (bytearray(b"k"), bytearray(b"v"), pipe.output, 1, 0),
        (None, None, pipe.output, 2, 0),
    ]
    assert read[0].timestamp.isoformat() == "2013-01-01T10:15:00.123000"
    assert [(h.key, bytes(h.value)) for h in read[0].headers] == [("h", b"x")]
    assert read[1].headers is None
    assert read[1].timestampType == 0


def test_every_compression_is_read_by_librdkafka_and_by_us(pipe: Pipe) -> None:
    values = []
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        some = [f"{codec}-{n}" * 20 for n in range(50)]
        pipe.save(pipe.rows(some), **{"kafka.compression.type": codec})
        values += some
    assert pipe.output_values() == sorted(values)
    read = pipe.read(pipe.output).selectExpr("cast(value as string) v").collect()
    assert sorted(row.v for row in read) == sorted(values)


@pytest.mark.matrix
@pytest.mark.live
def test_a_read_ends_before_open_transactions_and_leaves_aborted_ones_out(
    both_pipe: Pipe, unique: Callable[[str], str]
) -> None:
    pipe = both_pipe
    pipe.feed(range(3), partition=0)
    aborted = transactional(pipe.bootstrap, unique("aborted"))
    transact(aborted, pipe.input, "aborted", commits=False)
    pipe.feed(range(3, 6), partition=0)
    still_open = transactional(pipe.bootstrap, unique("open"))
    transact(still_open, pipe.input, "open", commits=None)
    pipe.feed(range(6, 8), partition=0)
    values = sf.expr("cast(value as string) v")
    committed = [row.v for row in pipe.read().select(values).collect()]
    everything = pipe.read(**{"kafka.isolation.level": "read_uncommitted"}).select(values)
    assert committed == [str(n) for n in range(6)]
    assert sorted(r.v for r in everything.collect()) == sorted(
        [*map(str, range(8)), "aborted", "open"]
    )
    still_open.abort_transaction(30)


def test_offsets_and_timestamps_bound_a_read(pipe: Pipe) -> None:
    made = producer(pipe.bootstrap)
    for n in range(10):
        made.produce(pipe.input, str(n).encode(), partition=0, timestamp=1000 * (n + 1))
    assert made.flush(30) == 0

    def values(**options: object) -> list[int]:
        rows = pipe.read(**options).selectExpr("cast(cast(value as string) as int) v").collect()
        return sorted(row.v for row in rows)

    def of_input(offset: int) -> str:
        return json.dumps({pipe.input: {"0": offset, "1": -2, "2": -2}})

    ends = json.dumps({pipe.input: {"0": 7, "1": -1, "2": -1}})
    assert values(startingOffsets=of_input(3), endingOffsets=ends) == [3, 4, 5, 6]
    latest = "latest"
    by_time = {"startingTimestamp": 5000, "startingOffsetsByTimestampStrategy": latest}
    assert values(**by_time, endingTimestamp=9000) == [4, 5, 6, 7]
    assert "no record" in error_of(lambda: values(startingTimestamp=5000))
    ends = json.dumps({pipe.input: {"0": 3, "1": -1, "2": -1}})
    assert values(startingOffsets=of_input(3), endingOffsets=ends) == []
    reversed_ = error_of(lambda: values(startingOffsets=of_input(5), endingOffsets=ends))
    assert re.search(r"startingOffsets.*at most 3, where the read of .*-0 ends", reversed_)


def test_a_read_of_empty_topics_is_empty(pipe: Pipe) -> None:
    assert pipe.read().count() == 0


def test_a_batch_write_is_one_transaction_and_leaves_no_group_behind(pipe: Pipe) -> None:
    pipe.save(pipe.rows(range(500)).repartition(4))
    assert pipe.output_values() == sorted(map(str, range(500)))
    groups = client_for(ConnectionSettings.of({"kafka.bootstrap.servers": pipe.bootstrap}))
    assert not [g for g in groups.list_groups() if "write-" in g.group_id]


def test_a_batch_write_that_fails_writes_nothing(pipe: Pipe) -> None:
    broken = pipe.rows(range(100)).repartition(2).selectExpr(
        "if(value = '57', repeat('x', 2000000), value) as value"
    )  # fmt: skip
    assert "MESSAGE_TOO_LARGE" in error_of(lambda: pipe.save(broken))
    assert pipe.output_values("read_uncommitted") == []


def test_a_batch_read_may_feed_a_write_to_topics_named_by_a_column(
    pipe: Pipe, unique: Callable[[str], str]
) -> None:
    pipe.feed(range(20))
    named = f"if(cast(value as string) < '5', '{pipe.output}', '{unique('auto')}') as topic"
    pipe.save(pipe.read().selectExpr("key", "value", named), topic=None)
    both = pipe.read(f"{pipe.output},{unique('auto')}").groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in both} == {pipe.output: 15, unique("auto"): 5}


def test_a_thread_writes_once_it_has_an_active_session(pipe: Pipe) -> None:
    """Spark looks for Python data sources in that; threads other than the main one have none."""
    rows = pipe.rows(["a"])

    def save_with_session() -> None:
        pipe.spark.createDataFrame([], "nothing INT")
        pipe.save(rows)

    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            first.submit(pipe.save, rows).result()
        second.submit(save_with_session).result()
    assert pipe.output_values() == ["a"]


def interrupt_when_waiting() -> None:
    """Interrupt the main thread once it waits in awaitTermination, as a notebook's stop button
    does."""

    def is_waiting() -> bool:
        names: set[str] = set()
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        return {"awaitTermination", "readinto"} <= names

    wait_until(is_waiting, "the main thread waits for the query")
    os.kill(os.getpid(), signal.SIGINT)


def test_after_an_interrupt_a_write_works_once_the_thread_has_an_active_session_again(
    pipe: Pipe,
) -> None:
    """PySpark's next call has a new thread in the JVM; `getOrCreate()` gives it no session."""
    rows = pipe.rows(["a"])
    query = pipe.write(pipe.stream().select("key", "value")).start()
    with ThreadPoolExecutor(1) as other, pytest.raises(KeyboardInterrupt):
        other.submit(interrupt_when_waiting)
        query.awaitTermination()
    query.stop()
    SparkSession.builder.getOrCreate()
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        pipe.save(rows)
    pipe.spark.createDataFrame([], "nothing INT")
    pipe.save(rows)
    assert pipe.output_values() == ["a"]
