"""Time of a small job as a whole: `make bench BENCH_ARGS="--work start"`.

An `availableNow` query of 1,000 rows from topic to topic on broker_sim, from the start of
`spark-submit` to its end; and a second query in the same session. Five peers take turns: Spark's
own `kafka` source and sink; a source and a sink of a few lines of Python (the floor: PySpark's own
time) and the connector, each with `python` and with `txnlog-python` in its place.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench_setup import ROOT, TREE, create_topic
from floor import NAME as FLOOR
from start_job import ROWS

JOB = Path(__file__).with_name("start_job.py")
WARM = "txnlog-python"
PEERS = {
    "kafka": ("kafka", False),
    FLOOR: (FLOOR, False),
    f"{FLOOR} with {WARM}": (FLOOR, True),
    "txnlog": ("txnlog", False),
    f"txnlog with {WARM}": ("txnlog", True),
}
"""Formats, and whether `txnlog-python` takes the place of `python`."""

Times = dict[str, dict[str, list[float]]]
"""Seconds of all rounds by peer, then by kind: `whole` process, `second` query."""


def measure_start(servers: str, rounds: int) -> Times:
    """Run all peers in turns."""
    from support.spark.spark_kafka_jars import spark_kafka_jars

    make_input(servers)
    jars = spark_kafka_jars()
    found: Times = {peer: {"whole": [], "second": []} for peer in PEERS}
    for number in range(rounds):
        for peer in PEERS:
            began = time.monotonic()
            run_job(peer, servers, 1, jars)
            found[peer]["whole"].append(time.monotonic() - began)
            found[peer]["second"].append(run_job(peer, servers, 2, jars)[1])
            shown = {kind: round(times[-1], 1) for kind, times in found[peer].items()}
            print(f"round {number}: {peer}: {shown}", file=sys.stderr, flush=True)
    return found


def make_input(servers: str) -> None:
    """Make the topic that every job reads."""
    from support.clients.librdkafka import produce_values

    create_topic(servers, "in", 1)
    produce_values(servers, "in", [str(each) for each in range(ROWS)])


def run_job(peer: str, servers: str, count: int, jars: list[Path]) -> list[float]:
    """Return the seconds of each query of one application. Raises SystemExit with what it said."""
    from support.spark.spark_home import INSTALLED, WARM_PYTHON

    name, is_warm = PEERS[peer]
    python = WARM_PYTHON if is_warm else sys.executable
    path = [str(TREE), str(Path(__file__).parent), str(ROOT / "tests")]
    variables = os.environ | {
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "PYTHONPATH": os.pathsep.join(path),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [str(INSTALLED / "bin" / "spark-submit"), "--conf", "spark.log.level=ERROR"]
        command += ["--jars", ",".join(map(str, jars))] if peer == "kafka" else []
        command += [str(JOB), name, servers, folder, str(count)]
        done = subprocess.run(
            command, check=False, env=variables, cwd=folder, capture_output=True, text=True
        )
    if done.returncode != 0 or f"{WARM}:" in done.stderr:
        raise SystemExit(f"{peer} ended with code {done.returncode}:\n{done.stderr[-3000:]}")
    return [float(line) for line in done.stdout.split()]


def start_table(found: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Medians with their range, and ratios of medians: below 1 is the faster one."""
    kinds = {"whole": "whole process", "second": "second query"}
    columns = [f"{kind}, s | : kafka | : plain" for kind in kinds.values()]
    lines = [f"| | {' | '.join(columns)} |", "|---" * 7 + "|"]
    for peer, times in found.items():
        cells = []
        for kind in kinds:
            mine, spark, plain = (
                statistics.median(each[kind]) for each in (times, found["kafka"], found["txnlog"])
            )
            span = f"({min(times[kind]):.1f} - {max(times[kind]):.1f})"
            cells += [f"{mine:.1f} {span}", f"{mine / spark:.2f}", f"{mine / plain:.2f}"]
        lines.append(f"| {peer} | {' | '.join(cells)} |")
    return "\n".join(lines)
