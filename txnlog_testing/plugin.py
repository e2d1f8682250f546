"""The pytest plugin: fixtures `kafka` and `kafka_cluster`, and what a failed test did.

pytest imports this in every run of an environment that has the package. So it imports nothing else
before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from broker_sim import LocalCluster
    from txnlog_testing.kafka import TestKafka


@pytest.fixture(scope="session")
def _session_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Run one broker for the tests of this process, which ends with it however it ends."""
    from broker_sim import LocalCluster
    from txnlog_testing.kafka import AT_ONCE

    folder = tmp_path_factory.mktemp("kafka")
    with LocalCluster(folder, config=AT_ONCE, faults=True) as cluster:
        yield cluster


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[TestKafka]:
    """Return the session's broker with helpers, and with a prefix of the test's own for topics.

    A test may kill the broker: the next one finds it running. Rules of faults end with the test.
    """
    from txnlog_testing.kafka import TestKafka

    cluster: LocalCluster = request.getfixturevalue("_session_broker")
    cluster.start()
    yield TestKafka(cluster, request.node.name)
    if cluster.is_running():
        cluster.resume()
    cluster.start()
    cluster.clear_faults()


@pytest.fixture
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Return a function that starts a cluster for this test: `kafka_cluster(brokers=3)`.

    It takes what `LocalCluster` takes. Topics have three replicas, or as many as there are brokers,
    and a broker that is killed is missed after two seconds.
    """
    from broker_sim import LocalCluster
    from txnlog_testing.kafka import CLUSTER_CONFIG

    with ExitStack() as started:

        def start(brokers: int = 3, config: dict[str, Any] | None = None, **more: Any) -> Any:
            folder = tmp_path_factory.mktemp("kafka-cluster")
            replicas = {"default.replication.factor": min(3, brokers)}
            values = {**CLUSTER_CONFIG, **replicas, **(config or {})}
            cluster = LocalCluster(folder, brokers, values, **{"faults": True, **more})
            return started.enter_context(cluster)

        yield start


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any]:
    """Add the timelines of a failed test's transactions, and the command that runs it again."""
    outcome = yield
    report = outcome.get_result()
    kafka: Any = getattr(item, "funcargs", {}).get("kafka")
    if call.when != "call" or not report.failed or not hasattr(kafka, "write_timelines"):
        return
    folder = kafka.cluster.data_dir / "timelines"
    try:
        drawn = [f"transaction: {path}" for path in kafka.write_timelines(folder)]
    except OSError as error:
        drawn = [f"the broker's files cannot be read: {error}"]
    again = f"again: python -m pytest '{item.nodeid}'"
    report.sections.append(("kafka", "\n".join([*drawn, again])))
