"""`txnlog-python` in the place of Python: what Spark runs in Python gives the same there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from support.spark import shapes_job
from support.spark.spark_copy import SMALL, conf_arguments, java_options
from support.spark.spark_home import SPARK_HOME, WARM_PYTHON

NUMBERS = range(shapes_job.ROWS)
PAIRS = [[number, number % 3] for number in NUMBERS]
FIVE = ["2 rows"] * 5
EXPECTED: dict[str, Any] = {
    "udf": sorted([f"{number}:127.0.0.1"] for number in NUMBERS),
    "arrow udf": [[number + 1] for number in NUMBERS],
    "pandas udf": [[2 * number] for number in NUMBERS],
    "pandas udf of an iterator": [[number + 100] for number in NUMBERS],
    "pandas udf of a group": [[0, 9.0], [1, 10.0], [2, 9.5]],
    "applyInPandas": [[0, 63], [1, 70], [2, 57]],
    "cogroup": [[0]] * 3,
    "mapInPandas": PAIRS,
    "mapInArrow": PAIRS,
    "udtf": [["again"]] * 3,
    "rdd": [3 * number for number in NUMBERS],
    "accumulator": sum(NUMBERS),
    "error": "ZeroDivisionError: integer division or modulo by zero",
    "exit": "SystemExit: 5",
    "read, arrow": [[number] for number in range(5)],
    "stream, arrow": [[[0], [1]], [[2], [3]], [[4], [5]]],
    "sink, arrow: error": "no error",
    "sink, arrow": [*FIVE, "2 rows"],
    "read, simple": [[number] for number in range(5)],
    "stream, simple": [[[0], [1]], [[2], [3]], [[4], [5]]],
    "sink, simple: error": "ValueError: a row of 10 or more",
    "sink, simple": [*FIVE, "aborted"],
}


@pytest.fixture
def spark(connector_spark) -> Iterator[Any]:
    """The shared session, whose Python is `txnlog-python`."""
    # The job's classes go to the workers as those of a program, which no worker can import.
    cloudpickle.register_pickle_by_value(shapes_job)
    yield connector_spark
    cloudpickle.unregister_pickle_by_value(shapes_job)


def test_functions_sources_and_sinks_of_every_shape_do_the_same_as_with_python(
    spark, tmp_path: Path
) -> None:
    found = shapes_job.functions(spark) | shapes_job.sources(spark, tmp_path)
    assert json.loads(json.dumps(found)) == EXPECTED
    forked = spark.range(1).rdd.map(lambda _: "txnlog_python.forked" in sys.modules).collect()
    assert forked == [True]


@pytest.mark.weekly(day=6)
@pytest.mark.parametrize(
    ("python", "reuse"), [(sys.executable, True), (WARM_PYTHON, False)], ids=["python", "no reuse"]
)
def test_an_application_of_plain_python_and_one_without_reused_workers_do_the_same(
    tmp_path: Path, python: str, reuse: bool
) -> None:
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
        [*command, *conf_arguments(settings), shapes_job.__file__, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ
        | {
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "txnlog-python:" not in done.stderr, "a fresh Python was started"
    assert json.loads(done.stdout.splitlines()[-1]) == EXPECTED
