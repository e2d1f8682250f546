"""The axes of `bench_growth`: each runs the same work for a growing x, and gives points.

Two axes read logs that would take long to write: transactions by the hundred thousand, and a
backlog of 50 GB. The log of transactions is written into the broker's folder while it does not run,
as the broker would have: it recovers such a log as after a crash. The backlog's batches are
compressed, so that 50 GB of records are some 100 MB of files.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench_copy import WARM_UP, CopyCase, copy_progress, copy_writer, fill_input, whole_batches
from bench_memory import KINDS as MEMORY_KINDS
from bench_memory import make_topics, measure
from bench_setup import create_topic
from floor import NAME as FLOOR
from growth_usage import Usage, span_of
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from support.brokers.probe import ports_of, wait_until
from support.brokers.sim_broker import SimBroker
from support.core.batch_layout import stamped
from support.core.log_build import packed
from support.raw.raw import Connection
from support.raw.requests import produce_request

from broker_sim.core.data_directory import CLEAN_SHUTDOWN_FILE
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import (
    Compression,
    MarkerType,
    Record,
    TransactionMarker,
    encode_batch,
    encode_marker,
)

VALUE_BYTES = 200
BATCH_RECORDS_MAX = 1_000
PRODUCER = 1_000
PRODUCE_VERSION = 9
BACKLOG_PARTITIONS = 6
BACKLOG_VALUE_BYTES = 1_000
GB = 10**9


def aborted_log(path: Path, *, committed: int, percent: int, size: int) -> int:
    """A log with so many committed records, and so many of all aborted, in transactions of `size`.

    Returns how many records it has, markers left out.
    """
    count = committed // size * 100 // (100 - percent)
    kinds = [MarkerType.COMMIT] * (committed // size)
    kinds += [MarkerType.ABORT] * (count - len(kinds))
    random.Random(1).shuffle(kinds)
    now_ms = int(time.time() * 1000)
    value = random.Random(2).randbytes(VALUE_BYTES)
    offset = sequence = 0
    with path.open("wb") as log:
        for kind in kinds:
            for start in range(0, size, BATCH_RECORDS_MAX):
                records = [Record(b"key", value, now_ms)] * min(BATCH_RECORDS_MAX, size - start)
                log.write(
                    encode_batch(
                        records,
                        base_offset=offset,
                        leader_epoch=0,
                        producer_id=PRODUCER,
                        producer_epoch=0,
                        base_sequence=sequence,
                        transactional=True,
                    )
                )
                offset += len(records)
                sequence += len(records)
            marker = encode_marker(TransactionMarker(PRODUCER, 0, kind, 0), timestamp=now_ms)
            log.write(stamped(marker, offset))
            offset += 1
    return count * size


def backlog(servers: str, topic: str, size_gb: int) -> str:
    """A topic with so many GB of records, the same in each partition; returns its name."""
    create_topic(servers, topic, BACKLOG_PARTITIONS)
    value = b"backlog " * (BACKLOG_VALUE_BYTES // 8)
    now_ms = int(time.time() * 1000)
    records = [Record(b"%d" % n, value, now_ms) for n in range(BATCH_RECORDS_MAX)]
    batch = packed(encode_batch(records), Compression.ZSTD)
    message = produce_request(
        {(topic, number): batch for number in range(BACKLOG_PARTITIONS)}, timeout_ms=30_000
    )
    batches = size_gb * GB // (BACKLOG_VALUE_BYTES * BATCH_RECORDS_MAX)
    with Connection(ports_of(servers)[0]) as connection:
        for _ in range(batches // BACKLOG_PARTITIONS):
            answer = connection.ask(message, PRODUCE_VERSION)
            codes = {p.error_code for t in answer.responses for p in t.partition_responses}
            if codes != {ErrorCode.NONE}:
                raise RuntimeError(f"{topic} could not be filled: {codes}")
    return topic


BATCH_S_MAX = 600
ROWS = 20_000
"""Rows of a batch, where something else grows."""
READS = 5
"""Reads of the same log, after one read that finds everything cold."""


@dataclass
class Point:
    """Cost of one batch, or of one read, at this x."""

    x: int
    seconds: float
    cpu_s: dict[str, float] = field(default_factory=dict)
    """CPU seconds by kind of process."""
    mib: dict[str, int] = field(default_factory=dict)
    """Memory by kind of process: of the largest process at its highest, or of all together."""


@dataclass
class Bench:
    """Session, broker and folder in which the axes run. `quick` leaves out the long ends of
    axes."""

    spark: SparkSession
    broker: SimBroker
    usage: Usage
    folder: Path
    quick: bool

    @property
    def servers(self) -> str:
        """Bootstrap servers of the broker."""
        return self.broker.bootstrap_servers

    def xs(self, *values: int) -> Sequence[int]:
        """The values of x that are run."""
        return values[:2] if self.quick else values

    def warm_up(self) -> None:
        """Do some batches that do not count."""
        self.copied(0, WARM_UP, [fill_input(self.servers, WARM_UP)])

    def point(self, x: int, batches: list[dict[str, Any]]) -> Point:
        """The median batch's time and the mean batch's CPU."""
        cpu_s, mib = self.usage.between(*span_of(batches))
        seconds = statistics.median(p["durationMs"]["triggerExecution"] for p in batches) / 1e3
        each = {kind: round(cpu / len(batches), 3) for kind, cpu in cpu_s.items()}
        return Point(x, seconds, each, mib)

    def copied(
        self, x: int, case: CopyCase, sources: Sequence[str], read: Mapping[str, str] | None = None
    ) -> Point:
        """A stream from these topics to one of as many partitions."""
        batches = copy_progress(self.spark, "txnlog", self.servers, sources, case, read or {})
        return self.point(x, whole_batches(batches, case.rows)[case.warm_up :])


Axis = Callable[[Bench], Iterator[tuple[str, Point]]]
"""Gives points with the name of the line that they belong to."""


def partitions(bench: Bench) -> Iterator[tuple[str, Point]]:
    """A batch of ROWS rows from and to more and more partitions."""
    for count in bench.xs(1, 10, 100, 300, 1_000):
        case = CopyCase(ROWS, count, 6, 2)
        yield "", bench.copied(count, case, [fill_input(bench.servers, case)])


def rows(bench: Bench) -> Iterator[tuple[str, Point]]:
    """Larger and larger batches, 6 partitions."""
    for count in bench.xs(1_000, 10_000, 100_000, 1_000_000, 10_000_000):
        batches, warm_up = (6, 2) if count <= 100_000 else (1, 0)
        case = CopyCase(count, 6, batches, warm_up)
        yield "", bench.copied(count, case, [fill_input(bench.servers, case)])


def tasks(bench: Bench) -> Iterator[tuple[str, Point]]:
    """The same batch in more and more tasks."""
    counts = bench.xs(1, 10, 100, 1_000, 2_000)
    for count in counts:
        batches, warm_up = (6, 2) if count <= 100 else (2, 1)
        case = CopyCase(ROWS, 6, batches, warm_up)
        source = fill_input(bench.servers, case, f"tasks-{count}")
        yield "", bench.copied(count, case, [source], {"minPartitions": str(count)})


def sources(bench: Bench) -> Iterator[tuple[str, Point]]:
    """The same number of rows out of more and more sources of one query."""
    for count in bench.xs(1, 2, 4, 8):
        case = CopyCase(ROWS, 6, 6, 2)
        each = CopyCase(ROWS // count, 6, 6, 2)
        topics = [fill_input(bench.servers, each, f"source-{n}") for n in range(count)]
        yield "", bench.copied(count, case, topics)


def aborted(bench: Bench) -> Iterator[tuple[str, Point]]:
    """Read the same committed records from logs with more and more aborted ones beside them."""
    for size in (1, 200, 20_000):
        for percent in bench.xs(0, 50, 75, 90):
            name = f"aborted-{size}-{percent}"
            create_topic(bench.servers, name, 1)
            bench.broker.stop()
            (bench.broker.data_dir / CLEAN_SHUTDOWN_FILE).unlink()
            log = bench.broker.data_dir / f"{name}-0" / f"{0:020d}.log"
            records = aborted_log(log, committed=ROWS, percent=percent, size=size)
            bench.broker.launch()
            read = bench.spark.read.format("txnlog").option("subscribe", name)
            found = read.option("kafka.bootstrap.servers", bench.servers).load()
            times = []
            for _ in range(READS + 1):
                times.append(time.time())
                if (count := found.count()) != ROWS:
                    raise RuntimeError(f"{name}: read {count} rows of {ROWS}")
            times = [*times[1:], time.time()]
            cpu_s, mib = bench.usage.between(times[0], times[-1])
            each = {kind: round(cpu / READS, 3) for kind, cpu in cpu_s.items()}
            seconds = statistics.median(b - a for a, b in pairwise(times))
            yield f"transactions of {size:,}", Point(records, round(seconds, 3), each, mib)


def backlogs(bench: Bench) -> Iterator[tuple[str, Point]]:
    """Batches of 20,000 records of 1 kB at the beginning of larger and larger backlogs, in GB."""
    for size_gb in bench.xs(1, 10, 50):
        topic = backlog(bench.servers, f"backlog-{size_gb}", size_gb)
        case = CopyCase(ROWS, 6, 8, 2)
        writer = copy_writer(bench.spark, "txnlog", bench.servers, [topic], case, {})
        with tempfile.TemporaryDirectory(dir=bench.folder) as checkpoint:
            query = writer.option("checkpointLocation", checkpoint).start()
            wait_until(partial(_has_batches, query, case.batches), "batches", timeout_s=BATCH_S_MAX)
            query.stop()
            batches = [p for p in query.recentProgress if p["numInputRows"]]
        yield "", bench.point(size_gb, batches[case.warm_up : case.batches])


def _has_batches(query: StreamingQuery, count: int) -> bool:
    return query.lastProgress is not None and query.lastProgress["batchId"] >= count


def queries(bench: Bench) -> Iterator[tuple[str, Point]]:
    """Memory of an application with more and more queries, as `bench_memory` measures it."""
    counts = bench.xs(1, 2, 5, 10, 20)
    make_topics(bench.servers, counts[-1])
    for name, line in (("txnlog", "connector"), (FLOOR, "PySpark alone")):
        for count in counts:
            where = bench.folder / f"{name}-{count}"
            where.mkdir()
            found = measure(name, count, bench.servers, where)
            mib = {kind: found[kind][1] for kind, _ in MEMORY_KINDS if found[kind][0]}
            yield line, Point(count, 0.0, {}, mib)


AXES: dict[str, Axis] = {
    each.__name__: each for each in (partitions, rows, aborted, backlogs, queries, sources, tasks)
}
