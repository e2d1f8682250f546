"""Brokers of the core whose metadata the test writes: it is the controller."""

from __future__ import annotations

import uuid
from typing import Any

from support.core.broker_build import request
from support.core.core_network import CoreNetwork
from support.core.core_process import AnswerKey
from support.raw.raw import RawProducer

from broker_sim.core.controller.image import MetadataRecord, Topic
from broker_sim.core.controller.metadata_records import (
    broker_fenced_record,
    broker_registered_record,
    partition_changed_record,
    topic_record,
)
from broker_sim.core.controller.registrations import (
    NO_LEADER,
    BrokerRegistration,
    PartitionRegistration,
)
from broker_sim.core.endpoint import Endpoint
from broker_sim.core.replica.leader import IsrProposal
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.topic_partition import (
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)

LAG_MS = 10_000
CONFIG = {"replica_lag_time_max_ms": LAG_MS, "transaction_partition_verification_enable": False}
STATE = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
OFFSETS = TopicPartition(GROUP_METADATA_TOPIC, 0)
DATA = [TopicPartition("orders", number) for number in range(3)]
PRODUCER_IDS = 1_000_000
"""Producer ids of a broker: its own million, because there is no controller to give blocks."""


def replicated(*isr: int, replicas: tuple[int, ...] = (0, 1, 2)) -> PartitionRegistration:
    """A new partition that these replicas have, led by the first of the ISR."""
    return PartitionRegistration.new(replicas, isr or replicas)


class CoreCluster(CoreNetwork):
    """`metadata` is the log of metadata records; each broker reads it when told."""

    def __init__(self, count: int = 3, racks: tuple[str, ...] = (), **config: Any) -> None:
        self.metadata: list[MetadataRecord] = []
        self.proposals: list[tuple[IsrProposal, Reply[ErrorCode]]] = []
        self.topics: dict[str, Topic] = {}
        self.registered: dict[int, int] = {}
        self.records_read = dict.fromkeys(range(count), 0)
        self._epoch = 100
        self._racks = dict(enumerate(racks))
        super().__init__(count, {}, CONFIG | config)
        for number in self.brokers:
            self._control(number)
            self.register(number)

    def _control(self, number: int) -> None:
        parts = self.brokers[number].parts
        parts.replication._alter_partition = self._on_proposal
        parts.image.next_producer_id = max(parts.image.next_producer_id, number * PRODUCER_IDS)

    def start(self, number: int) -> None:
        """Start a broker that knows no other broker."""
        super().start(number)
        self._control(number)

    def restart(self, number: int) -> None:
        """A new process on the same disk reads the metadata that it has missed."""
        self.start(number)
        self.read(number)
        self.register(number)

    # ------------------------------------------------------------------ the metadata

    def register(self, number: int) -> None:
        self._epoch += 1
        self.registered[number] = self._epoch
        endpoints = {"PLAINTEXT": Endpoint("host", 9000 + number)}
        rack = self._racks.get(number)
        registration = BrokerRegistration(number, self._epoch, endpoints, rack)
        self.write(broker_registered_record(registration))

    def unregister(self, number: int) -> None:
        del self.registered[number]
        self.write(broker_fenced_record(number))

    def write(self, record: MetadataRecord, *, read: bool = True) -> None:
        """Append a record; all brokers that are up read it, unless the test does so itself."""
        self.metadata.append(record)
        for number in self.brokers if read else ():
            self.read(number)

    def read(self, number: int) -> None:
        """The broker reads all metadata records that it has not read."""
        broker = self.brokers[number]
        while broker.is_up and self.records_read[number] < len(self.metadata):
            record = self.metadata[self.records_read[number]]
            self.records_read[number] += 1
            broker.cause(lambda effects, r=record: broker.parts.metadata.commit([r], effects))

    def create(
        self, *registrations: PartitionRegistration, name: str = "orders", **configs: Any
    ) -> None:
        options = {key.replace("_", "."): value for key, value in configs.items()}
        topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, name)
        topic = Topic(name, topic_id, len(registrations), options, 0, registrations)
        self.topics[name] = topic
        self.write(topic_record(topic))

    def change(
        self, topic: str = "orders", partition: int = 0, *, read: bool = True, **fields: Any
    ) -> None:
        known = self.topics[topic]
        changed = known.partitions[partition].changed(**fields)
        partitions = (*known.partitions[:partition], changed, *known.partitions[partition + 1 :])
        self.topics[topic] = Topic(
            topic, known.topic_id, known.partition_count, known.configs, 0, partitions
        )
        self.write(partition_changed_record(known, partition, changed), read=read)

    def fail(self, number: int) -> None:
        """Kill a broker; a member of each ISR that is up leads what the broker led."""
        self.kill(number)
        self.unregister(number)
        for topic in list(self.topics.values()):
            for index, held in enumerate(topic.partitions):
                isr = tuple(each for each in held.isr if each != number) or held.isr
                able = [each for each in isr if each in self.registered]
                leader = held.leader
                if leader == number:
                    leader = min(able, default=NO_LEADER)
                if (isr, leader) != (held.isr, held.leader):
                    self.change(topic.name, index, isr=isr, leader=leader)

    # ------------------------------------------------------------------ the ISR

    def _on_proposal(self, proposal: IsrProposal, reply: Reply[ErrorCode], _effects: Any) -> None:
        self.proposals.append((proposal, reply))

    def decide(self) -> list[ErrorCode]:
        """Answer all proposals as a controller would, in their order."""
        answers = []
        proposals, self.proposals = self.proposals, []
        for proposal, reply in proposals:
            place = self._place(proposal)
            held = self.held(*place)
            error = ErrorCode.NONE
            if proposal.leader_epoch != held.leader_epoch:
                error = ErrorCode.FENCED_LEADER_EPOCH
            elif proposal.partition_epoch != held.partition_epoch:
                error = ErrorCode.INVALID_UPDATE_VERSION
            elif not set(proposal.isr) <= {*self.registered, *held.isr}:
                error = ErrorCode.INELIGIBLE_REPLICA
            else:
                self.change(*place, isr=proposal.isr)
            self.answer_proposal(proposal, reply, error)
            answers.append(error)
        return answers

    def _place(self, proposal: IsrProposal) -> TopicPartition:
        names = {topic.topic_id: topic.name for topic in self.topics.values()}
        return TopicPartition(names[proposal.topic_id], proposal.partition)

    def answer_proposal(
        self, proposal: IsrProposal, reply: Reply[ErrorCode], error: ErrorCode
    ) -> None:
        """The controller's answer comes to whoever leads in that epoch."""
        place = self._place(proposal)
        for broker in self.up:
            leader = broker.partition(*place).leader
            if leader is not None and leader.proposal is proposal:
                broker.cause(lambda effects: reply(error, effects))

    def settle(self) -> None:
        """Long polls end, time-outs too, until all that can be replicated is."""
        for _ in range(6):
            self.exchange()
            self.decide()
            self.advance(1000)

    def is_settled(self, place: TopicPartition) -> bool:
        log = self.brokers[self.leader(place)].log(*place)
        return log.last_stable_offset == log.high_watermark == log.log_end_offset

    def write_marker(self, leader: int, producer_id: int, *, commit: bool) -> AnswerKey:
        """WriteTxnMarkers for `orders` to the leader; the key of the answer."""
        marker = {
            "producer_id": producer_id, "producer_epoch": 0, "transaction_result": commit,
            "topics": [{"name": "orders", "partition_indexes": [0]}],
        }  # fmt: skip
        return self.brokers[leader].send(request(ApiKey.WRITE_TXN_MARKERS, markers=[marker]), 1)


def end_request(producer: RawProducer, *, commit: bool) -> Any:
    """EndTxn, to be sent while somebody does not answer."""
    return request(
        ApiKey.END_TXN,
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=commit,
    )


def coordinated() -> CoreCluster:
    """Three brokers: `__transaction_state` is led by broker 0, `__consumer_offsets` by broker 1,
    `orders-n` by broker n."""
    made = CoreCluster(transaction_partition_verification_enable=True)
    internal = {"min_insync_replicas": 2, "cleanup_policy": "compact"}
    for name, leaders, configs in (
        (TRANSACTION_STATE_TOPIC, (0,), internal),
        (GROUP_METADATA_TOPIC, (1,), internal),
        ("orders", made.brokers, {}),
    ):
        led = [
            PartitionRegistration.new(
                (first, *(n for n in made.brokers if n != first)), tuple(made.brokers)
            ).changed(leader=first)
            for first in leaders
        ]
        made.create(*led, name=name, **configs)
    made.run(1_200)
    return made
