"""Three brokers of either kind with the same timeouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.brokers.kafka_cluster import KafkaCluster
from support.brokers.sim_broker import NODES, SimBroker
from support.clients.failover.story import HEARTBEAT_MS, SESSION_TIMEOUT_MS, Failing

SAME = {
    # Each broker leads some of them, so that there is a key for each coordinator.
    "offsets.topic.num.partitions": "12",
    "transaction.state.log.num.partitions": "12",
    "group.initial.rebalance.delay.ms": "0",
    # Only the stories move leaders back.
    "auto.leader.rebalance.enable": "false",
}


def _ours(folder: Path) -> Failing:
    return SimBroker(folder, SAME | {
        "registry.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        "registry.heartbeat.interval.ms": str(HEARTBEAT_MS),
    }, brokers=NODES)  # fmt: skip


def _kafkas(folder: Path) -> Failing:
    return KafkaCluster(folder, SAME | {
        "broker.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        "broker.heartbeat.interval.ms": str(HEARTBEAT_MS),
    })  # fmt: skip


KINDS: dict[str, Callable[[Path], Failing]] = {"broker_sim": _ours, "Apache Kafka": _kafkas}
