"""Brokers of the core that replicate to each other, on disks in memory, with the test as network
and controller: it delivers, loses and delays what they send, and writes their metadata."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from support.core.broker_build import BrokerOnDisk, fetch_request, produce_request, request, struct
from support.core.log_build import build_batch

from broker_sim.core.controller.image import (
    MetadataRecord,
    Topic,
    broker_fenced_record,
    broker_registered_record,
    partition_changed_record,
    topic_record,
)
from broker_sim.core.controller.registrations import (
    BrokerRegistration,
    PartitionRegistration,
)
from broker_sim.core.effects import PeerAnswer, PeerLost, Send, Step
from broker_sim.core.endpoint import Endpoint
from broker_sim.core.log import PartitionLog
from broker_sim.core.replica.leader import IsrProposal
from broker_sim.core.replica.partition import Partition
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.errors import ErrorCode
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.topics import TopicPartition

ORDERS = TopicPartition("orders", 0)
LAG_MS = 10_000
CONFIG = {
    "replica.lag.time.max.ms": LAG_MS,
    "transaction.partition.verification.enable": False,
}
PEER_CONNECTION = 1000
"""The connection of broker n to another one is this and n."""


@dataclass
class Asked:
    """A request of one broker to another, until it is answered or lost."""

    sender: int
    send: Send
    starts: int
    """Which start of the sender it is of."""
    key: tuple[int, int] | None = None
    """Of the answer at the other, once it was delivered."""


class ClusterBroker(BrokerOnDisk):
    """One broker; what it sends goes to the cluster."""

    def __init__(self, node_id: int, cluster: CoreCluster, config: dict) -> None:
        self.node_id = node_id
        self.cluster = cluster
        self.is_up = True
        self.records_read = 0
        self.asked_for_all: set[tuple[int, int]] = set()
        """Produce requests with acks=all."""
        super().__init__({"node.id": node_id} | CONFIG | config)

    def _carry_out(self, step: Step) -> Step:
        self.cluster.sent += [Asked(self.node_id, send, self._starts) for send in step.sends]
        return super()._carry_out(step)

    def start(self) -> None:
        super().start()
        self.is_up = True
        self.parts.replication._alter_partition = self.cluster.on_proposal

    @property
    def parts(self) -> Any:
        return self.broker.parts

    def log(self, name: TopicPartition = ORDERS) -> PartitionLog:
        log = self.parts.logs.get(*name)
        assert log is not None
        return log

    def partition(self, name: TopicPartition = ORDERS) -> Partition:
        found: Partition = self.parts.replicas.partition(self.log(name))
        return found


class CoreCluster:
    """See the module. `metadata` is the log of metadata records; each broker reads it when told."""

    def __init__(self, count: int = 3, racks: tuple[str, ...] = (), **config: Any) -> None:
        self.sent: list[Asked] = []
        self.metadata: list[MetadataRecord] = []
        self.proposals: list[tuple[IsrProposal, Reply[ErrorCode]]] = []
        self.topics: dict[str, Topic] = {}
        self.registered: dict[int, int] = {}
        self._epoch = 100
        self.racks = dict(enumerate(racks))
        options = {name.replace("_", "."): value for name, value in config.items()}
        self.brokers = {number: ClusterBroker(number, self, options) for number in range(count)}
        for number in self.brokers:
            self.register(number)

    # ------------------------------------------------------------------ the metadata

    def on_proposal(self, proposal: IsrProposal, reply: Reply[ErrorCode], _effects: Any) -> None:
        self.proposals.append((proposal, reply))

    def register(self, number: int) -> None:
        self._epoch += 1
        self.registered[number] = self._epoch
        endpoints = {"PLAINTEXT": Endpoint("host", 9000 + number)}
        rack = self.racks.get(number)
        registration = BrokerRegistration(number, self._epoch, endpoints, rack)
        self.write(broker_registered_record(registration))

    def unregister(self, number: int) -> None:
        del self.registered[number]
        self.write(broker_fenced_record(number))

    def write(self, record: MetadataRecord, *, read: bool = True) -> None:
        """Append a record; all brokers that are up read it, unless the test does so itself."""
        self.metadata.append(record)
        for broker in self.brokers.values() if read else ():
            self.read(broker.node_id)

    def read(self, number: int) -> None:
        """The broker reads all metadata records that it has not read."""
        broker = self.brokers[number]
        while broker.is_up and broker.records_read < len(self.metadata):
            record = self.metadata[broker.records_read]
            broker.records_read += 1
            broker.cause(lambda effects, r=record: broker.parts.metadata.commit([r], effects))

    def create(
        self, *registrations: PartitionRegistration, name: str = "orders", **configs: Any
    ) -> None:
        options = {key.replace("_", "."): value for key, value in configs.items()}
        topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, name)
        topic = Topic(name, topic_id, len(registrations), options, 0, registrations)
        self.topics[name] = topic
        self.write(topic_record(topic))

    def held(self, name: TopicPartition = ORDERS) -> PartitionRegistration:
        """What the metadata log says of the partition."""
        return self.topics[name.topic].partitions[name.partition]

    def change(self, name: TopicPartition = ORDERS, *, read: bool = True, **fields: Any) -> None:
        """Write another leader, ISR or set of replicas."""
        topic, number = self.topics[name.topic], name.partition
        changed = topic.partitions[number].changed(**fields)
        partitions = (*topic.partitions[:number], changed, *topic.partitions[number + 1 :])
        self.topics[name.topic] = Topic(
            topic.name, topic.topic_id, topic.partition_count, topic.configs, 0, partitions
        )
        self.write(partition_changed_record(topic, number, changed), read=read)

    def decide(self, *, read: bool = True) -> list[ErrorCode]:
        """Answer all proposals as a controller would, in their order."""
        answers = []
        proposals, self.proposals = self.proposals, []
        for proposal, reply in proposals:
            name = self.named(proposal)
            held = self.held(name)
            error = ErrorCode.NONE
            if proposal.leader_epoch != held.leader_epoch:
                error = ErrorCode.FENCED_LEADER_EPOCH
            elif proposal.partition_epoch != held.partition_epoch:
                error = ErrorCode.INVALID_UPDATE_VERSION
            elif not set(proposal.isr) <= {*self.registered, *held.isr}:
                error = ErrorCode.INELIGIBLE_REPLICA
            else:
                self.change(name, isr=proposal.isr, read=read)
            self.answer_proposal(proposal, reply, error)
            answers.append(error)
        return answers

    def named(self, proposal: IsrProposal) -> TopicPartition:
        """The partition that it is about."""
        names = {topic.topic_id: topic.name for topic in self.topics.values()}
        return TopicPartition(names[proposal.topic_id], proposal.partition)

    def answer_proposal(
        self, proposal: IsrProposal, reply: Reply[ErrorCode], error: ErrorCode
    ) -> None:
        """The controller's answer comes to whoever leads in that epoch."""
        name = self.named(proposal)
        for broker in self.brokers.values():
            leader = broker.partition(name).leader if broker.is_up else None
            if leader is not None and leader.proposal is proposal:
                broker.cause(lambda effects: reply(error, effects))

    # ------------------------------------------------------------------ the network

    def deliver(self, asked: Asked) -> None:
        """A request comes to the other broker; one that is down loses it."""
        receiver = self.brokers[asked.send.peer]
        if not receiver.is_up:
            return self.lose(asked)
        connection_id = PEER_CONNECTION + asked.sender
        asked.key = receiver.send(
            asked.send.message, asked.send.api_version, connection_id=connection_id
        )
        return None

    def answer(self, asked: Asked) -> bool:
        """Bring the answer back, when there is one yet."""
        receiver, sender = self.brokers[asked.send.peer], self.brokers[asked.sender]
        if asked.key is None or asked.key not in receiver.asked.answers:
            return False
        message = receiver.asked.answers.pop(asked.key)
        self.sent.remove(asked)
        if sender.is_up and sender._starts == asked.starts:
            sender.step(PeerAnswer(asked.send.peer, asked.send.correlation_id, message))
        return True

    def lose(self, asked: Asked) -> None:
        """The connection breaks: with it goes all that is under way to that broker."""
        peer, sender = asked.send.peer, self.brokers[asked.sender]
        self.sent = [a for a in self.sent if (a.sender, a.send.peer) != (asked.sender, peer)]
        if sender.is_up and sender._starts == asked.starts:
            sender.step(PeerLost(peer))

    def exchange(self, rounds: int = 6) -> None:
        """Everything is delivered and answered, as often as this; long polls stay."""
        for _ in range(rounds):
            for asked in list(self.sent):
                if asked in self.sent and asked.key is None:
                    self.deliver(asked)
            for asked in list(self.sent):
                if asked in self.sent:
                    self.answer(asked)

    def advance(self, duration_ms: int) -> None:
        """Time passes on all brokers."""
        for broker in self.brokers.values():
            if broker.is_up:
                broker.advance(duration_ms)
            else:
                broker.now_ms += duration_ms
                broker.monotonic_ms += duration_ms

    def settle(self) -> None:
        """Long polls end, time-outs too, until all that can be replicated is."""
        for _ in range(6):
            self.exchange()
            self.decide()
            self.advance(1000)

    def kill(self, number: int) -> None:
        """The broker's process ends; its requests, and those to it, are lost."""
        broker = self.brokers[number]
        broker.is_up = False
        for asked in [a for a in self.sent if number in (a.sender, a.send.peer)]:
            if asked in self.sent:
                self.lose(asked)

    def restart(self, number: int) -> None:
        """A new process on the same disk reads the metadata that it has missed."""
        self.brokers[number].start()
        self.read(number)
        self.register(number)

    # ------------------------------------------------------------------ clients

    def produce(self, leader: int, *values: str, acks: int = -1, **producer: Any) -> tuple:
        """Send one batch; the key of the answer."""
        broker = self.brokers[leader]
        records = build_batch(*values, timestamp=broker.now_ms, **producer)
        name = "txn" if producer.get("transactional") else None
        key = broker.send(produce_request({ORDERS: records}, acks, name), 11)
        if acks == -1:
            broker.asked_for_all.add(key)
        return key

    def outcome(self, leader: int, key: tuple) -> Any:
        """The partition's result of a Produce request, None while it waits."""
        answer = self.brokers[leader].asked.answers.get(key)
        return None if answer is None else answer.responses[0].partition_responses[0]

    def fetch(self, number: int, offset: int = 0, version: int = 12, **fields: Any) -> Any:
        """A consumer's fetch; the partition's result."""
        message = fetch_request("orders", offset, max_wait_ms=0, **fields)
        answer = self.brokers[number].ask(message, version)
        return answer.responses[0].partitions[0]

    def write_marker(self, leader: int, producer_id: int, *, commit: bool) -> tuple:
        """WriteTxnMarkers to the leader; the key of the answer."""
        message = request(ApiKey.WRITE_TXN_MARKERS)
        topic = struct(message, "WritableTxnMarkerTopic", name="orders", partition_indexes=[0])
        message.markers = [
            struct(
                message,
                "WritableTxnMarker",
                producer_id=producer_id,
                producer_epoch=0,
                transaction_result=commit,
                topics=[topic],
                coordinator_epoch=0,
            )
        ]
        return self.brokers[leader].send(message, 1)

    def values(self, number: int, end_offset: int | None = None) -> list[tuple]:
        """(base offset, leader epoch, crc) of the batches of a replica up to an offset."""
        broker = self.brokers[number]
        log = broker.log()
        end = log.log_end_offset if end_offset is None else end_offset
        return [
            (header.base_offset, header.leader_epoch, header.crc)
            for header, _ in log.batches(log.log_start_offset)
            if header.base_offset < end
        ]


def replicated(*isr: int, replicas: tuple[int, ...] = (0, 1, 2)) -> PartitionRegistration:
    """A new partition that these replicas have, led by the first of the ISR."""
    return PartitionRegistration.new(replicas, isr or replicas)
