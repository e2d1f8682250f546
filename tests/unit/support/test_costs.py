"""Costs of tests: the budget, and the order of groups that follows from them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.harness import costs, groups
from support.harness.closure import TESTS

BUDGET_S = 1_650
"""Seconds of a processor that all of `make test` may take."""

CHAOS = f"mark.{'chaos'}"
"""Text of a file with long runs, which this file is not."""


def test_all_tests_together_keep_the_budget() -> None:
    """A file that was never measured counts with NEW_S: `make test PYTEST_ARGS=--write-costs`.

    A file with long runs alone has no cost.
    """
    known = costs.file_costs()
    unmeasured = {
        name
        for path in TESTS.rglob("test_*.py")
        if (name := path.relative_to(TESTS.parent).as_posix()) not in known
        and CHAOS not in path.read_text()
    }
    total = sum(known.values()) + costs.NEW_S * len(unmeasured)
    assert total <= BUDGET_S, f"{total:.0f} s, not measured: {sorted(unmeasured)}"


def test_a_written_cost_replaces_that_of_its_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "costs.json"
    one, other = "tests/unit/support/test_costs.py", "tests/unit/support/test_changed.py"
    before = {"files": {one: 9.0, other: 4.0, "tests/gone.py": 1.0}, "tests": {f"{one}::old": 8.0}}
    monkeypatch.setattr(costs, "COSTS", place)
    monkeypatch.setattr(costs, "_recorded", lambda: before)
    plugin = costs.Costs(_config(writes=True))
    worker: Any = SimpleNamespace(
        workeroutput={costs.PROPERTY: {f"{one}::a": 2.04, f"{one}::b": 0.5}}
    )
    plugin.pytest_testnodedown(worker)
    plugin.pytest_sessionfinish(SimpleNamespace(config=None))  # type: ignore[arg-type]
    assert json.loads(place.read_text()) == {
        "files": {other: 4.0, one: 2.5},
        "tests": {f"{one}::a": 2.0},
    }


def _config(*, writes: bool) -> pytest.Config:
    found: Any = SimpleNamespace(getoption=lambda _name: writes)
    return found


def test_the_dearest_group_runs_first_and_a_file_keeps_its_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dear = {"tests/unit/b.py::two": 3.0, "tests/unit/a.py::one": 1.0}
    monkeypatch.setattr(groups, "cost_of", lambda nodeid: dear.get(nodeid, 0.2))
    names = ["a.py::one", "a.py::two", "b.py::one", "b.py::two", "c.py::one"]
    items: list[Any] = [SimpleNamespace(nodeid=f"tests/unit/{name}") for name in names]
    groups.Groups().pytest_collection_modifyitems(items)
    ordered = [item.nodeid.removeprefix("tests/unit/") for item in items]
    assert ordered == ["b.py::one", "b.py::two", "a.py::one", "a.py::two", "c.py::one"]


def test_files_that_share_a_spark_session_are_two_groups_of_equal_cost() -> None:
    known = costs.file_costs()
    sums: Counter[str] = Counter()
    for file, group in groups._sessions().items():
        sums[group] += known.get(file, costs.NEW_S)
    dearest = max(known.get(file, costs.NEW_S) for file in groups._sessions())
    assert set(sums) == set(groups.SESSIONS)
    assert max(sums.values()) - min(sums.values()) <= dearest


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/unit/a.py::one[apache_kafka]", "tests/unit/a.py"),
        (
            "tests/integration/test_exactly_once_x.py::a[apache_kafka]",
            "apache_kafka, killed drivers",
        ),
        ("tests/integration/test_x.py::a[apache_kafka]", "apache_kafka"),
        ("tests/integration/test_prove_x.py::a", "drivers under proof"),
        ("tests/conformance/test_x.py::a[apache_kafka]", "tests/conformance/test_x.py"),
    ],
)
def test_what_shares_an_apache_kafka_or_drivers_is_a_group(nodeid: str, group: str) -> None:
    assert groups.group_of(nodeid) == group
