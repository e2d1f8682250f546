"""Record what Apache Kafka answered, once for each of its versions, and do not ask it again.

A test body that runs on both brokers proves two things: on Apache Kafka, that the body is right; on
broker_sim, that broker_sim does the same. The first proof stays valid while neither the body nor
Apache Kafka changes. So `make record` runs the bodies on Apache Kafka and writes the names of those
that passed into `tests/recorded/<version>/passed.json`, beside a digest of everything they consist
of: the code of the test's file and of every module of this repository that it imports, directly or
not, and the versions of the client libraries. While the digest stays the same, such a run belongs
to `make chaos`. If it has changed, if the test is new, or with TXNLOG_KAFKA=live, the run belongs
to `make test`.

The digest misses modules that are imported by a name in a string, and so it misses the connector
inside Spark. Therefore tests of the connector are never recorded: those marked `live` run on Apache
Kafka in `make test`, the others in `make chaos`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from support.brokers import cluster_runs
from support.brokers.apache_kafka import VERSION
from support.harness.closure import REPOSITORY, TESTS, closure_of, code_of, imports_of
from support.harness.groups import KAFKA

RECORDED = TESTS / "recorded" / VERSION
PASSED = RECORDED / "passed.json"
CHAOS_TIMEOUT_S = 7200
"""The longest long run, the driver killed at every step on a busy machine, takes a third of it."""
CLIENTS = {
    "aiokafka": "aiokafka",
    "confluent_kafka": "confluent-kafka",
    "kafka": "kafka-python",
    "pyspark": "pyspark",
}
"""The libraries that talk to the broker, by the name that is imported."""
WITH_FILES = {TESTS / "support" / "kafka" / "java_tools.py": "java/*"}
"""Modules that use files they do not import, and which."""


def wants_live() -> bool:
    """True if recordings are ignored and Apache Kafka is asked."""
    return os.environ.get("TXNLOG_KAFKA") == "live"


def digest_of(path: Path) -> str:
    """A digest of everything that a run of this test file on Apache Kafka consists of."""
    return _digest(closure_of(path))


@functools.cache
def _digest(paths: frozenset[Path]) -> str:
    files = set(paths)
    for path in paths:
        files |= set(path.parent.glob(WITH_FILES[path])) if path in WITH_FILES else set()
    libraries = {CLIENTS[top] for path in paths for top in _tops(path) if top in CLIENTS}
    digest = hashlib.sha256()
    for name in sorted(libraries):
        digest.update(f"{name} {version(name)}\n".encode())
    for path in sorted(files):
        content = hashlib.sha256(code_of(path)).hexdigest()
        digest.update(f"{path.relative_to(REPOSITORY)} {content}\n".encode())
    return digest.hexdigest()[:16]


def _tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports_of(path)}


def runs_on_kafka(item: pytest.Item) -> bool:
    """True if the test runs a body on Apache Kafka, as one of two brokers or as the only one."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return KAFKA in params.values() or item.get_closest_marker("only_kafka") is not None


class Selection:
    """The plugin: leaves out what is recorded, or with `--record` writes what passed."""

    def __init__(self, config: pytest.Config) -> None:
        self._writes = bool(config.getoption("--record"))
        self._is_worker = hasattr(config, "workerinput")
        self._workerinput: dict[str, Any] = getattr(config, "workerinput", {})
        self._known = json.loads(PASSED.read_text()) if PASSED.exists() else {}
        # Now, as the files are that are about to run.
        files = TESTS.glob("conformance/test_*.py") if self._writes else ()
        self._digests = {_name(path): digest_of(path) for path in files}
        self._passed: dict[str, set[str]] = {}
        self._failed: set[tuple[str, str]] = set()

    @functools.cached_property
    def _valid(self) -> frozenset[str]:
        """The files whose recordings count; a worker is told, it takes seconds to find out."""
        told = self._workerinput.get("recorded_files")
        if told is not None:
            return frozenset(told)
        return frozenset(filter(self._is_valid, self._known))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Before a worker starts."""
        node.workerinput["recorded_files"] = sorted(self._valid)

    def pytest_report_header(self) -> list[str]:
        """Say how many runs are left out, and for which files Apache Kafka is asked again."""
        if self._writes:
            return [f"recording what passes on Apache Kafka {VERSION}"]
        count = sum(len(self._known[name]["passed"]) for name in self._valid)
        lines = [f"{count} runs on Apache Kafka {VERSION} are recorded and left to make chaos"]
        if stale := sorted({*self._known} - self._valid):
            lines.append(f"changed since they were recorded (`make record`): {', '.join(stale)}")
        return lines

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Before `-m` chooses."""
        items[:] = [item for item in items if cluster_runs.keep(item)]
        for item in items:
            if item.get_closest_marker("chaos") is not None:
                if not cluster_runs.is_on_cluster(item):
                    item.add_marker(pytest.mark.timeout(CHAOS_TIMEOUT_S), append=False)
            elif runs_on_kafka(item):
                self._choose(item)

    def _choose(self, item: pytest.Item) -> None:
        """Move recorded runs, and runs of the connector that are not `live`, to `make chaos`."""
        name, place = _name(item.path), item.path.parent.name
        live = item.get_closest_marker("live")
        params = getattr(getattr(item, "callspec", None), "params", {})
        if live is not None and (not live.args or set(live.args) & set(params.values())):
            return
        if place == "conformance" and self._writes:
            item.add_marker("recordable")
            item.user_properties.append(("recordable", name))
        elif place == "conformance" and name in self._valid:
            if item.location[2] in self._known[name]["passed"]:
                item.add_marker("chaos")
        elif place == "integration" and not wants_live():
            item.add_marker("chaos")

    def _is_valid(self, name: str) -> bool:
        path = REPOSITORY / name
        return not wants_live() and path.exists() and self._known[name]["digest"] == digest_of(path)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the result of each phase of each test; with workers, in the process that started
        them."""
        name = dict(report.user_properties).get("recordable")
        if name is not None and not self._is_worker:
            if report.when == "call" and report.passed:
                self._passed.setdefault(name, set()).add(report.location[2])
            elif not report.passed:
                self._failed.add((name, report.location[2]))

    def pytest_sessionfinish(self) -> None:
        """Write the tests that passed; a file of which no test ran keeps its entry."""
        if not self._passed:
            return
        for name, passed in self._passed.items():
            self._known[name] = {
                "digest": self._digests[name],
                "passed": sorted(each for each in passed if (name, each) not in self._failed),
            }
        kept = {name: self._known[name] for name in sorted(self._known) if _exists(name)}
        RECORDED.mkdir(parents=True, exist_ok=True)
        PASSED.write_text(json.dumps(kept, indent=0) + "\n")


def _name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def _exists(name: str) -> bool:
    return (REPOSITORY / name).exists()
