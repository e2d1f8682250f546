"""Every numbered invariant has a test, and every mark of a test a number."""

from __future__ import annotations

import configparser
import re

import pytest
from tidy import invariant_map as map_
from tidy import rules

PREFIX = "importlinter:contract:"
REQUESTS = {"txnlog_kafka.wire.messages", "txnlog_kafka.wire.framing"}
PRODUCERS = ("txnlog_kafka.host", "txnlog_kafka.operations", "txnlog_spark.commit")
TASK_MODULES = ("txnlog_spark/sink/task.py", "txnlog_spark/sink/columns.py")


def contracts() -> set[str]:
    """The import contracts of setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(map_.ROOT / "setup.cfg", encoding="utf-8")
    return {name.removeprefix(PREFIX) for name in parser.sections() if name.startswith(PREFIX)}


@pytest.fixture(scope="module")
def tests() -> dict[int, list[str]]:
    """The names of the tests of each number."""
    return map_.tests_by_number(map_.read_tests())


def test_every_invariant_has_a_check_and_every_mark_an_invariant(tests) -> None:
    document = map_.DOCUMENT.read_text(encoding="utf-8")
    found = list(map_.problems(document, tests, map_.read_simulated(), contracts()))
    assert not found, "\n" + "\n".join(found)


def test_the_document_names_the_checks_that_there_are(tests) -> None:
    document = map_.DOCUMENT.read_text(encoding="utf-8")
    written = map_.with_checks(document, tests, map_.read_simulated(), map_.read_anomalies())
    assert document == written, "run python tests/tidy/invariant_map.py"


def test_every_test_that_the_documents_name_exists() -> None:
    paths = list((map_.ROOT / "tests").rglob("*.py"))
    sources = [path.read_text(encoding="utf-8") for path in paths]
    names = {name for text in sources for name in re.findall(r"def (test_\w+)", text)}
    texts = [path.read_text(encoding="utf-8") for path in (map_.ROOT / "docs").rglob("*.md")]
    named = {name for text in texts for name in re.findall(r"`(test_\w+)`", text)}
    assert len(named) > 100
    assert named <= names | {p.stem for p in paths}, sorted(named - names)


DOCUMENT = """
## The log
| # | invariant | checked by |
|---|---|---|
| 1 | a | |
| 2 | b: contract `is-there` | |
## With the cluster
| 3 | c | |
"""


@pytest.mark.parametrize(
    ("document", "tests", "simulator", "expected"),
    [
        (DOCUMENT, {1: ["t"]}, {1}, []),
        (DOCUMENT, {}, set(), ["invariant 1 has no test: mark one with invariant(1)"]),
        (DOCUMENT, {}, {1}, ["invariant 1 has no test: mark one with invariant(1)"]),
        (DOCUMENT, {1: ["t"], 9: ["t"]}, set(), ["invariant 9 is checked and not in the document"]),
        (DOCUMENT, {1: ["t"]}, {8}, ["invariant 8 is checked and not in the document"]),
        (DOCUMENT.replace("| 2 |", "| 1 |"), {1: ["t"]}, set(), ["invariant 1 is there twice"]),
        (DOCUMENT, {1: ["t"], 3: ["t"]}, set(),
         ["invariant 3 is checked: move it out of 'With the cluster'"]),
        (DOCUMENT, {1: ["t"]}, {3}, ["invariant 3 is checked: move it out of 'With the cluster'"]),
        (DOCUMENT.replace("is-there", "gone"), {1: ["t"]}, set(),
         ["invariant 2 names the contract gone, which does not exist"]),
    ],
)  # fmt: skip
def test_a_planted_fault_of_the_map_is_found(document, tests, simulator, expected) -> None:
    assert list(map_.problems(document, tests, simulator, {"is-there"})) == expected


def test_marks_are_found_on_functions_classes_and_modules() -> None:
    mark = "pytest.mark.invariant"
    source = f"pytestmark = [{mark}(1)]\n@{mark}(2, 3)\ndef test_a(): ...\n@{mark}(4)\nclass B: ..."
    found = map_.tests_by_number({"tests/test_m.py": source})
    assert found == {1: ["test_m.py"], 2: ["test_a"], 3: ["test_a"], 4: ["B"]}
    assert map_.simulated("INVARIANTS = {1: 'a', 7: 'b'}") == {1, 7}
    written = map_.with_checks(DOCUMENT, found, {1}, {1: ("lost-write",)})
    assert "| 1 | a | simulator (*lost-write*), `test_m.py` |" in written
    assert map_.with_checks(written, found, {1}, {1: ("lost-write",)}) == written


def test_of_many_tests_those_of_the_fewest_numbers_are_named() -> None:
    found = {1: ["test_all", "test_one", "test_three", "test_two"], 2: ["test_all", "test_one"]}
    written = map_.with_checks(DOCUMENT, found, set(), {})
    assert "| 1 | a | `test_three`, `test_two`, 2 more |" in written
    assert "| 2 | b: contract `is-there` | `is-there`, `test_all`, `test_one` |" in written


def test_the_command_prints_each_test_of_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    map_.print_tests([56])
    assert capsys.readouterr().out == (
        "56 tests/tidy/test_invariants.py::test_the_code_of_a_task_imports_no_producer\n"
    )


def imports_of(*paths: str) -> set[str]:
    """Return the names that the modules at and below these paths import."""
    files = [f for p in paths for f in sorted(map_.ROOT.glob(p))]
    named = {f.relative_to(map_.ROOT).as_posix(): f.read_text(encoding="utf-8") for f in files}
    assert named
    return {name for path, text in named.items() for name in rules.imported_modules(path, text)}


@pytest.mark.invariant(54)
def test_source_and_sink_build_no_requests_and_the_protocol_knows_no_arrow() -> None:
    assert not REQUESTS & imports_of("txnlog_spark/source/*.py", "txnlog_spark/sink/*.py")
    known = imports_of("txnlog_kafka/operations/*.py", "txnlog_spark/commit/*.py")
    heavy = ("pyspark", "pyarrow", "numpy", "txnlog_spark.codec", "txnlog_spark.formats")
    assert not {name for name in known if name.startswith(heavy)}


@pytest.mark.invariant(56)
def test_the_code_of_a_task_imports_no_producer() -> None:
    assert not {name for name in imports_of(*TASK_MODULES) if name.startswith(PRODUCERS)}
