"""Cost of each test, in seconds of a processor: for the order of tests and for `make check`.

With `--write-costs` a run measures each test: the time of its own process, and of all processes
below it, alive or ended (a broker, Spark's JVM, Python workers). A process that leaves its parent
is not counted. What several tests share, such as a Spark session, counts for the one that starts
it. The sums go to `tests/recorded/costs.json`: of each file, and of each test that costs a second.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.harness.closure import REPOSITORY, TESTS

COSTS = TESTS / "recorded" / "costs.json"
PROPERTY = "cost_s"
ITEM_S_MIN = 1.0
"""A test that costs less has no entry of its own."""
CHEAP_S = 0.2
"""Cost that is assumed of such a test."""
NEW_S = 5.0
"""The cost of a file that was never measured."""
_TICKS = os.sysconf("SC_CLK_TCK")


@functools.cache
def _recorded() -> dict[str, dict[str, float]]:
    known: dict[str, dict[str, float]] = json.loads(COSTS.read_text())
    return known


def file_costs() -> dict[str, float]:
    """Return the cost of each test file, by its path."""
    return _recorded()["files"]


def cost_of(nodeid: str) -> float:
    """Return the cost of a test; one without an entry of its own costs little."""
    return _recorded()["tests"].get(nodeid, CHEAP_S)


def processor_s() -> float:
    """Return the time of this process and all below it, and of those that have ended."""
    return sum(_times(os.getpid()))


def _times(pid: int) -> Iterator[float]:
    with contextlib.suppress(OSError):  # it has just ended, and its parent has its times
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        yield sum(map(int, fields[11:15])) / _TICKS
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _times(int(child))


class Costs:
    """The plugin: with `--write-costs` it measures, and writes."""

    def __init__(self, config: pytest.Config) -> None:
        self._writes = bool(config.getoption("--write-costs"))
        self._is_worker = hasattr(config, "workerinput")
        self._items: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure a test with its fixtures."""
        before = processor_s() if self._writes else 0.0
        result = yield
        if self._writes:
            self._items[item.nodeid] += processor_s() - before
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker hands over what it has measured; the first process writes it."""
        if self._is_worker:
            session.config.workeroutput[PROPERTY] = dict(self._items)  # type: ignore[attr-defined]
        elif self._writes:
            self._write()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take what a worker has measured; one that was killed has nothing."""
        self._items.update(getattr(node, "workeroutput", {}).get(PROPERTY, {}))

    def _write(self) -> None:
        """Files that did not run keep their cost."""
        files: Counter[str] = Counter()
        for name, cost in self._items.items():
            files[name.partition("::")[0]] += cost
        known = _recorded()
        tests = {n: c for n, c in known["tests"].items() if n.partition("::")[0] not in files}
        tests |= {name: cost for name, cost in self._items.items() if cost >= ITEM_S_MIN}
        all_files = known["files"] | files
        kept = {
            "files": {n: round(all_files[n], 1) for n in sorted(all_files) if _is_there(n)},
            "tests": {n: round(tests[n], 1) for n in sorted(tests) if _is_there(n)},
        }
        COSTS.write_text(json.dumps(kept, indent=0) + "\n")


def _is_there(name: str) -> bool:
    return (REPOSITORY / name.partition("::")[0]).exists()
