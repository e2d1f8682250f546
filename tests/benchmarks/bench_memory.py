"""Memory by kind of process of a Spark application with some streaming queries, in MiB.

Run: python tests/benchmarks/bench_memory.py [--queries 1 5] [--json FILE].
Each application has a driver and one executor, as on a cluster (`local-cluster[1,1,1024]`), and is
measured three times: with queries of the connector's, with as many of a data source and a sink of a
few lines of Python, which shows what PySpark takes by itself, and with the connector's queries and
`txnlog-python` in the place of `python`. A process's memory is its PSS of
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
PATHS = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]
sys.path[:0] = PATHS

# isort: split

from floor import NAME as FLOOR  # noqa: E402
from support.brokers.sim_broker import SimBroker  # noqa: E402
from support.clients.librdkafka import create_topic, produce_values  # noqa: E402
from support.spark.spark_home import INSTALLED, WARM_PYTHON  # noqa: E402

JOB = Path(__file__).with_name("memory_job.py")
STAGING = "txnlog_spark.staging.server"
FORKS = "txnlog_python.server"
WARM = "txnlog-python"
PEERS = {"txnlog": "connector", FLOOR: "PySpark alone", WARM: f"connector, {WARM}"}
"""Applications, and the heads of their columns."""
KINDS = (
    ("driver: JVM", "the driver's JVM"),
    ("driver: job", "the job's Python"),
    ("driver: sources", "sources of streams, one a query"),
    ("driver: planning", "planning and commits"),
    ("driver: staging", "staging server"),
    ("driver: forks", f"`{WARM}`: its servers, and what they forked"),
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
        if FORKS in command:  # a forked process has its server's arguments; the last is its JVM
            of_executor = kind_of(int(command[command.index(FORKS) + 2])).startswith("executor")
            return "executor: Python" if of_executor else "driver: forks"
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
    """Return the number of processes of each kind of an application, and their MiB together."""
    # A Spark home of its own: the application is told from others by the folder that it works in.
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
    words += [str(JOB), FLOOR if name == FLOOR else "txnlog", str(count), bootstrap, str(folder)]
    variables = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": WARM_PYTHON if name == WARM else sys.executable,
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
        # A process that ends meanwhile has no memory any more, and still counts as a process.
        kinds = kinds_of(root, folder)
        amounts: Counter[str] = Counter()
        for pid, kind in kinds.items():
            with contextlib.suppress(OSError):
                amounts[kind] += pss_mib(pid)
        job.terminate()
    counts = Counter(kinds.values())
    return {kind: (counts[kind], round(amounts[kind])) for kind, _ in KINDS}


def table(results: dict[str, dict[int, dict[str, tuple[int, float]]]]) -> str:
    """The results in Markdown: processes and MiB of each application."""
    counts = sorted(results["txnlog"])
    columns = [(count, name) for count in counts for name in PEERS]
    of = {count: "1 query" if count == 1 else f"{count} queries" for count in counts}
    heads = [f"{PEERS[name]}, {of[count]}" for count, name in columns]
    lines = [f"| process | {' | '.join(heads)} |", "|---" * (len(columns) + 1) + "|"]
    for kind, meaning in KINDS:
        found = [results[name][count][kind] for count, name in columns]
        cells = [f"{mib} ({processes})" if processes else "" for processes, mib in found]
        lines.append(f"| {meaning} | {' | '.join(cells)} |")
    for meaning, begin in (("Python of the driver together", "driver: "), ("all Python", "")):
        kinds = [kind for kind, _ in KINDS if kind.startswith(begin) and not kind.endswith("JVM")]
        sums = [str(sum(results[name][count][k][1] for k in kinds)) for count, name in columns]
        lines.append(f"| {meaning} | {' | '.join(sums)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all applications for each count of queries, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results: dict[str, dict[int, dict[str, tuple[int, float]]]] = {name: {} for name in PEERS}
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
