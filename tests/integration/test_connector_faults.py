"""Tasks that fail and come again, batches of every size: each record once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from support.clients.librdkafka import committed_offsets
from support.spark.connector import Pipe
from support.spark.spark_copy import descendants

MIB = 1024 * 1024
RESIDENT_PAGES = 21
"""Place in /proc/PID/stat, counted behind the name."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
VALUE_BYTES = 8 * 1024
CHECK = "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"


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
    pipe.feed(range(20))
    broken = "if(cast(value as string) = '7', raise_error('poison'), value) as value"
    with pytest.raises(PySparkException, match="poison"):
        pipe.copy(transform=lambda rows: rows.selectExpr("key", broken))
    assert pipe.output_values("read_uncommitted") == []
    pipe.copy()
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(20)))


def delete_what_was_left(pipe: Pipe) -> None:
    for path in (pipe.checkpoint / "offsets").glob(".*"):
        path.unlink()


def turn_the_check_off(pipe: Pipe) -> None:
    pipe.spark.conf.set(CHECK, "false")


@pytest.mark.parametrize("remedy", [delete_what_was_left, turn_the_check_off])
def test_a_driver_killed_in_its_first_entry_of_the_offset_log_is_started_as_the_docs_say(
    pipe: Pipe, remedy: Callable[[Pipe], None]
) -> None:
    """`docs/operating.md`, "Killed at the start"; a random kill has left just this."""
    pipe.feed(range(20))
    offsets = pipe.checkpoint / "offsets"
    offsets.mkdir(parents=True)
    for name in (".0.83f24926.tmp", "..0.83f24926.tmp.crc"):
        (offsets / name).touch()
    with pytest.raises(PySparkException, match="STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"):
        pipe.copy()
    try:
        remedy(pipe)
        pipe.copy()
    finally:
        pipe.spark.conf.unset(CHECK)
    assert pipe.output_values("read_uncommitted") == sorted(map(str, range(20)))


def test_a_batch_without_rows_commits_its_source_offsets(pipe: Pipe) -> None:
    pipe.feed(range(20))
    pipe.copy(transform=lambda rows: rows.select("key", "value").where("value is null"))
    assert pipe.output_values("read_uncommitted") == []
    assert sum(committed_offsets(pipe.bootstrap, pipe.group, pipe.input, 3).values()) == 20
    pipe.feed(["one row"])
    pipe.copy()
    assert pipe.output_values("read_uncommitted") == ["one row"]


@contextmanager
def watched_workers(limit_bytes: int) -> Iterator[dict[int, int]]:
    """The largest resident size of each Python descendant of this process, by pid."""
    peaks: dict[int, int] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            with suppress(OSError):  # a process has just ended
                for pid in descendants(os.getpid())[1:]:
                    name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
                    if "python" in name:
                        size = int(rest.split()[RESIDENT_PAGES]) * PAGE_BYTES
                        peaks[pid] = max(peaks.get(pid, 0), size)

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
    ("batch_mib", "worker_mib_max"), [(96, 240), pytest.param(256, 400, marks=pytest.mark.chaos)]
)
def test_a_large_batch_keeps_every_python_worker_small(
    pipe: Pipe, batch_mib: int, worker_mib_max: int
) -> None:
    """The batch has one task, which stages all of it."""
    count = batch_mib * MIB // VALUE_BYTES
    rows = (
        pipe.spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=str(count), numPartitions="1")
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
