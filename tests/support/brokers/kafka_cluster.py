"""Three brokers of Apache Kafka, each its own controller too, with everything on all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from support.brokers.apache_kafka import VERSION, ApacheKafka, Node, new_cluster_id
from support.brokers.probe import free_ports, live_brokers, wait_until
from support.brokers.processes import START_TIMEOUT_S, Startable

NODES = 3
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    # A broker that was killed is replaced as a leader within seconds.
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "1000",
}


class KafkaCluster(Startable):
    """Apache Kafka's brokers of a cluster, a context manager; `bootstrap_servers` is valid from
    construction on."""

    name = "apache_kafka_cluster"
    numbers = tuple(range(1, NODES + 1))

    def __init__(
        self,
        folder: Path,
        config: dict[str, str] | None = None,
        racks: Sequence[str] = (),
        *,
        java_option: str | None = None,
    ) -> None:
        ports, controllers = free_ports(NODES), free_ports(NODES)
        cluster_id = new_cluster_id()
        by_number = {number + 1: port for number, port in enumerate(controllers)}
        in_rack = {number: {"broker.rack": rack} for number, rack in enumerate(racks, 1)}
        self.brokers = {
            number: ApacheKafka(
                folder / str(number),
                REPLICATED | (config or {}) | in_rack.get(number, {}),
                version=VERSION,
                node=Node(number, port, by_number, cluster_id),
                java_option=java_option,
            )
            for number, port in zip(by_number, ports, strict=True)
        }
        self.bootstrap_servers = ",".join(b.bootstrap_servers for b in self.brokers.values())

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.launch()
        self.wait_whole()

    def wait_whole(self) -> None:
        def is_whole() -> bool:
            return all(
                broker.is_up() and live_brokers(broker.port) == NODES
                for broker in self.brokers.values()
            )

        wait_until(is_whole, "all brokers of the cluster", timeout_s=START_TIMEOUT_S)

    def stop(self) -> None:
        """End all at once: a clean stop would move leaders about, and takes long for the last."""
        for broker in self.brokers.values():
            broker.kill_now()

    def launch(self, number: int) -> None:
        self.brokers[number].launch()

    def restart(self, number: int) -> None:
        self.launch(number)
        self.wait_whole()

    def kill(self, number: int) -> None:
        self.brokers[number].kill_now()

    def port_of(self, number: int) -> int:
        return self.brokers[number].port

    def stop_one(self, number: int) -> None:
        self.brokers[number].stop()

    def controller(self) -> int:
        """The number of the broker whose controller is the active one, as they have on disk."""
        found = []
        for broker in self.brokers.values():
            path = broker.data_dir / "__cluster_metadata-0" / "quorum-state"
            state = json.loads(path.read_text())
            found.append((state["leaderEpoch"], state["leaderId"]))
        return int(max(found)[1])

    @property
    def live_port(self) -> int:
        return next(broker.port for broker in self.brokers.values() if broker.alive)
