"""Where the time of `bench_formats` goes: reads into nothing and writes out of memory, one by one.

Run: python tests/benchmarks/bench_format_parts.py [--rows N] [--format json]. Each figure is the
fastest of three rounds; nothing is asserted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench_formats import (
    BILL_FIELDS,
    BILLED_FIELDS,
    FORMATS,
    ORDER_SQL,
    PARTITIONS,
    FormatCase,
    Job,
    billed,
    cpu_seconds,
    fill_input,
    format_jars,
)
from bench_setup import create_topic, make_session, running_broker  # first: it decides the tree
from pyspark.sql import functions as f
from support.spark.spark_kafka_jars import spark_kafka_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 3


def to_nothing(rows: DataFrame) -> None:
    """Compute all rows."""
    rows.write.format("noop").mode("overwrite").save()


def swallow(batches: Iterator[Any]) -> Iterator[Any]:
    """Take Arrow batches, and do nothing with them."""
    for _ in batches:
        pass
    yield from ()


def parts(
    spark: SparkSession, servers: str, job: Job, source: str, rows: int
) -> Iterator[tuple[str, Callable[[], None]]]:
    """What is measured, by name."""
    base = {"kafka.bootstrap.servers": servers}

    def read(connector: str, **options: str) -> DataFrame:
        reader = spark.read.format(connector).options(**base, **options)
        return reader.option("subscribe", source).option("startingOffsets", "earliest").load()

    def write(connector: str, made: DataFrame, **options: str) -> None:
        topic = create_topic(servers, f"out-{time.monotonic_ns()}", PARTITIONS)
        writer = made.write.format(connector).options(**base, **options).option("topic", topic)
        writer.mode("append").save()

    typed = job.options("in") | {"value.fields": BILLED_FIELDS}
    yield "txnlog: read binary", lambda: to_nothing(read("txnlog"))
    yield "txnlog: read columns, filter", lambda: to_nothing(billed(read("txnlog", **typed)))
    yield "kafka: read binary", lambda: to_nothing(read("kafka"))
    if job.format != "protobuf":
        decoded = read("kafka").withColumn("value", job.decoded(f.col("value")))
        yield "kafka: read and decode, filter", lambda: to_nothing(billed(decoded))
    orders = spark.range(0, rows * 10 // 9, 1, 2)
    orders = orders.selectExpr("cast(id as string) AS key", f"{ORDER_SQL} AS value")
    bills = billed(orders).localCheckpoint()
    columns = job.options("out") | {"value.columns": "*"}
    yield "txnlog: write columns", lambda: write("txnlog", bills, **columns)
    handed = bills.mapInArrow(swallow, "key string")
    yield "Spark: hand the columns to Python", lambda: to_nothing(handed)
    if job.format != "protobuf":
        encoded = bills.select("key", job.encoded(f.struct(*BILL_FIELDS)).alias("value"))
        yield "kafka: encode and write", lambda: write("kafka", encoded)
        binary = encoded.localCheckpoint()
        yield "txnlog: write binary", lambda: write("txnlog", binary)
        yield "kafka: write binary", lambda: write("kafka", binary)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--format", action="append", choices=FORMATS, help="default: json, avro")
    args = parser.parse_args()
    spark = make_session([*spark_kafka_jars(), *format_jars()])
    print("| format | part | rows/s | CPU a row, us |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name, running_broker("broker_sim", Path(name)) as servers:
        for format_name in args.format or ("json", "avro"):
            job = Job(format_name, Path(name))
            source = fill_input(spark, servers, job, FormatCase(format_name, args.rows, 1))
            for part, run in parts(spark, servers, job, source, args.rows):
                seconds, used = [], []
                for _ in range(ROUNDS):
                    cpu, started = cpu_seconds(), time.perf_counter()
                    run()
                    seconds.append(time.perf_counter() - started)
                    used.append(1e6 * (cpu_seconds() - cpu) / args.rows)
                rate = args.rows / min(seconds)
                print(f"| {format_name} | {part} | {rate:,.0f} | {min(used):.2f} |", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
