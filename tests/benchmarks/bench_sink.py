"""`make bench`: the txnlog sink and source beside Spark's own `kafka` ones, on the same broker.

One Spark session runs the same work through both, in turns, so that both meet the same machine in
the same state: a stream of parquet files into a topic, then that topic read back. What is reported
are ratios of medians; a single number of rows per second says more about the machine. The peer's
sink is at-least-once without offset commits; ours commits a transaction a micro-batch.

    python tests/benchmarks/bench_sink.py [--broker broker_sim] [--rows 400000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from support.spark_kafka_jars import spark_kafka_jars

ROOT = Path(__file__).resolve().parents[2]
SINKS = ("kafka", "txnlog")
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
    started = time.monotonic()
    found = (
        spark.read.format(source)
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .agg(sf.count("value"), sf.sum(sf.length("value")))
        .first()
    )
    seconds = time.monotonic() - started
    if found is None or found[0] != rows:
        raise RuntimeError(f"{source} read {found}, expected {rows} rows")
    return rows / seconds


@contextlib.contextmanager
def running_broker(name: str, folder: Path) -> Iterator[str]:
    """Bootstrap servers of a fresh broker."""
    if name == "apache_kafka":
        from support.apache_kafka import ApacheKafka

        with ApacheKafka(folder / "kafka") as broker:
            yield broker.bootstrap_servers
    else:
        from broker_sim import LocalCluster

        with LocalCluster(folder / "broker_sim") as cluster:
            yield cluster.bootstrap_servers


def create_topic(servers: str, topic: str) -> None:
    """A topic for one run, so that every run appends to an empty log."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)


def measure(spark: SparkSession, broker: str, folder: Path, rows: int, rounds: int) -> dict:
    """Both sinks and sources in turns on one broker: name -> rows per second, a list of rounds."""
    folders = {"input": folder / "input", "checkpoints": folder}
    found: dict[str, list[float]] = {f"{k} {s}": [] for k in ("write", "read") for s in SINKS}
    with running_broker(broker, folder) as servers:
        # Round 0 warms both up and is not counted.
        for number in range(rounds + 1):
            # Who goes first changes, so that neither always meets the colder machine.
            for sink in SINKS if number % 2 else reversed(SINKS):
                topic = f"bench-{sink}-{number}"
                create_topic(servers, topic)
                rate = write_once(spark, sink, servers, folders, topic)
                found[f"write {sink}"].append(rate)
                print(f"{broker}: round {number}: write {sink}: {rate:,.0f} rows/s", flush=True)
            for source in SINKS if number % 2 else reversed(SINKS):
                topic = f"bench-txnlog-{number}"
                rate = read_once(spark, source, servers, topic, rows // FILES * FILES)
                found[f"read {source}"].append(rate)
                print(f"{broker}: round {number}: read {source}: {rate:,.0f} rows/s", flush=True)
    return {work: rates[1:] for work, rates in found.items()}


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """The ratios, as Markdown."""
    lines = [
        "| broker | work | kafka, rows/s | txnlog, rows/s | txnlog : kafka |",
        "|---|---|---|---|---|",
    ]
    for broker, found in results.items():
        for work in ("write", "read"):
            peer, ours = (statistics.median(found[f"{work} {sink}"]) for sink in SINKS)
            row = f"| {broker} | {work} | {peer:,.0f} | {ours:,.0f} | {ours / peer:.2f} |"
            lines.append(row)
    return "\n".join(lines)


def make_session(jars: list[Path]) -> SparkSession:
    """One session with both connectors; its workers find the packages of this tree."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .getOrCreate()
    )


def main() -> None:
    """Run the benchmark; write artifacts/bench.json and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--broker", action="append", choices=("broker_sim", "apache_kafka"))
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    jars = spark_kafka_jars()
    spark = make_session(jars)
    results: dict[str, Any] = {}
    for broker in args.broker or ("broker_sim", "apache_kafka"):
        with tempfile.TemporaryDirectory() as name:
            make_input(Path(name) / "input", args.rows)
            results[broker] = measure(spark, broker, Path(name), args.rows, args.rounds)
    out = ROOT / "artifacts" / "bench.json"
    out.parent.mkdir(exist_ok=True)
    about = {"rows": args.rows, "value_bytes": VALUE_BYTES, "jars": [j.name for j in jars]}
    out.write_text(json.dumps({"about": about, "rows_per_second": results}, indent=2) + "\n")
    spark.stop()
    print(f"\n{table(results)}\n\nall rounds: {out.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
