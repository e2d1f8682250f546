"""Figures of a broker in a cluster: partitions that it leads, and traffic of replication."""

from __future__ import annotations

import re

from support.core.core_cluster import CoreCluster, replicated

from broker_sim.core.controller.registrations import NO_LEADER
from broker_sim.core.effects import Step
from broker_sim.server.metrics import BrokerMetrics


def counted(cluster: CoreCluster) -> list[BrokerMetrics]:
    """Counts what every broker does from here on, as the host does."""
    made = []
    for broker in cluster.brokers.values():
        metrics = BrokerMetrics()
        made.append(metrics)

        def step(item: object, broker=broker, metrics=metrics, step=broker.step) -> Step:
            found = step(item)
            metrics.count(item, found, broker.parts)
            return found

        broker.step = step
    return made


def figures(cluster: CoreCluster, metrics: BrokerMetrics, number: int) -> dict[str, float]:
    text = metrics.text(cluster.brokers[number].parts, 0)
    found = re.findall(r"^(\S+) ([0-9.]+)$", text, re.MULTILINE)
    return {name.removeprefix("kafka_server_"): float(value) for name, value in found}


def test_what_followers_append_and_are_sent_is_replication_and_not_in_or_out() -> None:
    cluster = CoreCluster(3)
    cluster.create(replicated(0, 1, 2))
    metrics = counted(cluster)
    cluster.produce(0, "a", "b")
    cluster.settle()
    leader, follower, _ = (figures(cluster, each, n) for n, each in enumerate(metrics))
    of = "brokertopicmetrics_"
    size = leader[f"{of}bytesin_total"]
    assert (leader[f"{of}messagesin_total"], size > 0) == (2, True)
    assert leader[f"{of}replicationbytesin_total"] == 0
    assert leader[f"{of}replicationbytesout_total"] == 2 * size
    assert leader[f"{of}bytesout_total"] == 0
    assert follower[f"{of}messagesin_total"] == follower[f"{of}bytesin_total"] == 0
    assert follower[f"{of}replicationbytesin_total"] == size
    cluster.fetch(0)
    assert figures(cluster, metrics[0], 0)[f"{of}bytesout_total"] == size


def test_leaders_and_missing_replicas_are_counted_where_they_are() -> None:
    cluster = CoreCluster(3)
    cluster.create(replicated(0, 1, 2), replicated(1, 2, 0, replicas=(1, 2, 0)))
    metrics = BrokerMetrics()

    def found(number: int, name: str) -> float:
        return figures(cluster, metrics, number)[f"replicamanager_{name}"]

    assert [found(number, "leadercount") for number in range(3)] == [1, 1, 0]
    assert [found(number, "partitioncount") for number in range(3)] == [2, 2, 2]
    assert found(0, "underreplicatedpartitions") == 0
    cluster.change(isr=(0, 2))
    assert [found(number, "underreplicatedpartitions") for number in range(3)] == [1, 0, 0]
    cluster.change(leader=NO_LEADER, isr=(0,))
    offline = "kafka_controller_kafkacontroller_offlinepartitionscount"
    assert figures(cluster, metrics, 2)[offline] == 1
