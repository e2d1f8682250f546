"""Three brokers of the core with both coordinators and one data topic, each partition led by
another broker; and clients that know who leads."""

from __future__ import annotations

from typing import Any

from support.core.broker_build import fetch_request, request
from support.core.core_cluster import Asked, CoreCluster
from support.raw.raw import RawProducer

from broker_sim.core.controller.registrations import NO_LEADER, PartitionRegistration
from broker_sim.core.coordinator.runtime import partition_for
from simulation.checkers.batches import decode_batches
from txnlog_kafka.wire.errors import error_name
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition

COUNT = 3
STATE = TopicPartition(TRANSACTION_STATE_TOPIC, 0)
OFFSETS = TopicPartition(GROUP_METADATA_TOPIC, 0)
DATA = [TopicPartition("orders", number) for number in range(COUNT)]
INTERNAL = {"min_insync_replicas": 2, "cleanup_policy": "compact"}
CLIENT_CONNECTION = 10
PRODUCER_IDS = 1_000_000
"""Each broker gives ids of its own million, as there is no controller to give blocks."""
KEYS = {
    ApiKey.INIT_PRODUCER_ID: "transactional_id",
    ApiKey.ADD_PARTITIONS_TO_TXN: "v3_and_below_transactional_id",
    ApiKey.ADD_OFFSETS_TO_TXN: "transactional_id",
    ApiKey.END_TXN: "transactional_id",
}
"""Where requests for the transaction coordinator name the id."""


def led_by(*leaders: int) -> tuple[PartitionRegistration, ...]:
    """One partition for each of the leaders, on all brokers."""
    everybody = range(COUNT)
    return tuple(
        PartitionRegistration.new(
            (first, *(n for n in everybody if n != first)), tuple(everybody)
        ).changed(leader=first)
        for first in leaders
    )


class TransactionCluster(CoreCluster):
    """`__transaction_state` is led by broker 0, `__consumer_offsets` by broker 1, `orders-n` by
    broker n."""

    def __init__(self, **config: Any) -> None:
        self.deaf: set[int] = set()
        """Brokers that no marker comes to."""
        super().__init__(COUNT, transaction_partition_verification_enable=True, **config)
        for number in self.brokers:
            self.give_producer_ids(number)
        self.create(*led_by(0), name=TRANSACTION_STATE_TOPIC, **INTERNAL)
        self.create(*led_by(1), name=GROUP_METADATA_TOPIC, **INTERNAL)
        self.create(*led_by(*range(COUNT)))
        self.wait()

    def give_producer_ids(self, number: int) -> None:
        image = self.brokers[number].parts.image
        image.next_producer_id = max(image.next_producer_id, number * PRODUCER_IDS)

    def restart(self, number: int) -> None:
        super().restart(number)
        self.give_producer_ids(number)

    # ------------------------------------------------------------------ who is where

    def leader(self, name: TopicPartition) -> int:
        return self.held(name).leader

    def coordinator(self, topic: str, key: str) -> int:
        """The broker that leads the key's partition."""
        count = len(self.topics[topic].partitions)
        return self.leader(TopicPartition(topic, partition_for(key, count)))

    def place_of(self, message: Any) -> int:
        """The broker that a client asks."""
        if message.API_KEY in KEYS:
            return self.coordinator(
                TRANSACTION_STATE_TOPIC, getattr(message, KEYS[message.API_KEY])
            )
        if message.API_KEY == ApiKey.PRODUCE:
            (topic,) = message.topic_data
            return self.leader(TopicPartition(topic.name, topic.partition_data[0].index))
        return self.coordinator(GROUP_METADATA_TOPIC, message.group_id)

    # ------------------------------------------------------------------ what happens

    def wait(self, duration_ms: int = 1200) -> None:
        """Everything is delivered, while this much time passes."""
        for _ in range(4):
            self.exchange(3)
            self.advance(duration_ms // 4)

    def ask(self, number: int, message: Any, version: int, *, patience_ms: int = 2000) -> Any:
        """The broker's answer, when everything goes its way."""
        broker = self.brokers[number]
        key = broker.send(message, version, connection_id=CLIENT_CONNECTION)
        for _ in range(patience_ms // 50):
            if key in broker.asked.answers:
                return broker.asked.answers.pop(key)
            self.exchange(1)
            self.advance(50)
        raise AssertionError(f"no answer to {message}")

    def move(self, name: TopicPartition, leader: int, *, read: bool = True) -> None:
        """Another leader of the ISR."""
        self.change(name, leader=leader, read=read)

    def fail(self, number: int) -> None:
        """A broker dies, and another one of each ISR leads what it led."""
        self.kill(number)
        self.unregister(number)
        for topic in list(self.topics.values()):
            for index, held in enumerate(topic.partitions):
                isr = tuple(each for each in held.isr if each != number) or held.isr
                able = [each for each in isr if self.brokers[each].is_up]
                leader = held.leader
                if leader == number:
                    leader = able[0] if able else NO_LEADER
                if (isr, leader) != (held.isr, held.leader):
                    self.change(TopicPartition(topic.name, index), isr=isr, leader=leader)

    def deliver(self, asked: Asked) -> None:
        is_marker = asked.send.message.API_KEY == ApiKey.WRITE_TXN_MARKERS
        if not (is_marker and asked.send.peer in self.deaf):
            super().deliver(asked)

    def of(self, sender: int, api_key: ApiKey) -> list[Asked]:
        """The requests of one API that a broker has sent to others."""
        found = [asked for asked in self.sent if asked.sender == sender]
        return [asked for asked in found if api_key == asked.send.message.API_KEY]

    def replicate(self, leader: int, *followers: int, times: int = 3) -> None:
        """Only the fetches of these followers from this leader go their way."""
        for _ in range(times):
            for follower in followers:
                for asked in self.of(follower, ApiKey.FETCH):
                    if asked.send.peer != leader:
                        continue
                    if asked.key is None:
                        self.deliver(asked)
                    self.answer(asked)

    # ------------------------------------------------------------------ clients

    def producer(self, name: str = "t") -> RawProducer:
        """A producer that asks whom the metadata names, and says what it is told."""
        return RawProducer(_ToLeaders(self), name, retries=False)  # type: ignore[arg-type]

    def state(self, number: int, name: str = "t") -> str:
        """A transaction's state as this broker tells it, or the error."""
        message = request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[name])
        (found,) = self.ask(number, message, 0).transaction_states
        return found.transaction_state if found.error_code == 0 else error_name(found.error_code)

    def committed(self, place: TopicPartition) -> list[str]:
        """The values that a read_committed consumer gets from the leader."""
        values = self.seen(self.leader(place), place)
        assert values is not None
        return values

    def seen(self, number: int, place: TopicPartition) -> list[str] | None:
        """The values that it gets from a broker, None where that does not lead."""
        message = fetch_request(
            place.topic, 0, partition=place.partition, committed=True, max_wait_ms=0
        )
        entry = self.brokers[number].ask(message, 12).responses[0].partitions[0]
        if entry.error_code:
            return None
        begun = {(each.producer_id, each.first_offset) for each in entry.aborted_transactions or ()}
        values: list[str] = []
        aborting: set[int] = set()
        for header, records, marker in decode_batches(bytes(entry.records or b"")):
            producer_id = header.producer_id
            if marker is not None:
                aborting.discard(producer_id)
            elif producer_id in aborting or (producer_id, header.base_offset) in begun:
                aborting.add(producer_id)
            else:
                values += [(record.value or b"").decode() for record in records]
        return values

    def is_settled(self, place: TopicPartition) -> bool:
        """Whether the leader has everything replicated and decided."""
        log = self.brokers[self.leader(place)].log(place)
        return log.last_stable_offset == log.high_watermark == log.log_end_offset


class _ToLeaders:
    """A connection that goes to whoever leads."""

    def __init__(self, cluster: TransactionCluster) -> None:
        self.cluster = cluster

    def ask(self, message: Any, version: int) -> Any:
        return self.cluster.ask(self.cluster.place_of(message), message, version)
