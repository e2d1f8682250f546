"""The Python that Spark looks up data sources with, and what helps when the lookup has failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.spark.spark_home import SPARK_HOME

ROOT = Path(__file__).resolve().parents[2]
RUN_S_MAX = 240
"""Seconds on a busy machine; most of the time is Spark's start."""
PATH_PYTHON = """#!/bin/sh
[ -e {repaired} ] || exit 1
exec {python} "$@"
"""
JOB = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession

def say(when, spark):
    try:
        spark.read.format("txnlog").option("nosuch", "1").load()
    except Exception as e:
        names = ("DATA_SOURCE_NOT_FOUND", "TXNLOG_OPTION")
        print(when, *(name for name in names if name in str(e)), flush=True)

spark = SparkSession.builder.getOrCreate()
print("job", sys.executable, flush=True)
say("python3 fails:", spark)
Path(sys.argv[1]).touch()
say("same session:", spark)
say("getOrCreate:", SparkSession.builder.getOrCreate())
say("newSession:", spark.newSession())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("quick_java")
def test_a_failed_lookup_is_remembered_and_no_setting_names_its_python(tmp_path: Path) -> None:
    """`spark.pyspark.python` runs the job, and the `python3` of PATH looks up its data sources."""
    repaired = tmp_path / "repaired"
    python3 = tmp_path / "bin" / "python3"
    python3.parent.mkdir()
    python3.write_text(PATH_PYTHON.format(repaired=repaired, python=sys.executable))
    python3.chmod(0o755)
    (tmp_path / "job.py").write_text(JOB)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    path = os.pathsep.join((str(python3.parent), os.environ["PATH"]))
    submit = [f"{SPARK_HOME}/bin/spark-submit", "--master", "local[1]"]
    submit += [
        "--conf",
        "spark.ui.enabled=false",
        "--conf",
        f"spark.pyspark.python={sys.executable}",
    ]
    done = subprocess.run(
        [*submit, "job.py", str(repaired)],
        cwd=tmp_path,
        env=kept | {"PATH": path, "PYTHONPATH": str(ROOT), "SPARK_HOME": str(SPARK_HOME)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert done.stdout.splitlines() == [
        f"job {sys.executable}",
        "python3 fails: DATA_SOURCE_NOT_FOUND",
        "same session: DATA_SOURCE_NOT_FOUND",
        "getOrCreate: DATA_SOURCE_NOT_FOUND",
        "newSession: TXNLOG_OPTION",
    ], done.stderr[-3000:]
    assert "Skipping the lookup of Python Data Sources due to the failure" in done.stderr
