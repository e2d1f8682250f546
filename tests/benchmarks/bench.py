"""`make bench`: this connector beside Spark's own `kafka` one, on the same broker in the same run.

One Spark session does the same work through both, in turns, so that both meet the same machine in
the same state: a stream from topic to topic, a stream of files into a topic, and a batch read.
What is reported are ratios of medians; a single number of rows per second says more about the
machine. All rounds go to docs/performance/bench.json, each work's in place of what is there.

    python tests/benchmarks/bench.py [--quick] [--broker apache_kafka] [--work copy]

With PYTHONPATH set to an older checkout, and run in that folder (Spark's workers look for packages
in the working directory first), it measures the connector that is there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

from bench_broker import brokers_table, measure_brokers
from bench_broker import parse_arguments as broker_arguments
from bench_copy import CASES, QUICK_CASES, measure_copy
from bench_formats import CASES as FORMAT_CASES
from bench_formats import QUICK_CASES as FORMAT_QUICK_CASES
from bench_formats import format_jars, measure_formats
from bench_setup import machine, make_session, revision, running_broker
from bench_sink import make_input, measure_sink
from bench_start import measure_start, start_table
from bench_tables import BY_TCP, SAVED, saved, table_of
from support.spark.spark_kafka_jars import spark_kafka_jars

BROKERS = ("broker_sim", "apache_kafka")
SPARK_WORK = ("copy", "sink", "formats")
WORK = (*SPARK_WORK, "broker", "start")
DEFAULT_WORK = ("copy", "sink")
"""Work of `make bench` without --work: typed streams need two more jars, brokers half an hour,
starts a quarter of one."""


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--broker", action="append", choices=BROKERS, help="default: both")
    parser.add_argument(
        "--work",
        action="append",
        choices=WORK,
        help="copy: topic to topic; sink: write and read; formats: JSON, Avro, Protobuf; "
        "broker: broker_sim beside Apache Kafka, without Spark; start: a small job as a whole",
    )
    parser.add_argument("--rows", type=int, default=400_000, help="of write and read")
    parser.add_argument("--rounds", type=int, default=3, help="of write and read")
    parser.add_argument(
        "--quick", action="store_true", help="two minutes, to see that it runs; nothing is saved"
    )
    parser.add_argument("--tcp", action="store_true", help="between Spark and Python: its default")
    args = parser.parse_args()
    if args.quick:
        args.rows, args.rounds = min(args.rows, 80_000), 1
    return args


def main() -> None:
    """Run the benchmark; print the tables, and save what they are made of."""
    args = parse_arguments()
    work = args.work or DEFAULT_WORK
    if "broker" in work:
        cases = measure_brokers(broker_arguments(["--quick"] if args.quick else []))
        print(brokers_table(cases))
    if "start" in work:
        with tempfile.TemporaryDirectory() as name, running_broker(BROKERS[0], Path(name)) as at:
            print(start_table(measure_start(at, 1 if args.quick else 5)))
    if not set(work) & set(SPARK_WORK):
        return
    jars = spark_kafka_jars()
    if "formats" in work:
        jars += format_jars()
    spark = make_session(jars, over_tcp=args.tcp)
    found: dict[str, dict[str, Any]] = {each: {} for each in SPARK_WORK if each in work}
    for broker in args.broker or BROKERS:
        with tempfile.TemporaryDirectory() as name, running_broker(broker, Path(name)) as servers:
            if "copy" in work:
                cases = QUICK_CASES if args.quick else CASES
                found["copy"][broker] = measure_copy(spark, broker, servers, cases)
            if "formats" in work:
                typed = FORMAT_QUICK_CASES if args.quick else FORMAT_CASES
                found["formats"][broker] = measure_formats(spark, broker, servers, typed, jars)
            if "sink" in work:
                make_input(Path(name) / "input", args.rows)
                found["sink"][broker] = measure_sink(
                    spark, broker, servers, Path(name), args.rows, args.rounds
                )
    spark.stop()
    found = {each + BY_TCP * args.tcp: results for each, results in found.items()}
    print("\n" + "\n\n".join(table_of(each, results) for each, results in found.items()))
    if not args.quick:
        save(found, [jar.name for jar in jars], sys.argv[1:])


def save(found: dict[str, dict[str, Any]], jars: list[str], arguments: list[str]) -> None:
    """Put what was measured in the place of what is saved of the same work."""
    about = {
        "date": date.today().isoformat(),
        "revision": revision(),
        "command": " ".join(["bench.py", *arguments]),
        "machine": machine(),
        "jars": jars,
    }
    new = {each: about | {"brokers": results} for each, results in found.items()}
    SAVED.write_text(json.dumps(saved() | new, indent=1) + "\n")
    print(f"\nall rounds: {SAVED}")


if __name__ == "__main__":
    main()
