"""The staging server under a memory limit: rows go to files, and no task hears of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.query.staging_home import MIB

LIMIT_BYTES = 300 * MIB
"""Memory limit of the worker that starts the server: `spark.sql.planner.pythonExecution.memory`."""

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
