"""Fixtures of the conformance tests: their brokers, and one JVM for Kafka's tools and client."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.brokers.cluster_broker import KILLED, WHOLE, ClusterBroker
from support.clients.adapter import Admin, Client
from support.clients.java_client import Java
from support.clients.libraries import IN_PYTHON
from support.clients.librdkafka import create_topic, read_topic, values_of
from support.clients.talking import Talking
from support.harness.availability import available
from support.kafka.java_tools import JavaHost, java_command
from support.raw.raw import RawProducer
from support.raw.routed import connect

BROKERS = [
    pytest.param("broker_sim"),
    pytest.param("apache_kafka", marks=pytest.mark.kafka),
    pytest.param(WHOLE),
    pytest.param(KILLED),
]


AROUND = pytest.StashKey[Callable]()
"""Stash key of the context manager that wraps a test body on three brokers."""


@pytest.fixture(params=BROKERS)
def broker_name(request) -> str:
    """The name of each kind of broker in turn; `cluster_runs` decides about clusters."""
    return request.param


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory) -> Iterator[Callable[[], ClusterBroker]]:
    """Three brokers of ours for a file, started when first asked for."""
    started: list[ClusterBroker] = []

    def of_file() -> ClusterBroker:
        if not started:
            started.append(ClusterBroker(tmp_path_factory.mktemp(WHOLE)))
            started[0].start()
        return started[0]

    yield of_file
    for each in started:
        each.stop()


@pytest.fixture
def broker(request, broker_name, shared_brokers, shared_cluster):
    """Return a running broker: broker_sim, Apache Kafka, or three, one of which may be killed."""
    if broker_name not in (WHOLE, KILLED):
        yield shared_brokers(broker_name)
        return
    body, cluster = request.node.nodeid.replace(KILLED, WHOLE), shared_cluster()
    cluster.begin(body)
    around = cluster.timed if broker_name == WHOLE else cluster.killing
    request.node.stash[AROUND] = functools.partial(around, body)
    yield cluster
    cluster.wait_whole()


@pytest.fixture
def bootstrap(broker) -> str:
    """Its address, or the addresses of a cluster."""
    return broker.bootstrap_servers


@pytest.fixture
def topic(bootstrap, unique) -> str:
    """An empty topic of one partition."""
    return create_topic(bootstrap, unique("topic"))


@pytest.fixture
def connection(broker):
    """Return a connection to the broker, or one that routes to the brokers of a cluster."""
    with connect(broker) as opened:
        yield opened


@pytest.fixture
def place(broker, unique):
    """(connection, topic with 2 partitions, function making a producer of a transactional id)."""
    topic = create_topic(broker.bootstrap_servers, unique("raw"), 2)
    with connect(broker) as connection:

        def make(name: str = "txn", *, init: bool = True) -> RawProducer:
            made = RawProducer(connection, unique(name))
            assert made.find_coordinator() == "NONE"
            if init:
                assert made.init() == "NONE"
            return made

        yield connection, topic, make


@pytest.fixture
def committed(bootstrap, place):
    """Return a function that reads the topic of `place` as read_committed consumers see it now."""
    _, topic, _ = place
    return lambda: values_of(read_topic(bootstrap, topic))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Run the body after its fixtures are ready: a broker is killed during the body alone."""
    with item.stash.get(AROUND, contextlib.nullcontext)() as died:
        result = yield
    item.user_properties += [("died", each) for each in died or ()]
    return result


@pytest.fixture(scope="session")
def java_host(tmp_path_factory) -> Iterator[JavaHost]:
    """Start one JVM for the session; `java` provides it where Kafka's jars are available."""
    with JavaHost(tmp_path_factory.mktemp("java")) as host:
        yield host


@pytest.fixture
def java(java_host) -> JavaHost:
    """Runs the main methods of Kafka's tools. The test is not run where they cannot be had."""
    available(java_command)
    return java_host


@pytest.fixture
def client(request) -> Iterator[Client]:
    """The client library that `told_by` names."""
    name = request.param
    made = IN_PYTHON[name]() if name in IN_PYTHON else Java(request.getfixturevalue("java"))
    with made:
        yield made


@pytest.fixture
def admin(client, bootstrap) -> Admin:
    """An administrator of that library."""
    return client.admin(bootstrap)


@pytest.fixture
def talking(tmp_path: Path) -> Iterator[Callable[[list[str]], Talking]]:
    """Starts programs, which do not outlive the test."""
    with contextlib.ExitStack() as started:
        folders = (tmp_path / f"process-{number}" for number in itertools.count())
        yield lambda command: started.enter_context(Talking(next(folders), command))
