"""The staging server under a memory limit: rows go to files, and no task hears of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Self

from support.query.staging_home import (
    MIB,
)

from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.staging.server import Spool
from txnlog_spark.staging.store import Store

LIMIT_BYTES = 300 * MIB
"""As `spark.sql.planner.pythonExecution.memory` sets it for the worker that starts the server."""

WORKER = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, ({LIMIT_BYTES}, {LIMIT_BYTES}))
from support.query.staging_home import stage_and_read_back, staging_settings
stage_and_read_back(staging_settings(bind_address="127.0.0.1"))
"""


def test_a_server_that_a_limited_worker_starts_stages_more_than_its_limit(home: Path) -> None:
    tests = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        env=os.environ | {"PYTHONPATH": str(tests)}, capture_output=True, text=True, check=False,
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
