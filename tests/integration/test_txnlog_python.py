"""`txnlog-python` in the place of Python: what Spark runs in Python gives the same there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.spark.spark_copy import SMALL, conf_arguments, java_options
from support.spark.spark_home import SPARK_HOME, WARM_PYTHON

JOB = Path(__file__).parents[1] / "support" / "spark" / "shapes_job.py"


def shapes(python: str, folder: Path, *, reuse: bool) -> dict[str, object]:
    """Return what the job prints with this Python."""
    folder.mkdir()
    settings = (
        SMALL
        | java_options()
        | {
            "spark.sql.shuffle.partitions": "1",
            "spark.python.worker.reuse": str(reuse).lower(),
            "spark.sql.streaming.pollingDelay": "10ms",
        }
    )
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"]
    done = subprocess.run(
        [*command, *conf_arguments(settings), str(JOB), str(folder)],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ
        | {
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "SHAPE": folder.name,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "txnlog-python:" not in done.stderr, "a fresh Python was started"
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> dict[str, object]:
    """Results with a fresh interpreter for each process."""
    found = shapes(sys.executable, tmp_path_factory.mktemp("plain") / "shape", reuse=True)
    assert found["udf"] == sorted([f"{number}:shape"] for number in range(20))
    assert found["sink, simple"] == ["2 rows"] * 5 + ["aborted"]
    assert found["stream, arrow"] == [[[0], [1]], [[2], [3]], [[4], [5]]]
    assert found["error"] == "ZeroDivisionError: integer division or modulo by zero"
    return found


@pytest.mark.parametrize("reuse", [True, False])
def test_functions_sources_and_sinks_of_every_shape_do_the_same_as_with_python(
    plain: dict[str, object], tmp_path: Path, reuse: bool
) -> None:
    assert shapes(WARM_PYTHON, tmp_path / "shape", reuse=reuse) == plain
