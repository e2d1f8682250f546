"""The examples are complete, and the table of versions names tested versions alone."""

from __future__ import annotations

import configparser
import json
import re
import sys
from pathlib import Path

import matrix
import pytest
from tidy.tree import ROOT

EXAMPLES = ROOT / "examples"
TABLE = re.findall(
    r"^\| `([\w.]+)` \| .*? \| `(.*)` \|$", (EXAMPLES / "README.md").read_text(), re.MULTILINE
)
EXAMPLE_LINES_MAX = 45
RECORDED: matrix.Recorded = json.loads(matrix.RECORDED.read_text(encoding="utf-8"))


def test_each_example_is_in_the_table_with_a_command_that_it_takes() -> None:
    files = {path.name: path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert [name for name, _ in TABLE if name not in files] == []
    assert len(TABLE) == len(files)
    for name, command in TABLE:
        assert f" examples/{name}" in command
        options = re.findall(r"--[a-z-]+", command)
        assert [each for each in options if f'"{each}"' not in files[name].read_text()] == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_hides_no_module(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= EXAMPLE_LINES_MAX
    hidden = sys.stdlib_module_names | {"avro", "fastavro", "pyspark", "txnlog_spark"}
    assert path.stem not in hidden, "Python would import this file in its place"


def test_the_table_of_versions_is_what_was_recorded() -> None:
    text = matrix.PAGE.read_text(encoding="utf-8")
    assert matrix.PLACE.search(text)
    assert matrix.page(text, RECORDED) == text, "run python tests/matrix.py --page"


def test_the_package_names_the_pythons_that_the_tests_passed_on() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    named = re.findall(r"Python :: (3\.\d+)", config["metadata"]["classifiers"])
    assert named == [each for each in matrix.PYTHONS if is_proven(each)]


def is_proven(python: str) -> bool:
    """Return True if this Python has recorded runs, also with Spark, and no run failed."""
    names = {run.name for run in matrix.planned() if run.python == python}
    found = [RECORDED[name] for name in names & RECORDED.keys()]
    with_spark = any(each["tests"] == matrix.SIM for each in found)
    return with_spark and all(each["failed"] == 0 for each in found)


def test_a_version_that_was_not_run_says_so() -> None:
    run = next(matrix.planned())
    known = {"pyspark": "4.3.9", "python": "3.11.9", "java": "17.0.9", "date": "2026-11-26"}
    known |= {"passed": 5, "failed": 1, "skipped": 0}
    *rows, unreleased = matrix.table({run.name: known}).splitlines()[2:]
    assert unreleased.count("|") == rows[0].count("|")
    (full,) = (row for row in rows if "2026-11-26" in row)
    assert full.startswith("| 4.3.9 | 3.11.9 | 17.0.9 | not run | 2026-11-26: 5 passed, 1 failed |")
    assert sum(row.count("not run") for row in rows) == len(rows) * len(matrix.COLUMNS) - 1
