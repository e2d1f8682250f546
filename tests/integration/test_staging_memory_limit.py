"""The staging server under a memory limit: rows go to files, and no task hears of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from support.staged_messages import stage
from support.staging_home import read_back, remote, rows, staging_home

from txnlog_spark.staging.address import StagingSettings
from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.staging.server import Spool
from txnlog_spark.staging.store import Store

MIB = 2**20
LIMIT_BYTES = 300 * MIB
"""As `spark.sql.planner.pythonExecution.memory` sets it for the worker that starts the server."""
STAGED_BYTES = 50 * MIB
ATTEMPTS = 8

WORKER = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, ({LIMIT_BYTES}, {LIMIT_BYTES}))
import test_staging_memory_limit as test
from support.staging_home import staging_settings
test.stage_and_read_back(staging_settings(bind_address="127.0.0.1"))
"""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with staging_home(monkeypatch) as folder:
        yield folder


def stage_and_read_back(settings: StagingSettings) -> None:
    """More than the limit, while the default of stagingMemory is nearly as large as it."""
    staged = rows(STAGED_BYTES // MIB, MIB)
    sizes: dict[int, int] = {}
    for _, partition, data in staged:
        sizes[partition] = sizes.get(partition, 0) + len(data)
    attempts = [TaskAttempt("q", 3, "r", f"r-{number}") for number in range(ATTEMPTS)]
    messages = [stage(each, staged, remote(settings, each)) for each in attempts]
    for message in messages:
        found = read_back(settings, message)
        assert {partition: len(data) for partition, data in found.items()} == sizes


def test_a_server_that_a_limited_worker_starts_stages_more_than_its_limit(home: Path) -> None:
    tests = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(tests), str(tests / "integration")])
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


class NoMemory(bytearray):
    """Where nothing more fits."""

    def __iadd__(self, _: object) -> Self:
        raise MemoryError


def test_an_attempt_that_finds_no_memory_goes_to_its_file_with_what_it_has(tmp_path: Path) -> None:
    spool = Spool(Store(MIB, MIB), tmp_path)
    attempt = TaskAttempt("q", 3, "r", "r-0")
    spool.open(attempt)
    spool.add(attempt, b"in memory, ")
    spool._held[attempt].memory = NoMemory(b"in memory, ")
    spool.add(attempt, b"in a file, ")
    spool.finish(attempt, b"index")
    assert spool.read(attempt, 0, 100) == b"in memory, in a file, index"
    assert spool.index(attempt, 22) == b"index"
    assert (spool.store.memory_bytes, spool.store.file_bytes) == (0, 27)
    spool.drop(attempt)
    assert list(tmp_path.iterdir()) == []
