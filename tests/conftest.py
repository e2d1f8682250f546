"""Fixtures that all tests share: the two brokers, and names nobody else uses."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from support.apache_kafka import ApacheKafka
from support.availability import check_available
from support.recordings import PassedOnKafka
from support.sim_broker import SimBroker

# No test asserts a wall time: a machine that others use as well would fail it.
settings.register_profile(
    "no-wall-time", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("no-wall-time")

BROKERS = {"broker_sim": SimBroker, "apache_kafka": ApacheKafka}
BOTH_BROKERS = [
    pytest.param("broker_sim"),
    pytest.param("apache_kafka", marks=pytest.mark.kafka),
]

CHAOS_TIMEOUT_S = 7200
"""The longest long run, the driver killed at every step on a busy machine, takes a third of it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make record` runs with this."""
    parser.addoption("--record", action="store_true", help="write what passes on Apache Kafka")


def pytest_configure(config: pytest.Config) -> None:
    """What is recorded of Apache Kafka is known before anything is collected."""
    config.pluginmanager.register(PassedOnKafka(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A long run is not ended by the limit for tests that take seconds."""
    for item in items:
        if item.get_closest_marker("chaos") is not None:
            item.add_marker(pytest.mark.timeout(CHAOS_TIMEOUT_S), append=False)


@pytest.fixture(scope="session")
def shared_brokers(tmp_path_factory) -> Iterator[Callable]:
    """One broker a kind for the whole session, started when first asked for, by kind."""
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
