"""Topic to topic: a query from `txnlog` to `txnlog` beside one from `kafka` to `kafka`.

Both read the same input topic in micro-batches of the same size and write to topics of their own;
what counts is the median time of a micro-batch, once the query is warm. Ours commits the output,
the group's offsets and its progress in one transaction; Spark's own commits nothing. Only options
that both have are set, but for the group that ours commits. Beside both runs `floor`: what Spark
takes for any source and sink in Python.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from bench_setup import create_topic
from bench_tables import SINKS
from floor import NAME as FLOOR
from floor import Floor

from txnlog_spark.source.planning import OFFSETS_PER_TASK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamWriter

VALUE_BYTES = 200
VALUES = 1_000
"""Different values: enough that nothing is cached by content."""
QUERY_SECONDS_MAX = 600


@dataclass(frozen=True)
class CopyCase:
    """Batches of `rows` from and to topics of `partitions`; the first `warm_up` do not count."""

    rows: int
    partitions: int
    batches: int
    warm_up: int = 3

    @property
    def name(self) -> str:
        """Name of the case in topics, checkpoints and the report."""
        return f"{self.rows}-rows-{self.partitions}-partitions"


CASES = tuple(
    CopyCase(rows, partitions, batches)
    for partitions in (6, 24)
    for rows, batches in ((1_000, 13), (20_000, 9), (200_000, 6))
)
QUICK_CASES = (CopyCase(1_000, 6, 8), CopyCase(20_000, 6, 6))
WARM_UP = CopyCase(1_000, 6, 4, 0)
"""Case that takes the first costs of the JVM and of Spark's classes; no figure includes it."""


def fill_input(servers: str, case: CopyCase, label: str = "in") -> str:
    """A topic with the rows of all batches, the same number in each partition."""
    import numpy as np
    from confluent_kafka import Producer

    topic = create_topic(servers, f"{label}-{case.name}-{case.batches}", case.partitions)
    letters = np.random.default_rng(1).integers(97, 123, size=VALUES * VALUE_BYTES, dtype=np.uint8)
    data = letters.tobytes()
    values = [data[n * VALUE_BYTES : (n + 1) * VALUE_BYTES] for n in range(VALUES)]
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 200_000,
            "log_level": 3,
        }
    )
    for number in range(case.rows * case.batches):
        key = b"key-%012d" % (number % 50_000)
        while True:
            try:
                producer.produce(topic, values[number % VALUES], key, number % case.partitions)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(QUERY_SECONDS_MAX):
        raise RuntimeError(f"{topic} could not be filled")
    return topic


def copy_writer(
    spark: SparkSession,
    connector: str,
    servers: str,
    sources: Sequence[str],
    case: CopyCase,
    read: Mapping[str, str],
) -> DataStreamWriter:
    """The query from these topics to one of its own; `read` has options beside the usual ones."""
    if connector == FLOOR:
        tasks = min(case.partitions, math.ceil(case.rows / OFFSETS_PER_TASK))
        shape = {"rows": case.rows, "tasks": tasks, "end": case.rows * case.batches}
        stream = spark.readStream.format(FLOOR).options(**{k: str(v) for k, v in shape.items()})
        return stream.load().select("key", "value").writeStream.format(FLOOR)
    name = f"{connector}-{sources[0]}"
    target = create_topic(servers, f"out-{name}", case.partitions)
    both = {"kafka.bootstrap.servers": servers}
    if connector == "txnlog":
        both["kafka.group.id"] = f"group-{name}"
    usual = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(case.rows // len(sources)),
        "kafka.isolation.level": "read_committed",
    }
    stream = spark.readStream.format(connector).options(**both, **usual, **read)
    inputs = [stream.option("subscribe", topic).load() for topic in sources]
    rows = reduce(lambda one, other: one.union(other), inputs).select("key", "value")
    return rows.writeStream.format(connector).options(**both, topic=target)


def copy_progress(
    spark: SparkSession,
    connector: str,
    servers: str,
    sources: Sequence[str],
    case: CopyCase,
    read: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Run the query over the whole input: Spark's progress of each batch with rows."""
    writer = copy_writer(spark, connector, servers, sources, case, read)
    name = f"{connector}-{sources[0]}"
    with tempfile.TemporaryDirectory() as checkpoint:
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        if not query.awaitTermination(QUERY_SECONDS_MAX):
            query.stop()
            raise RuntimeError(f"{name} did not end in {QUERY_SECONDS_MAX} s")
        batches = [p for p in query.recentProgress if p["numInputRows"]]
    copied = sum(p["numInputRows"] for p in batches)
    if copied != case.rows * case.batches:
        raise RuntimeError(f"{name} copied {copied} rows of {case.rows * case.batches}")
    return batches


def copy_once(
    spark: SparkSession, connector: str, servers: str, source: str, case: CopyCase
) -> list[int]:
    """The time of each whole batch of one query in ms, warm-up included."""
    batches = copy_progress(spark, connector, servers, [source], case, {})
    return whole_batch_times(batches, case.rows)


def whole_batches(batches: list[dict[str, Any]], rows: int) -> list[dict[str, Any]]:
    """Leave out the small last batch: Spark's own source rounds down what it takes of a
    partition."""
    return [p for p in batches if 2 * p["numInputRows"] > rows]


def whole_batch_times(batches: list[dict[str, Any]], rows: int) -> list[int]:
    """Return the time that each whole batch took, in ms."""
    return [p["durationMs"]["triggerExecution"] for p in whole_batches(batches, rows)]


def measure_copy(
    spark: SparkSession, broker: str, servers: str, cases: tuple[CopyCase, ...]
) -> list[dict]:
    """Measure each micro-batch of both connectors and of the floor, in turns, case after case."""
    spark.dataSource.register(Floor)
    connectors = [*SINKS, FLOOR]
    source = fill_input(servers, WARM_UP)
    for connector in connectors:
        copy_once(spark, connector, servers, source, WARM_UP)
    found = []
    for number, case in enumerate(cases):
        source = fill_input(servers, case)
        result: dict = asdict(case)
        # Who goes first changes, so that neither always meets the colder machine.
        for connector in connectors[:: 1 if number % 2 else -1]:
            times = copy_once(spark, connector, servers, source, case)
            result[f"{connector}_ms"] = times
            middle = statistics.median(times[case.warm_up :])
            print(f"{broker}: {case.name}: {connector}: {middle:,.0f} ms a batch", flush=True)
        found.append(result)
    return found
