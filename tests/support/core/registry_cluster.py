"""Brokers of the core whose metadata a registry of the core has: one of them is the controller."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from support.core.broker_build import TRANSACTION, BrokerOnDisk, request
from support.core.core_network import REGISTRY, CoreNetwork
from support.core.core_process import CoreProcess
from support.core.registry_build import RegistryHost
from support.raw.raw import RawProducer

from broker_sim.core.controller.image import Topic
from broker_sim.registry.config import RegistryConfig
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire.messages import ApiKey

CONFIG = {
    "registry_connect": "registry:2181",
    "registry_session_timeout_ms": 3_000,
    "registry_heartbeat_interval_ms": 500,
    "replica_lag_time_max_ms": 2_000,
    "offsets_topic_replication_factor": 3,
    "transaction_state_log_replication_factor": 3,
}
_STARTS = itertools.count()


class RegistryCluster(CoreNetwork):
    def __init__(self, count: int = 3, **config: Any) -> None:
        self.registry_disk = SimDisk()
        self.start_registry()
        listeners = {n: {"listeners": f"PLAINTEXT://broker{n}:9092"} for n in range(count)}
        super().__init__(count, listeners, CONFIG | config)

    # ------------------------------------------------------------------ processes

    def process(self, number: int) -> CoreProcess:
        return self.registry if number == REGISTRY else super().process(number)

    def processes(self) -> Iterator[CoreProcess]:
        yield self.registry
        yield from super().processes()

    def start_registry(self) -> None:
        # Registries that draw the same have the same id, whatever their directories are.
        seed = f"registry/{next(_STARTS)}"
        self.registry = RegistryHost(self.registry_disk, RegistryConfig(1_000, 9_000), seed)

    def stop_registry(self) -> None:
        self.kill(REGISTRY)

    def put_registry(self, disk: SimDisk) -> None:
        """Start the registry again on another disk."""
        self.stop_registry()
        self.registry_disk = disk
        self.start_registry()

    def registry_requests(self, number: int) -> None:
        """Deliver the broker's requests to the registry, and leave their answers there."""
        for asked in self.of(number):
            if asked.receiver == REGISTRY and asked.key is None and asked in self.sent:
                self.deliver(asked)

    # ------------------------------------------------------------------ clients

    def producer(self, name: str = "t", *, retries: bool = True) -> RawProducer:
        """Return a producer that has found its coordinator."""
        message = request(ApiKey.FIND_COORDINATOR, key_type=TRANSACTION, coordinator_keys=[name])
        for _ in range(100):
            number = next(b.node_id for b in self.up if b.membership.is_serving)
            if self.ask(number, message, 4).coordinators[0].error_code == 0:
                return super().producer(name, retries=retries)
            self.run(100)
        raise AssertionError("there is no coordinator")

    def create_topic(
        self, number: int, name: str, partitions: int = 3, *,
        assignment: list[int] | None = None, **fields: Any,
    ) -> Any:  # fmt: skip
        """Create a topic as a client of the broker; return its result. `assignment` is of one
        partition."""
        made = {"name": name, "num_partitions": partitions, "replication_factor": 3} | fields
        if assignment is not None:
            made |= {"num_partitions": -1, "replication_factor": -1}
            made["assignments"] = [{"partition_index": 0, "broker_ids": assignment}]
        message = request(ApiKey.CREATE_TOPICS, timeout_ms=1000, topics=[made])
        return self.ask(number, message, 7).topics[0]

    def delete_topic(self, number: int, name: str) -> None:
        message = request(ApiKey.DELETE_TOPICS, timeout_ms=1_000, topic_names=[name])
        assert self.ask(number, message, 5).responses[0].error_code == 0

    def reassign(self, number: int, name: str, replicas: list[int]) -> Any:
        """Reassign the first partition, as a client of the broker does; return the answer."""
        partitions = [{"partition_index": 0, "replicas": replicas}]
        message = request(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, timeout_ms=1000,
            topics=[{"name": name, "partitions": partitions}],
        )  # fmt: skip
        return self.ask(number, message, 1)

    # ------------------------------------------------------------------ what holds

    @property
    def controllers(self) -> list[int]:
        return [broker.node_id for broker in self.up if broker.is_controller]

    def controller(self) -> BrokerOnDisk:
        (number,) = self.controllers
        return self.brokers[number]

    def another(self, *than: int) -> int:
        """A broker that is neither the controller nor one of these."""
        return next(n for n in self.brokers if n not in (*self.controllers, *than))

    @property
    def topics(self) -> Mapping[str, Topic]:
        return self.controller().parts.image.topics

    def check_healed(self) -> None:
        """Check that one controller and one image remain, all brokers serve, and every ISR is
        full."""
        image = self.controller().parts.image
        assert set(image.brokers) == set(self.brokers)
        for broker in self.brokers.values():
            assert broker.membership.is_serving, broker.node_id
            assert broker.parts.image.topics == image.topics
            assert broker.parts.image.brokers == image.brokers
            assert broker.parts.image.next_producer_id == image.next_producer_id
        for topic in image.topics.values():
            for partition in topic.partitions:
                assert set(partition.isr) == set(partition.replicas), (topic.name, partition)
                assert partition.leader in partition.isr
