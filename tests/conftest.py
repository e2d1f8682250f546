"""Fixtures that all tests share: the two brokers, and names that no other test uses."""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support.brokers.apache_kafka import ApacheKafka
from support.brokers.sim_broker import SimBroker
from support.harness.availability import check_available
from support.harness.costs import Costs
from support.harness.days import Days
from support.harness.groups import Groups
from support.harness.recordings import Selection
from support.spark.spark_home import WARM_PYTHON, use_spark_home

# Spark's processes are forked from the Python that runs the tests.
os.environ.setdefault("PYSPARK_PYTHON", WARM_PYTHON)
os.environ.setdefault("TXNLOG_PYTHON_IMPORTS", "pandas")
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# Each of them imports numpy, whose threads would wait for work in a loop.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
use_spark_home()

# No test asserts a wall time: a machine that others use as well would fail it. Each run draws other
# examples, so that fewer of them in a run are as many in a week.
settings.register_profile(
    "examples",
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("examples")

SAID = "said"
"""The name of a recorded property that is printed at the end, such as how much was explored."""
BROKERS = {"broker_sim": SimBroker, "apache_kafka": ApacheKafka}
BOTH_BROKERS = [
    pytest.param("broker_sim"),
    pytest.param("apache_kafka", marks=pytest.mark.kafka),
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make record` runs with the first."""
    parser.addoption("--record", action="store_true", help="write what passes on Apache Kafka")
    parser.addoption("--write-costs", action="store_true", help="write what each test costs")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin that decides which tests run where, and which need not run again."""
    config.pluginmanager.register(Selection(config))
    config.pluginmanager.register(Costs(config))
    config.pluginmanager.register(Groups())
    config.pluginmanager.register(Days())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the notes of passed tests, also of tests that ran in a worker process."""
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == SAID:
                terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {text}")


def pytest_collection_finish() -> None:
    """Tests make objects by the million and few cycles of them; to look for those as often as
    Python does, each time also among all that was collected, takes a twentieth of their time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="session")
def shared_brokers(tmp_path_factory) -> Iterator[Callable]:
    """Return the session's broker of a kind; start it when a test first asks for it."""
    running: dict[str, SimBroker | ApacheKafka] = {}

    def broker_of(name: str) -> SimBroker | ApacheKafka:
        check_available(name)
        if name not in running:
            made = BROKERS[name](tmp_path_factory.mktemp(name))
            try:
                made.start()
            except BaseException:
                made.stop()  # whoever asks next gets a new one
                raise
            running[name] = made
        return running[name]

    yield broker_of
    for each in running.values():
        each.stop()


@pytest.fixture(scope="session")
def spark_sessions() -> Iterator[Callable]:
    """`spark_sessions(master, **config)` is a session, the running one when it is the same: another
    one takes seconds to start."""
    running: list[tuple[Any, Any]] = []

    def session_of(master: str, **config: str) -> Any:
        from support.spark.connector import start_session

        wanted = master, config
        if not running or running[0][0] != wanted:
            while running:
                running.pop()[1].stop()
            running.append((wanted, start_session(master, **config)))
        return running[0][1]

    yield session_of
    for _, spark in running:
        spark.stop()


@pytest.fixture(scope="module")
def connector_spark(spark_sessions) -> Iterator:
    """The small session that most files share; a failed task is tried again, as on a cluster."""
    spark = spark_sessions("local[2,3]")
    yield spark
    for query in spark.streams.active:
        query.stop()


@pytest.fixture(params=BOTH_BROKERS)
def broker_name(request) -> str:
    """The name of each kind of broker in turn."""
    return request.param


@pytest.fixture
def broker(broker_name, shared_brokers):
    """A running broker, ours and Apache Kafka in turn. Whoever kills it restarts it."""
    return shared_brokers(broker_name)


@pytest.fixture(params=BOTH_BROKERS)
def new_broker(request, tmp_path) -> Iterator[Callable]:
    """Starts brokers of one kind with a test's own config and data directory."""
    check_available(request.param)
    started = []

    def start(config: dict[str, str] | None = None, **options):
        each = BROKERS[request.param](tmp_path / f"broker-{len(started)}", config, **options)
        started.append(each)
        each.start()
        return each

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def unique() -> Callable[[str], str]:
    """`unique("orders")` is a name that no other test uses, such as "orders-3f9a2c71"."""
    suffix = uuid.uuid4().hex[:8]
    return lambda name: f"{name}-{suffix}"


@pytest.fixture(scope="session")
def unique_names() -> Callable[[str], str]:
    """The same for what several tests share: each call gives another name."""
    return lambda name: f"{name}-{uuid.uuid4().hex[:8]}"
