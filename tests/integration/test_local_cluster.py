"""A driver and executors that share no directory: rows go through the driver alone."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.brokers.probe import wait_until
from support.spark.spark_copy import CLASSES, QUICK, CopyQuery, RunningJob
from support.spark.spark_home import SPARK_HOME

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
SERVER = "txnlog_spark.staging.server"
ROWS = 12_000
BATCH = 6_000
"""A task's part is some 200 kB: too much for a message where results may have 10 MB in all."""


@pytest.fixture
def query(broker, tmp_path: Path, unique: Callable[[str], str]) -> Iterator[CopyQuery]:
    """A query on two executors, each with a directory and a TMPDIR of its own."""
    made = CopyQuery(tmp_path / "driver", broker.bootstrap_servers, unique("q"), batch_size=BATCH)
    made.feed(ROWS)
    made.master = "local-cluster[2,1,600]"
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'case "$PWD" in {tmp_path}/home/work/*)\n'
        '  mkdir -p "$PWD/tmp"; export TMPDIR="$PWD/tmp";;\n'
        "esac\n"
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(SPARK_HOME / name)
    made.spark_config = {
        "spark.pyspark.python": str(python),
        "spark.driver.maxResultSize": "10m",
        "spark.executor.memory": "500m",
        "spark.executor.extraJavaOptions": " ".join((*QUICK, f"-XX:SharedArchiveFile={CLASSES}")),
    }
    made.environment = {"SPARK_HOME": str(home)}
    yield made
    shutil.rmtree(home / "work", ignore_errors=True)


def processes_of(job: RunningJob, name: str) -> list[psutil.Process]:
    """Return the processes of the run that have this name in their command line."""
    found = []
    for process in psutil.Process(job.process.pid).children(recursive=True):
        try:
            if name in process.cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def staging_servers(query: CopyQuery) -> list[psutil.Process]:
    """Return the staging servers that a run of the query started; each leads its own session."""
    found = []
    for process in psutil.process_iter():
        try:
            if SERVER in process.cmdline() and Path(process.cwd()) == query.folder:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_for_batches(query: CopyQuery, job: RunningJob, count: int) -> None:
    """Return when so many batches are committed."""

    def done() -> bool:
        assert job.process.poll() is None, job.wait().stderr[-3000:]
        return len(query.logged("commits")) >= count

    wait_until(done, f"{count} batches are committed", timeout_s=200)


@pytest.mark.parametrize(
    "master",
    [
        "local-cluster[2,1,600]",
        pytest.param("local-cluster[4,1,1024]", marks=pytest.mark.chaos),
    ],
)
def test_executors_without_a_shared_directory_lose_and_double_nothing(
    query: CopyQuery, master: str
) -> None:
    """An executor is killed after the first batch, Spark starts another one and goes on."""
    query.master = master
    job = query.start()
    wait_for_batches(query, job, 1)
    (first, *_) = processes_of(job, EXECUTOR)
    first.send_signal(signal.SIGKILL)
    ended = job.wait(timeout_s=200)
    assert ended.code == 0, ended.stderr[-3000:]
    query.check_exactly_once()
    assert not list(query.checkpoint.rglob("*.staged"))


@pytest.mark.chaos
def test_a_full_driver_names_its_bounds_and_a_killed_server_costs_one_batch(
    query: CopyQuery,
) -> None:
    """The refusal by the staging server's bounds also shows that the rows are staged there."""
    query.write_options = {"stagingDiskSpace": "1k"}
    refused = query.run()
    assert refused.code == 1
    assert "stagingDiskSpace=1024" in refused.stderr
    assert query.output("read_uncommitted") == {}
    query.write_options = {}
    job = query.start()
    wait_for_batches(query, job, 1)
    (server,) = staging_servers(query)
    server.send_signal(signal.SIGKILL)
    ended = job.wait()
    if ended.code != 0:
        assert "TXNLOG_STAG" in ended.stderr, ended.stderr[-3000:]
        assert query.run().code == 0
    query.check_exactly_once()
