"""Tasks that fail and come again, batches of every size, queries that meet: each record once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame
from support.brokers.prepared import wait_until_marked
from support.brokers.probe import wait_until
from support.clients.librdkafka import committed_offsets
from support.spark.connector import Pipe, finish

from txnlog_spark.client_cache import ConnectionSettings, client_for

MIB = 1024 * 1024
VALUE_BYTES = 8 * 1024


def fail_first_attempts(rows: DataFrame) -> DataFrame:
    """Rows as they are, but every task's first attempt dies after its last row."""

    def dying(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        yield from batches
        task = TaskContext.get()
        if task is not None and task.attemptNumber() == 0:
            raise RuntimeError("this attempt dies")

    return rows.select("key", "value").mapInArrow(dying, "key binary, value binary")


@pytest.mark.live
def test_a_task_that_dies_and_is_tried_again_writes_once(both_pipe: Pipe) -> None:
    both_pipe.feed(range(60))
    both_pipe.copy(transform=fail_first_attempts)
    assert both_pipe.output_values("read_uncommitted") == sorted(map(str, range(60)))


def test_a_task_that_always_dies_fails_the_query_and_its_restart_writes_once(pipe: Pipe) -> None:
    from pyspark.errors import PySparkException

    pipe.feed(range(20))
    broken = "if(cast(value as string) = '7', raise_error('poison'), value) as value"
    with pytest.raises(PySparkException, match="poison"):
        pipe.copy(transform=lambda rows: rows.selectExpr("key", broken))
    assert pipe.output_values("read_uncommitted") == []
    pipe.copy()
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(20)))


def test_a_batch_without_rows_commits_its_source_offsets(pipe: Pipe) -> None:
    pipe.feed(range(20))
    pipe.copy(transform=lambda rows: rows.select("key", "value").where("value is null"))
    assert pipe.output_values("read_uncommitted") == []
    assert sum(committed_offsets(pipe.bootstrap, pipe.group, pipe.input, 3).values()) == 20
    pipe.feed(["one row"])
    pipe.copy()
    assert pipe.output_values("read_uncommitted") == ["one row"]


def test_a_weekly_job_goes_on_by_itself_though_the_brokers_have_forgotten_it(
    both_pipe: Pipe,
) -> None:
    pipe = both_pipe
    client = client_for(ConnectionSettings.of({"kafka.bootstrap.servers": pipe.bootstrap}))
    for week in range(3):
        pipe.feed(range(10 * week, 10 * week + 10))
        pipe.copy()
        # What offsets.retention.minutes does in the week after.
        wait_until_marked(pipe.bootstrap)
        client.delete_group(f"{pipe.group}.progress.{pipe.query_id}")
        client.delete_group(pipe.group)
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(30)))


def test_two_queries_that_share_a_transactional_id_by_mistake_lose_and_double_nothing(
    pipe: Pipe, tmp_path: Path
) -> None:
    """Each batch begins with InitProducerId: they end each other's open transactions, no more."""
    shared = {"kafka.transactional.id": f"shared-{pipe.group}"}
    pipe.feed(range(10))
    rows = pipe.stream().select("key", "value")
    first = pipe.write(rows, **shared).trigger(processingTime="200 milliseconds").start()
    try:
        wait_until(lambda: len(pipe.output_values()) == 10, "the first query", timeout_s=120)
        elsewhere = {"checkpointLocation": tmp_path / "second", "kafka.group.id": None, **shared}
        only_odd = rows.where("cast(value as string) in ('1', '3')")
        finish(pipe.write(only_odd, **elsewhere).trigger(availableNow=True).start())
        pipe.feed(range(10, 20))
        wait_until(lambda: len(pipe.output_values()) == 22, "the first one again", timeout_s=120)
    finally:
        first.stop()
    assert pipe.output_values() == sorted([*map(str, range(20)), "1", "3"])
    pipe.copy(sink=shared)
    assert pipe.output_values() == sorted([*map(str, range(20)), "1", "3"])


@contextmanager
def watched_workers(limit_bytes: int) -> Iterator[dict[int, int]]:
    """The largest resident size of each Python descendant of this process, by pid."""
    peaks: dict[int, int] = {}
    done = threading.Event()

    def watch() -> None:
        me = psutil.Process(os.getpid())
        while not done.wait(0.05):
            for child in me.children(recursive=True):
                try:
                    if "python" in child.name():
                        peaks[child.pid] = max(peaks.get(child.pid, 0), child.memory_info().rss)
                except psutil.Error:
                    continue

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peaks
    finally:
        done.set()
        watcher.join()
    assert peaks
    assert max(peaks.values()) < limit_bytes, peaks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch_mib", "worker_mib_max"), [(192, 320), pytest.param(512, 400, marks=pytest.mark.chaos)]
)
def test_a_large_batch_keeps_every_python_worker_small(
    pipe: Pipe, batch_mib: int, worker_mib_max: int
) -> None:
    count = batch_mib * MIB // VALUE_BYTES
    rows = (
        pipe.spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=str(count), numPartitions="2")
        .load()
        .selectExpr(f"rpad(cast(value as string), {VALUE_BYTES}, 'x') as value")
    )
    options = {"kafka.transaction.timeout.ms": 300_000}
    with watched_workers(worker_mib_max * MIB) as peaks:
        query = pipe.write(rows, **options).trigger(once=True).start()
        if not query.awaitTermination(280):
            raise AssertionError(f"the query hangs: {query.status}")
        counted = pipe.read(pipe.output).where(f"length(value) = {VALUE_BYTES}").count()
    assert counted == count
    print({pid: f"{size >> 20} MiB" for pid, size in sorted(peaks.items())})
    assert not list((pipe.checkpoint / "txnlog").rglob("*.staged"))
