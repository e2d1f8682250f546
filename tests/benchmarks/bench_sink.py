"""The sink and the source by themselves, beside Spark's own `kafka` ones: see `bench.py`.

A stream of parquet files into a topic, then that topic read back, in rows per second. The peer's
sink is at-least-once without offset commits; ours commits a transaction a micro-batch. Beside both
runs `floor`: what Spark takes for any source or sink in Python.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_setup import create_topic
from bench_tables import SINKS
from floor import NAME as FLOOR
from floor import Floor
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

PARTITIONS = 6
FILES = 8
VALUE_BYTES = 200


def make_input(folder: Path, rows: int) -> None:
    """Parquet files with a key of 16 and a value of 200 bytes; each becomes one micro-batch."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    for number in range(FILES):
        count = rows // FILES
        letters = rng.integers(97, 123, size=(count, VALUE_BYTES), dtype=np.uint8)
        offsets = np.arange(count + 1, dtype=np.int32) * VALUE_BYTES
        values = pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)]
        )
        keys = [f"key-{n:012d}".encode() for n in rng.integers(0, 50_000, size=count)]
        table = pa.table({"key": pa.array(keys, pa.binary()), "value": values})
        pq.write_table(table, folder / f"part-{number}.parquet")


def write_once(
    spark: SparkSession, sink: str, servers: str, folders: dict[str, Path], topic: str
) -> float:
    """Stream the input into the topic: rows per second, the first micro-batch left out."""
    checkpoint = tempfile.mkdtemp(dir=folders["checkpoints"])
    query = (
        spark.readStream.schema("key binary, value binary")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folders["input"]))
        .writeStream.format(sink)
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [p for p in query.recentProgress if p["numInputRows"]][1:]
    seconds = sum(p["durationMs"]["triggerExecution"] for p in batches) / 1000
    return sum(p["numInputRows"] for p in batches) / seconds


def read_once(spark: SparkSession, source: str, servers: str, topic: str, rows: int) -> float:
    """Read the whole topic: rows per second."""
    options = {"rows": str(rows), "tasks": str(PARTITIONS)}
    if source != FLOOR:
        options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
        options["startingOffsets"] = "earliest"
    started = time.monotonic()
    found = (
        spark.read.format(source)
        .options(**options)
        .load()
        .agg(sf.count("value"), sf.sum(sf.length("value")))
        .first()
    )
    seconds = time.monotonic() - started
    if found is None or found[0] != rows:
        raise RuntimeError(f"{source} read {found}, expected {rows} rows")
    return rows / seconds


def measure_sink(
    spark: SparkSession, broker: str, servers: str, folder: Path, rows: int, rounds: int
) -> dict[str, list[float]]:
    """Both sinks and sources in turns on one broker: name -> rows per second, a list of rounds.

    `folder` has the input of `make_input`, and takes the checkpoints.
    """
    folders = {"input": folder / "input", "checkpoints": folder}
    spark.dataSource.register(Floor)
    names = [*SINKS, FLOOR]
    found: dict[str, list[float]] = {f"{k} {s}": [] for k in ("write", "read") for s in names}
    # Round 0 warms both up and is not counted.
    read_rows = rows // FILES * FILES
    for number in range(rounds + 1):
        # Who goes first changes, so that neither always meets the colder machine.
        for sink in names[:: 1 if number % 2 else -1]:
            topic = f"bench-{sink}-{number}"
            create_topic(servers, topic, PARTITIONS)
            rate = write_once(spark, sink, servers, folders, topic)
            found[f"write {sink}"].append(rate)
            print(f"{broker}: round {number}: write {sink}: {rate:,.0f} rows/s", flush=True)
        for source in names[:: 1 if number % 2 else -1]:
            topic = f"bench-txnlog-{number}"
            rate = read_once(spark, source, servers, topic, read_rows)
            found[f"read {source}"].append(rate)
            print(f"{broker}: round {number}: read {source}: {rate:,.0f} rows/s", flush=True)
    return {work: rates[1:] for work, rates in found.items()}
