"""A killed driver, a woken driver and a killed broker, on broker_sim and Apache Kafka 3.9 and 4.

broker_sim and Apache Kafka 4 run as one broker and as a cluster of three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.brokers.apache_kafka import VERSION_3, ApacheKafka
from support.brokers.cluster_roles import coordinator, leader
from support.brokers.coordinators_ready import GROUP, TRANSACTION
from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.prepared import wait_until_marked
from support.brokers.sim_broker import NODES, SimBroker
from support.harness.availability import check_available
from support.spark.audit import check_audit
from support.spark.spark_copy import KILLED, CopyQuery

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


KINDS = {
    "broker_sim": SimBroker,
    "broker_sim_cluster": partial(SimBroker, brokers=NODES),
    "apache_kafka_3": lambda folder: ApacheKafka(folder, version=VERSION_3),
    "apache_kafka": ApacheKafka,
    "apache_kafka_cluster": KafkaCluster,
}


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Callable]:
    """Start a broker or cluster of each kind once for all tests of this file."""
    started: dict[str, object] = {}

    def of(kind: str):
        check_available("broker_sim" if kind.startswith("broker_sim") else "apache_kafka")
        if kind not in started:
            made = KINDS[kind](tmp_path_factory.mktemp(kind))
            made.start()
            started[kind] = made
        return started[kind]

    yield of
    for each in started.values():
        each.stop()


def new_query(broker, folder: Path, name: str) -> CopyQuery:
    made = CopyQuery(folder, broker.bootstrap_servers, name)
    made.write_options = {"kafka.transactional.id": f"id-{name}"}
    made.feed(120)
    return made


@pytest.fixture(params=KINDS)
def query(request, running, tmp_path, unique) -> CopyQuery:
    """A query with four batches to do, on each kind in turn."""
    return new_query(running(request.param), tmp_path, unique("query"))


def finish(query: CopyQuery) -> None:
    """Run to the end of the input, then prove."""
    run = query.run()
    assert run.code == 0, run.stderr[-3000:]
    wait_until_marked(query.bootstrap)
    query.check_exactly_once()
    check_audit(query)


@pytest.mark.parametrize(
    "failpoint",
    ["produce.middle:after", "txn_offset_commit:after", "end_txn:after"],
)
def test_a_killed_driver_loses_and_doubles_nothing(query: CopyQuery, failpoint: str) -> None:
    killed = query.run(f"{failpoint}:kill-driver@1")
    assert killed.code == KILLED
    finish(query)


def test_a_driver_that_wakes_up_after_another_took_over_is_fenced(query: CopyQuery) -> None:
    failpoint = "txn_offset_commit:after:stop-driver@1"
    old = query.start(failpoint)
    try:
        old.wait_fired(failpoint)
        assert query.run().code == 0
        old.resume()
        ended = old.wait()
    finally:
        old.kill()
    assert ended.code == 1
    assert "ProducerFenced" in ended.last_error, ended.stderr[-3000:]
    query.check_exactly_once()


@pytest.mark.parametrize("kind", ["broker_sim_cluster", "apache_kafka_cluster"])
@pytest.mark.parametrize("role", ["leader", "transaction coordinator", "group coordinator"])
@pytest.mark.parametrize(
    "step",
    [
        "judge:after",
        "produce.middle:after",
        "txn_offset_commit:before",
        "end_txn:before",
        "end_txn:after",
    ],
)
def test_a_killed_broker_of_three_costs_nothing(
    running, tmp_path: Path, unique: Callable[[str], str], kind: str, role: str, step: str
) -> None:
    """The driver stands still in a batch while the broker dies that it needs next; it goes on."""
    cluster = running(kind)
    name = unique("query")
    query = new_query(cluster, tmp_path, name)
    failpoint = f"{step}:stop-driver@1"
    job = query.start(failpoint)
    try:
        job.wait_fired(failpoint)
        number = {
            "leader": lambda: leader(cluster, query.target, 0),
            "transaction coordinator": lambda: coordinator(cluster, f"id-{name}", TRANSACTION),
            "group coordinator": lambda: coordinator(cluster, query.group, GROUP),
        }[role]()
        cluster.kill(number)
        job.resume()
        ended = job.wait()
    finally:
        job.kill()
    cluster.restart(number)
    if ended.code != 0:
        assert ended.last_error, ended.stderr[-3000:]
    finish(query)
