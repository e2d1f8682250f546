"""Parts that the benchmarks share: the measured tree, a Spark session, brokers, topics.

The connector comes from the first folder of PYTHONPATH that has one, else from this repository, so
that a benchmark can measure an older checkout too. Import this module before anything else that
comes from a tree.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]


def _measured_tree() -> Path:
    for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if entry and (Path(entry) / "txnlog_spark").is_dir():
            return Path(entry).resolve()
    return ROOT


TREE = _measured_tree()
"""Folder from which the connector and broker_sim are imported, here and in Spark's workers."""

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(TREE))

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def revision() -> str:
    """The commit of the measured tree, "" where that is not a git checkout."""
    command = ["git", "-C", str(TREE), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def machine() -> dict[str, Any]:
    """Describe the machine that the figures depend on."""
    import pyspark

    (model,) = {
        line.partition(": ")[2]
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    }
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
    }


@contextlib.contextmanager
def running_broker(name: str, folder: Path) -> Iterator[str]:
    """Bootstrap servers of a fresh broker."""
    if name == "apache_kafka":
        from support.brokers.apache_kafka import ApacheKafka

        with ApacheKafka(folder / "kafka") as broker:
            yield broker.bootstrap_servers
    else:
        from broker_sim import LocalCluster

        with LocalCluster(folder / "broker_sim") as cluster:
            yield cluster.bootstrap_servers


def create_topic(servers: str, topic: str, partitions: int) -> str:
    """A topic for one run, so that every run appends to an empty log; returns its name."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    return topic


def make_session(jars: list[Path], *, over_tcp: bool = False) -> SparkSession:
    """Start a session with both connectors, whose workers find the packages of the measured tree.

    The JVM and the workers talk as `conf/spark-defaults.conf` says, or by TCP, Spark's default.
    """
    from pyspark.sql import SparkSession

    path = [str(TREE), str(Path(__file__).parent), str(ROOT / "tests")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.python.unix.domain.socket.enabled", str(not over_tcp).lower())
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .getOrCreate()
    )
