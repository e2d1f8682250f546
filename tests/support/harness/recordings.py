"""What Apache Kafka answered is asked once per version of it, recorded, and not asked again.

A test body that runs on both brokers proves two things: on Apache Kafka that the body is right, on
ours that we do the same. The first stays true while neither the body nor Apache Kafka changes. So
`make record` runs the bodies on Apache Kafka and writes which passed into
`tests/recorded/<version>/passed.json`, beside a digest of all they consist of: the test's file,
every module of this repository that it imports, directly or not, and the versions of the client
libraries. While the digest is the same such a run is one of `make chaos`; else, or when the test
is new, or TXNLOG_KAFKA=live asks for it, it is one of `make test`.

What is imported by a name in a string is not seen, and the connector inside Spark is. So its tests
are never recorded: marked `live` they run on Apache Kafka in `make test`, else in `make chaos`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from support.brokers import cluster_runs
from support.brokers.apache_kafka import REPOSITORY, VERSION
from xdist.scheduler import LoadFileScheduling, Scheduling

TESTS = REPOSITORY / "tests"
RECORDED = TESTS / "recorded" / VERSION
PASSED = RECORDED / "passed.json"
KAFKA = "apache_kafka"
SESSIONS = ("a shared Spark session", "the other shared Spark session")
OTHER_SESSION_FROM = "tests/integration/test_connector_foreach_batch.py"
"""The files before it take half of the time."""
KILLS = re.compile(r"/test_exactly_once_\w+\.py$")
"""Files whose drivers are killed: their tests with an Apache Kafka take a third of all such."""
SESSION_FIXTURES = re.compile(r"\b(connector_spark|pipe|both_pipe)\b")
OWN_SESSION = re.compile(r"\bspark_sessions\b")
CHAOS_TIMEOUT_S = 7200
"""The longest long run, the driver killed at every step on a busy machine, takes a third of it."""
CLIENTS = {
    "aiokafka": "aiokafka",
    "confluent_kafka": "confluent-kafka",
    "kafka": "kafka-python",
    "pyspark": "pyspark",
}
"""The libraries that talk to the broker, by the name that is imported."""
ELSEWHERE = {
    TESTS / "support" / f"{name}.py"
    for name in ("spark/connector", "harness/recordings", "brokers/sim_broker")
}
"""What `conftest.py` imports that takes no part in what is recorded."""
WITH_FILES = {TESTS / "support" / "kafka" / "java_tools.py": "java/*"}
"""Modules that use files they do not import, and which."""


def wants_live() -> bool:
    """Whether the recordings are left aside: Apache Kafka is asked."""
    return os.environ.get("TXNLOG_KAFKA") == "live"


def digest_of(path: Path) -> str:
    """A digest of everything that a run of this test file on Apache Kafka consists of."""
    return _digest(frozenset(_closure([path, *_conftests(path)])))


def _conftests(path: Path) -> Iterator[Path]:
    for folder in path.parents:
        if (folder / "conftest.py").exists():
            yield folder / "conftest.py"
        if folder == TESTS:
            return


def _closure(paths: Iterable[Path]) -> set[Path]:
    """These files and all of the repository that they import."""
    found: set[Path] = set()
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        if path not in found and path not in ELSEWHERE:
            found.add(path)
            waiting += (file for name in _imports(path) if (file := _file_of(name)) is not None)
    return found


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
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(REPOSITORY)} {content}\n".encode())
    return digest.hexdigest()[:16]


def _tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in _imports(path)}


@functools.cache
def _imports(path: Path) -> frozenset[str]:
    """The modules that a file imports, wherever in it; of `from a import b` a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return frozenset(found)


@functools.cache
def _file_of(module: str) -> Path | None:
    """A module's file, when it is one of the repository."""
    for root in (TESTS, REPOSITORY):
        place = root.joinpath(*module.split("."))
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.exists():
                return path
    return None


def runs_on_kafka(item: pytest.Item) -> bool:
    """Whether it is the run of a body on Apache Kafka, of both brokers or as the only one."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return KAFKA in params.values() or item.get_closest_marker("only_kafka") is not None


class Together(LoadFileScheduling):
    """A file stays in one worker. So do the connector's tests that need an Apache Kafka, in two
    groups, so that there are two; and all others that share a Spark session, in two halves: in one
    they would take longest of all, and each costs five seconds of a processor to start."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        if file.startswith("tests/integration/"):
            if KAFKA in nodeid:
                return f"{KAFKA}, killed drivers" if KILLS.search(file) else KAFKA
            if _shares_session(REPOSITORY / file):
                return SESSIONS[file >= OTHER_SESSION_FROM]
        return file


@functools.cache
def _shares_session(path: Path) -> bool:
    """Whether a file names a fixture of `conftest.py` that has the session, and makes no other."""
    text = path.read_text(encoding="utf-8")
    return bool(SESSION_FIXTURES.search(text)) and not OWN_SESSION.search(text)


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
        """How many runs are left out, and of which files Apache Kafka is asked again."""
        if self._writes:
            return [f"recording what passes on Apache Kafka {VERSION}"]
        count = sum(len(self._known[name]["passed"]) for name in self._valid)
        lines = [f"{count} runs on Apache Kafka {VERSION} are recorded and left to make chaos"]
        if stale := sorted({*self._known} - self._valid):
            lines.append(f"changed since they were recorded (`make record`): {', '.join(stale)}")
        return lines

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Scheduling | None:
        """Instead of `--dist loadfile`."""
        return Together(config, log) if config.getvalue("dist") == "loadfile" else None

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
        """What is recorded, or the connector's and not `live`, becomes a run of `make chaos`."""
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
        """Of each phase of each test; in the process that starts the workers, of all workers."""
        name = dict(report.user_properties).get("recordable")
        if name is not None and not self._is_worker:
            if report.when == "call" and report.passed:
                self._passed.setdefault(name, set()).add(report.location[2])
            elif not report.passed:
                self._failed.add((name, report.location[2]))

    def pytest_sessionfinish(self) -> None:
        """Write what passed; files of which nothing ran keep what is written of them."""
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
