"""A random life of a cluster: processes die, stand still and come back, connections break, the
registry is started again, topics come and go; and what must hold whatever happens."""

from __future__ import annotations

import random
from typing import Any

from support.core.broker_build import BrokerOnDisk, produce_request, request
from support.core.core_network import REGISTRY, SLICE_MS
from support.core.log_build import build_batch
from support.core.registry_cluster import RegistryCluster

from broker_sim.core.controller.registrations import NO_LEADER
from txnlog_kafka.wire.messages import ApiKey

COUNT = 3
TOPICS = ("a", "b", "c")
HEALING_MS = 15_000


class MembershipRun:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = RegistryCluster(
            COUNT,
            leader_imbalance_check_interval_seconds=5,
            metadata_log_max_record_bytes_between_snapshots=self.rng.choice((500, 5_000, 1 << 20)),
        )
        self.images: dict[int, Any] = {}
        """What the image is after so many records, whoever has read them."""
        self.sent: list[tuple[BrokerOnDisk, int, tuple[int, int], str, int, str]] = []
        self.acknowledged: set[tuple[Any, int, str]] = set()
        """(topic id, partition, value)."""
        self.producer_ids: list[int] = []
        self._asked_ids: list[tuple[BrokerOnDisk, int, tuple[int, int]]] = []
        self._made = 0
        self.cluster.run(1_000)

    def live(self, count: int) -> None:
        actions = (
            [self.wait] * 12
            + [self.produce] * 6
            + [self.create, self.delete, self.elect, self.reassign, self.ask_producer_id]
            + [self.kill, self.start, self.start, self.pause, self.resume, self.resume]
            + [self.cut, self.join_again, self.join_again, self.lose]
            + [self.restart_registry]
        )
        for _ in range(count):
            self.rng.choice(actions)()
            self.check()

    # ------------------------------------------------------------------ faults

    def wait(self) -> None:
        for _ in range(self.rng.randrange(1, 12)):
            self.cluster.run(SLICE_MS)
            self.check()

    def kill(self) -> None:
        self.cluster.kill(self.rng.randrange(COUNT))

    def start(self) -> None:
        down = [b.node_id for b in self.cluster.brokers.values() if not b.is_up]
        if down:
            self.cluster.start(self.rng.choice(down))

    def pause(self) -> None:
        self.cluster.pause(self.rng.randrange(COUNT))

    def resume(self) -> None:
        self.cluster.resume(self.rng.randrange(COUNT))

    def cut(self) -> None:
        one, other = self.rng.sample(range(REGISTRY, COUNT), 2)
        self.cluster.part(one, other)

    def join_again(self) -> None:
        if self.cluster.cut:
            self.cluster.cut.remove(self.rng.choice(sorted(self.cluster.cut, key=sorted)))

    def lose(self) -> None:
        """In the middle of what is under way: requests arrive whose answers are lost."""
        one, other = self.rng.sample(range(REGISTRY, COUNT), 2)
        if other == REGISTRY and self.rng.random() < 0.7:
            self.cluster.registry_requests(one)
        self.cluster.lose_between(one, other)

    def restart_registry(self) -> None:
        self.cluster.stop_registry()
        if self.rng.random() < 0.5:
            self.wait()
        self.cluster.start_registry()

    # ------------------------------------------------------------------ clients

    def _serving(self) -> BrokerOnDisk | None:
        found = [b for b in self.cluster.up if not b.is_paused and b.membership.is_serving]
        return self.rng.choice(found) if found else None

    def _send(self, message: Any, version: int) -> None:
        broker = self._serving()
        if broker is not None:
            broker.send(message, version, connection_id=self.rng.randrange(1, 1_000))

    def create(self) -> None:
        factor = self.rng.randrange(1, COUNT + 1)
        topic = {"name": self.rng.choice(TOPICS), "num_partitions": 2, "replication_factor": factor}
        self._send(request(ApiKey.CREATE_TOPICS, timeout_ms=2_000, topics=[topic]), 7)

    def delete(self) -> None:
        if self.rng.random() < 0.3:
            names = [self.rng.choice(TOPICS)]
            self._send(request(ApiKey.DELETE_TOPICS, timeout_ms=2_000, topic_names=names), 5)

    def elect(self) -> None:
        self._send(request(ApiKey.ELECT_LEADERS, topic_partitions=None, timeout_ms=2_000), 2)

    def reassign(self) -> None:
        replicas = self.rng.sample(range(COUNT), self.rng.randrange(1, COUNT + 1))
        partitions = [{"partition_index": 0, "replicas": replicas}]
        topics = [{"name": self.rng.choice(TOPICS), "partitions": partitions}]
        key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
        self._send(request(key, timeout_ms=2_000, topics=topics), 1)

    def ask_producer_id(self) -> None:
        broker = self._serving()
        if broker is not None:
            message = request(ApiKey.INIT_PRODUCER_ID, transactional_id=None)
            self._asked_ids.append((broker, broker.starts, broker.send(message, 4)))

    def produce(self) -> None:
        broker = self._serving()
        topics = broker.parts.image.topics if broker else {}
        if broker is None or not topics:
            return
        topic = topics[self.rng.choice(sorted(topics))]
        partition = self.rng.randrange(topic.partition_count)
        leader = topic.partitions[partition].leader
        if topic.is_internal or leader == NO_LEADER or not self.cluster.brokers[leader].is_up:
            return
        self._made += 1
        value = f"v{self._made}"
        at = self.cluster.brokers[leader]
        if at.is_paused or at.broker.opened is None:
            return
        batch = build_batch(value, timestamp=at.now_ms)
        key = at.send(produce_request({(topic.name, partition): batch}), 11)
        self.sent.append((at, at.starts, key, topic.topic_id, partition, value))

    # ------------------------------------------------------------------ what must hold

    def check(self) -> None:
        for broker in self.cluster.up:
            offset, image = broker.membership.registry_offset, broker.membership.image
            found = repr((image.topics, image.brokers, image.next_producer_id, image.cluster_id))
            known = self.images.setdefault(offset, found)
            assert known == found, f"two histories, at {offset}"
        for entry in list(self.sent):
            broker, starts, key, topic_id, partition, value = entry
            if broker.starts != starts:
                self.sent.remove(entry)
            elif key in broker.asked.answers:
                self.sent.remove(entry)
                answer = broker.asked.answers.pop(key)
                if answer.responses[0].partition_responses[0].error_code == 0:
                    self.acknowledged.add((topic_id, partition, value))
        for asked in list(self._asked_ids):
            broker, _, key = asked
            if key in broker.asked.answers:
                self._asked_ids.remove(asked)
                answer = broker.asked.answers.pop(key)
                if answer.error_code == 0:
                    assert answer.producer_id not in self.producer_ids
                    self.producer_ids.append(answer.producer_id)

    def finish(self) -> None:
        """All come back and everything is delivered: progress is demanded."""
        cluster = self.cluster
        cluster.cut.clear()
        for number, broker in cluster.brokers.items():
            cluster.resume(number)
            if not broker.is_up:
                cluster.start(number)
        cluster.run(HEALING_MS)
        self.check()
        cluster.check_healed()
        created = [cluster.create_topic(number, f"last{number}") for number in cluster.brokers]
        assert [each.error_code for each in created] == [0] * COUNT
        cluster.run(1_000)
        cluster.check_healed()
        self._check_acknowledged()

    def _check_acknowledged(self) -> None:
        image = self.cluster.controller().parts.image
        for topic_id, partition, value in sorted(self.acknowledged, key=str):
            topic = image.topic_of_id(topic_id)
            if topic is None:
                continue
            for replica in topic.partitions[partition].replicas:
                log = self.cluster.brokers[replica].parts.logs.get(topic.name, partition)
                held = b"".join(bytes(batch) for _, batch in log.batches(log.log_start_offset))
                assert value.encode() + b"\x00" in held, (topic.name, partition, replica, value)
