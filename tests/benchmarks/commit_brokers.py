"""The brokers of `bench_commit`: each has a listener of its own for every delay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_setup import ROOT  # noqa: F401 - it says where `support` is
from support.brokers.apache_kafka import VERSION, ApacheKafka, Node, new_cluster_id
from support.brokers.delay_line import DelayLine
from support.brokers.kafka_cluster import NODES, REPLICATED, KafkaCluster
from support.brokers.probe import free_ports

from broker_sim import LocalCluster

PLAIN = "PLAINTEXT"
KINDS = ("broker_sim", "apache_kafka", "apache_kafka_v1", "apache_kafka_3")
"""Kinds of brokers: one broker each, but the last; `_v1` is on transaction version 1."""


@dataclass
class Doors:
    """Ways to reach the brokers: for each delay a listener, which tells the addresses behind it."""

    lines: dict[int, DelayLine]
    servers: dict[int, list[str]] = field(default_factory=dict)

    def add_broker(self, port: int) -> dict[str, str]:
        """The settings of one more broker, whose listener without a delay is on this port."""
        listeners, advertised = [f"{PLAIN}://127.0.0.1:{port}"], [f"{PLAIN}://127.0.0.1:{port}"]
        names = [PLAIN]
        self.servers.setdefault(0, []).append(f"127.0.0.1:{port}")
        for delay_ms, line in self.lines.items():
            (behind,) = free_ports(1)
            door, name = line.open(behind), f"AFTER{delay_ms}"
            names.append(name)
            listeners.append(f"{name}://127.0.0.1:{behind}")
            advertised.append(f"{name}://127.0.0.1:{door}")
            self.servers.setdefault(delay_ms, []).append(f"127.0.0.1:{door}")
        return {
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(advertised),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
        }

    def bootstrap(self, delay_ms: int) -> str:
        """Bootstrap servers of clients with this delay."""
        return ",".join(self.servers[delay_ms])


class _Kafka(ApacheKafka):
    """Apache Kafka with the doors' listeners; its brokers reach each other without a delay."""

    def __init__(
        self, folder: Path, doors: Doors, config: dict[str, str], node: Node, version: int = 2
    ) -> None:
        self._doors = doors
        super().__init__(folder, config, transaction_version=version, version=VERSION, node=node)

    def _settings(self) -> dict[str, str]:
        found = super()._settings()
        own = self._doors.add_broker(self.port)
        controller = found["listeners"].rpartition(",")[2]
        own["listeners"] += f",{controller}"
        own["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
        return found | own | {"inter.broker.listener.name": PLAIN}


class _Cluster(KafkaCluster):
    """Three of them."""

    def __init__(self, folder: Path, doors: Doors) -> None:
        ports, controllers = free_ports(NODES), free_ports(NODES)
        cluster_id = new_cluster_id()
        by_number = dict(enumerate(controllers, 1))
        self.brokers = {
            number: _Kafka(
                folder / str(number), doors, REPLICATED, Node(number, port, by_number, cluster_id)
            )
            for number, port in enumerate(ports, 1)
        }
        self.bootstrap_servers = doors.bootstrap(0)


@contextlib.contextmanager
def running(kind: str, folder: Path, delays_ms: Sequence[int]) -> Iterator[Doors]:
    """Fresh brokers of a kind, reachable with each of these delays (0: directly)."""
    lines = {delay: DelayLine(delay) for delay in delays_ms if delay}
    doors = Doors(lines)
    try:
        with _brokers(kind, folder, doors):
            yield doors
    finally:
        for line in lines.values():
            line.close()


def _brokers(kind: str, folder: Path, doors: Doors) -> contextlib.AbstractContextManager[object]:
    if kind == "broker_sim":
        (port,) = free_ports(1)
        return LocalCluster(folder, config=doors.add_broker(port), ports=[port])
    if kind == "apache_kafka_3":
        return _Cluster(folder, doors)
    return _Kafka(folder, doors, {}, Node.alone(), version=1 if kind.endswith("_v1") else 2)
