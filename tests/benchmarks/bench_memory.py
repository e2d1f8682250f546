"""Memory by kind of process of a Spark application with some streaming queries, in MiB.

Run: python tests/benchmarks/bench_memory.py [--queries 1 5] [--json FILE].
Each application has a driver and one executor, as on a cluster (`local-cluster[1,1,1024]`), and is
measured twice: with queries of the connector's, and with as many of a data source and a sink of a
few lines of Python, which shows what PySpark takes by itself. A process's memory is its PSS of
/proc/PID/smaps_rollup: pages that several processes share are divided among them. It is read when
each query has committed some batches (`memory_job.py`). Nothing is asserted: figures depend on the
machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATHS = [str(ROOT), str(ROOT / "tests")]
sys.path[:0] = PATHS

# isort: split

from floor import NAME as FLOOR  # noqa: E402
from support.brokers.sim_broker import SimBroker  # noqa: E402
from support.clients.librdkafka import create_topic, produce_values  # noqa: E402
from support.spark.spark_home import INSTALLED  # noqa: E402

JOB = Path(__file__).with_name("memory_job.py")
STAGING = "txnlog_spark.staging.server"
KINDS = (
    ("driver: JVM", "the driver's JVM"),
    ("driver: job", "the job's Python"),
    ("driver: sources", "sources of streams, one a query"),
    ("driver: planning", "planning and commits"),
    ("driver: staging", "staging server"),
    ("executor: JVM", "an executor's JVM"),
    ("executor: Python", "an executor's Python"),
)
"""Kinds of processes: name, and what a table says."""
MIB = 1024
"""kB in one."""


def pss_mib(pid: int) -> float:
    """A process's share of memory."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (found,) = re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found) / MIB


def parents() -> dict[int, int]:
    """The parent of each process of this machine."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[int(status.parent.name)] = int(status.read_text().rpartition(") ")[2].split()[1])
    return found


def kinds_of(root: int, folder: Path) -> dict[int, str]:
    """The kind of each process of the application whose first process is `root`.

    The staging server leads a session of its own, and is known by the folder that it works in.
    """
    parent = parents()
    found: dict[int, str] = {}

    def kind_of(pid: int) -> str:
        if pid in found:
            return found[pid]
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if STAGING in command:
            return "driver: staging"
        if pid == root:
            return "driver: job"
        if command[0].endswith("/java"):
            is_executor = any("ExecutorBackend" in word for word in command)
            return "executor: JVM" if is_executor else "driver: JVM"
        if kind_of(parent[pid]).startswith("executor"):
            return "executor: Python"
        is_source = any("streaming_source_runner" in word for word in command)
        return "driver: sources" if is_source else "driver: planning"

    for pid in sorted(parent):
        with contextlib.suppress(OSError, KeyError):
            works_in = Path(os.readlink(f"/proc/{pid}/cwd"))
            if works_in == folder or folder in works_in.parents:
                found[pid] = kind_of(pid)
    return found


def make_topics(bootstrap: str, queries: int) -> None:
    """The inputs and outputs of so many queries."""
    for number in range(queries):
        for topic in (f"in-{number}", f"out-{number}"):
            create_topic(bootstrap, topic, 1)
        produce_values(bootstrap, f"in-{number}", [str(each) for each in range(100_000)])


def measure(name: str, count: int, bootstrap: str, folder: Path) -> dict[str, tuple[int, float]]:
    """How many processes of each kind an application has, and their MiB together."""
    home = folder / "home"
    home.mkdir(parents=True)
    for each in ("bin", "jars", "python"):
        (home / each).symlink_to(INSTALLED / each)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "1000m",
        "spark.sql.shuffle.partitions": "1",
    }
    words = [str(home / "bin" / "spark-submit"), "--master", "local-cluster[1,1,1024]"]
    words += [word for item in settings.items() for word in ("--conf", "=".join(item))]
    words += [str(JOB), name, str(count), bootstrap, str(folder)]
    variables = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(PATHS),
    }
    with (folder / "stderr").open("w") as log, subprocess.Popen(
        words, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=log, text=True,
    ) as job:  # fmt: skip
        assert job.stdout is not None
        if job.stdout.readline() != "ready\n":
            raise SystemExit((folder / "stderr").read_text()[-3000:])
        # spark-submit becomes Java, and the job is a child of it.
        (root,) = (
            pid
            for pid, above in parents().items()
            if above == job.pid and b"memory_job.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        kinds = kinds_of(root, folder)
        amounts: Counter[str] = Counter()
        for pid, kind in kinds.items():
            with contextlib.suppress(OSError):
                amounts[kind] += pss_mib(pid)
        job.terminate()
    counts = Counter(kinds.values())
    return {kind: (counts[kind], round(amounts[kind])) for kind, _ in KINDS}


def table(results: dict[str, dict[int, dict[str, tuple[int, float]]]]) -> str:
    """The results in Markdown: processes and MiB, the connector's and the floor's."""
    counts = sorted(results["txnlog"])
    columns = [
        f"{name}, {count} quer{'y' if count == 1 else 'ies'}"
        for count in counts
        for name in ("connector", "PySpark alone")
    ]
    lines = [f"| process | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for kind, meaning in KINDS:
        cells = []
        for count in counts:
            for name in ("txnlog", FLOOR):
                processes, mib = results[name][count][kind]
                cells.append(f"{mib} ({processes})" if processes else "")
        lines.append(f"| {meaning} | {' | '.join(cells)} |")
    sums = [
        str(sum(results[name][count][kind][1] for kind, _ in KINDS if is_drivers_python(kind)))
        for count in counts
        for name in ("txnlog", FLOOR)
    ]
    return "\n".join([*lines, f"| Python of the driver together | {' | '.join(sums)} |"])


def is_drivers_python(kind: str) -> bool:
    """Whether a kind of process counts for the driver's Python."""
    return kind.startswith("driver: ") and kind != "driver: JVM"


def main() -> None:
    """Measure both applications for each count of queries, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results: dict[str, dict[int, dict[str, tuple[int, float]]]] = {"txnlog": {}, FLOOR: {}}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with SimBroker(folder / "broker") as broker:
            bootstrap = broker.bootstrap_servers
            make_topics(bootstrap, max(given.queries))
            for name, found in results.items():
                for count in given.queries:
                    where = folder / f"{name}-{count}"
                    where.mkdir()
                    found[count] = measure(name, count, bootstrap, where)
                print(name, count, found[count], file=sys.stderr, flush=True)
    print(table(results))
    if given.json:
        given.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
