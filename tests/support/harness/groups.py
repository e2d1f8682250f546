"""Groups of tests that stay in one worker, and their order: the dearest group first.

A file stays together, and so do the files of `prove`, whose drivers stay. So do the connector's
tests that need an Apache Kafka, in two groups, so that there are two brokers; and all others that
share a Spark session, in two groups of equal cost: one group would take longest of all, and each
session costs five seconds of a processor to start.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path

import pytest
from support.harness.closure import REPOSITORY, TESTS
from support.harness.costs import NEW_S, cost_of, file_costs
from xdist.scheduler import LoadFileScheduling, Scheduling

KAFKA = "apache_kafka"
KILLS = re.compile(r"/test_exactly_once_\w+\.py$")
"""Files whose drivers are killed: their tests with an Apache Kafka take a third of all such."""
PROOFS = re.compile(r"/test_prove_\w+\.py$")
SESSIONS = ("a shared Spark session", "the other shared Spark session")
SESSION_FIXTURES = re.compile(r"\b(connector_spark|pipe|both_pipe)\b")
OWN_SESSION = re.compile(r"\bspark_sessions\b")


def group_of(nodeid: str) -> str:
    """Return the group of a test: its file, or a name."""
    file = nodeid.partition("::")[0]
    if file.startswith("tests/integration/"):
        if KAFKA in nodeid:
            return f"{KAFKA}, killed drivers" if KILLS.search(file) else KAFKA
        return "drivers under proof" if PROOFS.search(file) else _sessions().get(file, file)
    return file


@functools.cache
def _sessions() -> dict[str, str]:
    """Return the group of each file that shares a session: the dearest file goes to the cheaper
    group, and so on."""
    costs, sums = file_costs(), dict.fromkeys(SESSIONS, 0.0)
    files = {
        path.relative_to(REPOSITORY).as_posix()
        for path in (TESTS / "integration").glob("test_*.py")
        if _shares_session(path)
    }
    found = {}
    for file in sorted(files, key=lambda file: (-costs.get(file, NEW_S), file)):
        found[file] = min(SESSIONS, key=lambda name: sums[name])
        sums[found[file]] += costs.get(file, NEW_S)
    return found


def _shares_session(path: Path) -> bool:
    """True if a file names a fixture of `conftest.py` with the session, and starts no session
    itself."""
    text = path.read_text(encoding="utf-8")
    return bool(SESSION_FIXTURES.search(text)) and not OWN_SESSION.search(text)


class Together(LoadFileScheduling):
    """Scheduler that keeps a group in one worker, for `--dist loadfile`."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


class Groups:
    """The plugin: orders the tests, and sets the scheduler."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The dearest group first: no worker is left alone with it at the end. All tests of a file
        stay in their own order."""
        groups = {item.nodeid: group_of(item.nodeid) for item in items}
        costs: Counter[str] = Counter()
        for nodeid, group in groups.items():
            costs[group] += cost_of(nodeid)
        dear = {name: (-costs[group], group) for name, group in groups.items()}
        items.sort(key=lambda item: (*dear[item.nodeid], item.nodeid.partition("::")[0]))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> Scheduling | None:
        """Instead of `--dist loadfile`."""
        return Together(config, log) if config.getvalue("dist") == "loadfile" else None
