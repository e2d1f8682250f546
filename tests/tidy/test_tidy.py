"""Style is a test that fails, not a document: the house rules over the whole tree.

Each rule first catches an offender planted here, so that a silent rule is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tidy import rules
from tidy.rules import Violation
from tidy.tree import PRODUCT, ROOT, SKIPPED_FOLDERS, read_tree, refuse

TEXT_SUFFIXES = {".py", ".md", ".cfg", ".toml", ".yml", ".properties", ".sh", ".json", ".txt", ""}
SHOWN = {".ci", ".github"}
"""Hidden folders that a person reads all the same."""

ENTRY_POINTS = {
    "pyspark_txnlog": "Spark imports it by its name, for format('txnlog')",
    "broker_sim": "a person's own tests import LocalCluster from it",
    "txnlog_spark.avro": "a person's own query imports its functions",
    "txnlog_spark.metrics": "a person's own driver imports its functions",
    "broker_sim.__main__": "python -m broker_sim",
    "txnlog_spark.__main__": "python -m txnlog_spark",
    "simulation.__main__": "python -m simulation",
    "txnlog_spark.staging.server": "the process that staging/address.py starts",
    "txnlog_python.server": "the process that txnlog_python/command.py starts",
    "txnlog_testing.plugin": "pytest imports it, by its entry point",
    "txnlog_testing.points": "txnlog_testing/arming.py imports it by its name",
    "txnlog_testing.process_site.sitecustomize": "Python imports it where it is on PYTHONPATH",
    "txnlog_testing.prove.cli": "python -m txnlog_spark prove, by its entry point",
    "txnlog_testing.prove.driver_main": "the process that prove/driver.py starts",
    "jobs": "the folder of spark-submit jobs",
    "jobs.consume_transform_produce": "spark-submit",
    "jobs.load_flights": "spark-submit",
    "jobs.audit": "spark-submit",
    "jobs.demo": "make demo",
}
"""Modules that no module imports, with the way that each is run."""

PUBLIC_NAMES = {
    "txnlog_spark.foreachbatch.foreach_batch": "a person's own query calls it",
    "txnlog_spark.formats.avro_functions.from_avro": "as above",
    "txnlog_spark.formats.avro_functions.to_avro": "as above",
    "txnlog_spark.metrics.listener.serve_metrics": "a person's own driver calls it",
    "txnlog_spark.source.batch.FilteringBatchReader.pushFilters": "Spark calls it",
    "pyspark_txnlog.DefaultSource": "Spark looks for it in format('txnlog')",
    "broker_sim.local_cluster.LocalCluster.restart": "a person's own tests call it",
    "broker_sim.local_cluster.LocalCluster.broker_dir": "as above",
    "txnlog_testing.plugin.kafka_cluster": "as above, by the name of a fixture",
    "txnlog_testing.plugin.pytest_runtest_makereport": "pytest calls it",
    "txnlog_testing.plugin._session_broker": "the fixture kafka asks for it by its name",
    **{
        f"txnlog_testing.points.{name}": "txnlog_testing/arming.py calls it by its name"
        for name in ("arm_batch_writes", "arm_clients", "arm_reader", "arm_worker", "arm_writer")
    },
    "simulation.checkers.invariants.INVARIANTS": "the legend of the numbers that a violation names",
}
"""Names that the product does not use itself, and who does."""

SMALL_MODULES = {
    "broker_sim.core.handlers": "one a request, by its name",
    "txnlog_spark.source.schema": "a lookup of the data source needs it, and not Arrow",
}
"""Modules of a few lines that one other uses, and why they are not in it."""

Rule = Callable[[str, str], Iterator[Violation]]
EVERYWHERE: tuple[Rule, ...] = (
    rules.check_module_length,
    rules.check_function_length,
)
IN_PRODUCT: tuple[Rule, ...] = (rules.check_docstrings, rules.check_asserts)
IN_TEXT: tuple[Rule, ...] = (rules.check_leftovers, rules.check_machine_paths)


def read_texts() -> dict[str, str]:
    """Every text file a person reads: sources, documents, configuration."""
    found = {}
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") and part not in SHOWN for part in parts[:-1])
        skipped = hidden or SKIPPED_FOLDERS & set(parts) or any("egg-info" in p for p in parts)
        if skipped or path.suffix not in TEXT_SUFFIXES or not path.is_file():
            continue
        if path.name != ".git":
            found["/".join(parts)] = path.read_text(encoding="utf-8", errors="replace")
    return found


def apply(checks: tuple[Rule, ...], sources: dict[str, str]) -> list[Violation]:
    return [v for path, text in sources.items() for rule in checks for v in rule(path, text)]


def collected_folders() -> list[str]:
    """The folders that `make test` names."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return re.findall(r"\btests/\w+", "\n".join(re.findall(r"^TESTS_\w+ .*$", makefile, re.M)))


def test_modules_and_functions_keep_their_limits() -> None:
    refuse(apply(EVERYWHERE, read_tree(*PRODUCT, "tests")))


def test_public_names_have_docstrings_and_no_check_is_an_assert() -> None:
    refuse(apply(IN_PRODUCT, read_tree(*PRODUCT)))


def test_tests_wait_for_events_and_not_for_times() -> None:
    refuse(apply((rules.check_sleeps,), read_tree("tests")))


def test_no_leftover_note_and_no_path_of_one_machine() -> None:
    refuse(apply(IN_TEXT, {p: t for p, t in read_texts().items() if "tests/tidy/" not in p}))


def test_every_product_module_is_used() -> None:
    refuse(list(rules.check_unused_modules(read_tree(*PRODUCT), ENTRY_POINTS)))


def test_a_small_module_has_two_that_use_it() -> None:
    excused = (*SMALL_MODULES, *ENTRY_POINTS)
    refuse(list(rules.check_small_modules(read_tree(*PRODUCT), excused)))


def test_no_modules_import_each_other_in_a_circle() -> None:
    refuse(list(rules.check_circles(read_tree(*PRODUCT))))


def test_every_name_is_used_by_the_product_or_else_public() -> None:
    refuse(list(rules.check_unused_names(read_tree(*PRODUCT), PUBLIC_NAMES)))


def test_one_name_never_means_two_things() -> None:
    refuse(list(rules.check_ambiguous_constants(read_tree(*PRODUCT))))


def test_a_public_class_has_a_name_of_its_own_in_its_package() -> None:
    refuse(list(rules.check_class_names(read_tree(*PRODUCT))))


def test_every_test_file_is_collected() -> None:
    refuse(list(rules.check_collected(read_tree("tests"), collected_folders())))


def test_every_folder_of_modules_is_a_package_that_the_contracts_see() -> None:
    folders = {Path(path).parent for path in read_tree(*PRODUCT)}
    assert [str(each) for each in folders if not (ROOT / each / "__init__.py").exists()] == []


def test_every_entry_point_exists() -> None:
    modules = {rules.module_name(path) for path in read_tree(*PRODUCT)}
    assert set(ENTRY_POINTS) <= modules


LONG_FUNCTION = "def f():\n" + "    x = 1\n" * 70
PLANTED = [
    (rules.check_module_length, "x = 1\n" * 601, 1),
    (rules.check_module_length, "x = 1\n" * 600, 0),
    (rules.check_function_length, LONG_FUNCTION, 1),
    (rules.check_function_length, LONG_FUNCTION.replace("    x = 1\n", "", 1), 0),
    (rules.check_function_length, "class C:\n    async " + LONG_FUNCTION.replace("\n ", "\n  "), 1),
    (rules.check_docstrings, "x = 1", 1),
    (rules.check_docstrings, '"""M."""\ndef f(): ...\nclass C:\n    def g(self): ...', 3),
    (
        rules.check_docstrings,
        '"""M."""\ndef _f(): ...\nclass C(B):\n    "C."\n    def g(s): ...',
        0,
    ),
    (rules.check_docstrings, "", 0),
    (rules.check_asserts, "def f(x):\n    assert x", 1),
    (rules.check_sleeps, "import time\ntime.sleep(1)", 1),
    (rules.check_sleeps, "from time import monotonic, sleep", 1),
    (rules.check_sleeps, "import time\ntime.monotonic()", 0),
    (rules.check_leftovers, "x = 1  # TODO: later", 1),
    (rules.check_leftovers, "TODOS = 1", 0),
    (rules.check_machine_paths, "x = '/home/me/data'", 1),
    (rules.check_machine_paths, "x = '/" + "work/main'", 1),
    (rules.check_machine_paths, "x = 'tests/work/main' + 'a/home/b'", 0),
]


@pytest.mark.parametrize(("rule", "source", "count"), PLANTED)
def test_a_rule_catches_its_planted_offender_and_nothing_else(
    rule: Rule, source: str, count: int
) -> None:
    assert len(list(rule("planted.py", source))) == count


def test_a_module_that_nobody_imports_is_found() -> None:
    sources = {
        "a/__init__.py": "",
        "a/main.py": "from a import used\nfrom .deep import leaf",
        "a/used.py": "x = 1",
        "a/deep/__init__.py": "x = 1",
        "a/deep/leaf.py": "x = 1",
        "a/dead.py": "import a.dead",
    }
    found = [v.path for v in rules.check_unused_modules(sources, ["a.main"])]
    assert found == ["a/dead.py"]


def test_a_small_module_with_one_user_is_found() -> None:
    sources = {
        "a/__init__.py": "",
        "a/one.py": "from a.small import x\nfrom a import shared\nimport a.large",
        "a/two.py": "from a.shared import x",
        "a/small.py": "x = 1\n" * 39,
        "a/shared.py": "x = 1\n" * 39,
        "a/large.py": "x = 1\n" * 40,
    }
    found = [v.path for v in rules.check_small_modules(sources, ["a.one", "a.two"])]
    assert found == ["a/small.py"]


def test_a_circle_of_imports_is_found() -> None:
    sources = {
        "a/__init__.py": "from a.one import x",
        "a/one.py": "if TYPE_CHECKING:\n    from a.two import y",
        "a/two.py": "def late():\n    from a import three",
        "a/three.py": "import a.one",
        "a/four.py": "from a.one import x",
    }
    (found,) = rules.check_circles(sources)
    assert found.text.count(" imports ") == 3
    assert "a.one imports a.two" in found.text
    sources["a/three.py"] = ""
    assert not list(rules.check_circles(sources))


def test_a_name_that_nothing_uses_is_found() -> None:
    sources = {
        "a/__init__.py": "from a.b import LISTED\n__all__ = ['LISTED']",
        "a/b.py": """
LISTED = 1
_alias = int
KEPT: int = 2
def recursive(): return recursive()
class Plain:
    field: int
    def __len__(self): return self._used()
    def _used(self): return KEPT
    def dead(self): ...
class Hook(Thread):
    def run(self): ...
""",
        "a/c.py": "from a import b\nprint(len(b.Plain()), b.Hook)\ndef api(): ...",
    }
    found = [v.text for v in rules.check_unused_names(sources, ["a.c.api"])]
    dead = ("LISTED", "_alias", "recursive", "Plain.dead")
    assert found == [f"nothing uses {name}" for name in dead]
    public = ["a.b.KEPT", "a.b.gone", *(f"a.b.{name}" for name in dead), "a.c.api"]
    assert [v.path for v in rules.check_unused_names(sources, public)] == public[:2]


def test_a_constant_with_two_meanings_is_found() -> None:
    sources = {
        "a/b.py": "VERSION = 2\nSAME = 1\nOWN = 1\nlower = 1",
        "a/c.py": "VERSION: int = 5\nSAME = 1\nOWN = 2\nlower = 2",
        "a/d.py": "from a.b import SAME, VERSION, lower\nfrom a.c import VERSION as OTHER, lower",
    }
    found = list(rules.check_ambiguous_constants(sources))
    assert [(v.path, v.text.split()[0]) for v in found] == [("a/c.py", "VERSION")]


def test_a_test_file_that_nobody_collects_is_found() -> None:
    body = "def test_x(): ..."
    sources = {
        "tests/unit/test_a.py": body,
        "tests/unit/support.py": "def helper(): ...",
        "tests/unit/a_test.py": body,
        "tests/lost/test_b.py": "class TestB:\n    def test_x(self): ...",
        "tests/property/test_a.py": body,
    }
    found = [v.path for v in rules.check_collected(sources, ["tests/unit", "tests/property"])]
    assert found == ["tests/unit/a_test.py", "tests/lost/test_b.py"]


def test_a_class_name_that_comes_twice_in_a_package_is_found() -> None:
    sources = {
        "a/x.py": "class One: ...\nclass _Own: ...\nclass Two: ...",
        "a/b/y.py": "class _Own: ...\nclass Two: ...",
        "c/x.py": "class One: ...",
    }
    found = [(v.path, v.line) for v in rules.check_class_names(sources)]
    assert found == [("a/x.py", 3)]
