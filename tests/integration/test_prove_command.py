"""`python -m txnlog_spark prove`: a function, a script, and what cannot be proved."""

from __future__ import annotations

import json
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from support.harness.printed import code_blocks, section

from txnlog_spark.tools import cli as tools
from txnlog_testing.prove.cli import main

pytestmark = pytest.mark.usefixtures("quick_java")

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
FUNCTION = """
from pyspark.sql import functions as sf

def job(spark, kafka, checkpoint):
    reader = spark.readStream.format("txnlog").options(**kafka.options, subscribe="orders")
    rows = reader.option("startingOffsets", "earliest").load().select("key", "value")
    writer = rows.writeStream.format("txnlog").options(**kafka.options, topic="out")
    return writer.option("checkpointLocation", checkpoint).start()
"""
SCRIPT = """
import sys
from pyspark.sql import SparkSession

bootstrap, checkpoint = sys.argv[1:]
print("more than a pipe holds " * 10_000)
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
servers = {"kafka.bootstrap.servers": bootstrap}
reader = spark.readStream.format("txnlog").options(**servers, subscribe="orders")
rows = reader.option("startingOffsets", "earliest").load().select("key", "value")
writer = rows.writeStream.format("txnlog").options(**servers, topic="out")
writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
writer.start().awaitTermination()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a user, with a job and its input."""
    (tmp_path / "job.py").write_text(FUNCTION)
    rows = [{"key": f"k{n % 2}", "value": {"id": n}} for n in range(12)]
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_function_that_runs_until_it_is_stopped_is_proved(folder: Path, capsys) -> None:
    page, junit = folder / "page.html", folder / "junit.xml"
    words = ["--input", "orders", "--output", "out", "--disturbance", "replay", "--waves", "2"]
    files = ["--html", str(page), "--junitxml", str(junit)]
    assert main([str(folder / "job.py"), *words, *files]) == 0
    said = capsys.readouterr()
    assert "replay       exact    commits/" in said.out
    assert "reference: 12 rows of out" in said.err
    assert "<svg" in page.read_text()
    assert "CompleteCommit" in page.read_text()
    assert ET.parse(junit).getroot()[0].get("failures") == "0"


def test_a_script_is_killed_and_started_again(folder: Path, capsys) -> None:
    (folder / "script.py").write_text(SCRIPT)
    words = ["--input", "orders", "--output", "out", "--waves", "2",
             "--disturbance", "kill end_txn:after"]  # fmt: skip
    code = main(
        [str(folder / "script.py"), "--script", *words, "--", "{bootstrap}", "{checkpoint}"]
    )
    said = capsys.readouterr()
    assert code == 0, said
    assert "exact    driver killed after end_txn" in said.out


def test_the_printed_job_is_exact(folder: Path) -> None:
    (printed,) = code_blocks("python", section(PAGE, "A test"))
    less = 'output="invoices", disturbances=["replay"], waves=2'
    path = folder / "test_invoices.py"
    path.write_text(printed.replace('output="invoices"', less))
    (test,) = (made for name, made in runpy.run_path(str(path)).items() if name.startswith("test_"))
    test()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.py", "--output", "out"], "nowhere.py is not a file"),
        (["job.py", "--input", "sales", "--output", "out"], "sales.jsonl is not a file"),
        (["job.py", "--input", "orders"], "output is empty"),
        (["job.py", "--output", "out"], "there is no input"),
        (["job.py", "--input", "orders", "--output", "out", "--function", "start"],
         "has no function start"),
        (["job.py", "--input", "orders", "--output", "out", "--conf", "x"], "expected NAME=VALUE"),
        (["job.py", "--input", "orders", "--output", "out", "--waves", "1"], "waves=1"),
        (["job.py", "--input", "orders", "--output", "out", "--disturbance", "rain"],
         "disturbance 'rain' is not one of"),
        (["job.py", "--input", "orders", "--output", "out", "--disturbance", "kill end_tx:after"],
         "disturbance 'kill end_tx:after' is not one of"),
        (["job.py", "--input", "orders", "--output", "out", "--", "word"], "add --script"),
    ],
)  # fmt: skip
def test_what_cannot_be_proved_is_said_in_one_line(folder: Path, capsys, words, says) -> None:
    assert main([str(folder / words[0]), *words[1:]]) == 2
    said = capsys.readouterr().err
    assert said.startswith("no result: ")
    assert says in said
    assert said.count("\n") == 1


def test_the_connectors_command_finds_it_by_its_entry_point(folder: Path, capsys) -> None:
    assert tools.main(["prove", str(folder / "nowhere.py"), "--output", "out"]) == 2
    assert "is not a file" in capsys.readouterr().err
