"""Brokers of the core on disks in memory, with the test as their network.

A test delivers, loses and delays what they send one by one; or lets time `run`, in small slices: in
each of them timers fire and everything that is under way arrives, unless it is on a connection that
is cut or of a process that is paused or down.

Who decides is a registry with its controller (`registry_cluster`), or the test (`core_cluster`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from support.core.broker_build import BrokerOnDisk, fetch_request, produce_request, request
from support.core.core_process import AnswerKey, CoreProcess
from support.core.log_build import build_batch
from support.raw.raw import RETRIABLE, RawProducer

from broker_sim.core.controller.image import Topic
from broker_sim.core.controller.registrations import NO_LEADER, PartitionRegistration
from broker_sim.core.coordinator.runtime import partition_for
from broker_sim.core.effects import Disconnected, PeerAnswer, PeerLost, Send
from broker_sim.core.peers import ConnectionKind, connection_kind
from broker_sim.core.security.principals import ANONYMOUS
from simulation.checkers.batches import decode_batches
from txnlog_kafka.wire.error_codes import ErrorCode, error_name
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.topic_partition import (
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)

REGISTRY = -1
ORDERS = TopicPartition("orders", 0)
SLICE_MS = 50
ROUNDS_MAX = 200
CLIENT_CONNECTION = 10
KEYS = {
    ApiKey.INIT_PRODUCER_ID: "transactional_id",
    ApiKey.ADD_PARTITIONS_TO_TXN: "v3_and_below_transactional_id",
    ApiKey.ADD_OFFSETS_TO_TXN: "transactional_id",
    ApiKey.END_TXN: "transactional_id",
}
"""Fields in which requests for the transaction coordinator name the id."""


@dataclass(eq=False)
class Exchange:
    """A request of one process to another, until it is answered or lost."""

    sender: int
    starts: int
    """Start of the sender, counted, that sent the request."""
    send: Send
    connection: int
    key: AnswerKey | None = None
    """Key of the answer at the receiver, once the request was delivered."""

    @property
    def receiver(self) -> int:
        """Brokers have several peer ids for the registry."""
        return max(self.send.peer, REGISTRY)


class CoreNetwork:
    """See the module. Processes are named by their ids; REGISTRY is that of the registry."""

    topics: Mapping[str, Topic]
    """Topics as the controller, or the test in its place, has them."""

    def __init__(self, count: int, of_each: Mapping[int, Mapping[str, Any]], config: dict) -> None:
        self.sent: list[Exchange] = []
        self.cut: set[frozenset[int]] = set()
        """Pairs of processes that cannot reach each other."""
        self.is_stuck: Callable[[Exchange], bool] = lambda _asked: False
        """Predicate of requests that do not arrive for now."""
        self.broker_principal = ANONYMOUS
        """Principal of a broker when it connects to another one."""
        self._connections: dict[tuple[int, int, int, ConnectionKind], int] = {}
        """Connections by process, start, peer id and kind of request, until they are lost."""
        self._connections_made = 1000
        self.brokers: dict[int, BrokerOnDisk] = {}
        options = {name.replace("_", "."): value for name, value in config.items()}
        for number in range(count):
            self.brokers[number] = BrokerOnDisk(
                options | {"node.id": number} | dict(of_each.get(number, {})),
                send_to_peer=lambda send, sender=number: self._send(sender, send),
            )

    # ------------------------------------------------------------------ processes

    def process(self, number: int) -> CoreProcess:
        return self.brokers[number]

    @property
    def up(self) -> list[BrokerOnDisk]:
        return [broker for broker in self.brokers.values() if broker.is_up]

    def others(self, number: int) -> list[int]:
        return [each for each in self.brokers if each != number]

    def kill(self, number: int) -> None:
        """The process ends, with all its connections."""
        self.process(number).is_up = False
        self._lose_all(lambda asked: number in (asked.sender, asked.receiver))

    def start(self, number: int) -> None:
        self.brokers[number].start()

    def pause(self, number: int) -> None:
        self.process(number).is_paused = True

    def resume(self, number: int) -> None:
        self.process(number).is_paused = False

    # ------------------------------------------------------------------ the network

    def _send(self, sender: int, send: Send) -> None:
        # A broker sends with its first step, too, before it is one of these.
        starts = self.brokers[sender].starts if sender in self.brokers else 1
        key = sender, starts, send.peer, connection_kind(send.message)
        if key not in self._connections:
            self._connections_made += 1
            self._connections[key] = self._connections_made
        self.sent.append(Exchange(sender, starts, send, self._connections[key]))

    def of(self, sender: int, api_key: ApiKey | None = None) -> list[Exchange]:
        """Return the requests that a broker has sent to others, or those of one API."""
        return [
            asked
            for asked in self.sent
            if asked.sender == sender and api_key in (None, asked.send.message.API_KEY)
        ]

    def _is_current(self, asked: Exchange) -> bool:
        sender = self.brokers[asked.sender]
        return sender.is_up and sender.starts == asked.starts

    def deliver(self, asked: Exchange) -> None:
        """The request comes to the other process; one that is down or cut off loses it."""
        receiver = self.process(asked.receiver)
        if frozenset((asked.sender, asked.receiver)) in self.cut or not receiver.is_up:
            self.lose(asked)
        elif not (receiver.is_paused or self.is_stuck(asked)):
            asked.key = receiver.send(
                asked.send.message, asked.send.api_version, connection_id=asked.connection,
                principal=self.broker_principal,
            )  # fmt: skip

    def answer(self, asked: Exchange) -> bool:
        """Bring the answer back, when there is one yet."""
        told = self.process(asked.receiver).asked
        if asked.connection in told.closed:
            self.lose(asked)
        if asked.key not in told.answers:
            return False
        self.sent.remove(asked)
        message = told.answers.pop(asked.key)
        if self._is_current(asked):
            answer = PeerAnswer(asked.send.peer, asked.send.correlation_id, message)
            self.brokers[asked.sender].step(answer)
        return True

    def lose(self, lost: Exchange) -> None:
        """The connections break: with them goes all that is under way to that peer."""
        place = lost.sender, lost.starts, lost.send.peer
        gone = [e for e in self.sent if (e.sender, e.starts, e.send.peer) == place]
        self.sent = [asked for asked in self.sent if asked not in gone]
        for kind in ConnectionKind:
            self._connections.pop((*place, kind), None)
        receiver = self.process(lost.receiver)
        for connection in sorted({asked.connection for asked in gone if asked.key}):
            if receiver.is_up:
                receiver.step(Disconnected(connection))
        if self._is_current(lost):
            self.brokers[lost.sender].step(PeerLost(lost.send.peer))

    def _lose_all(self, is_lost: Callable[[Exchange], bool]) -> None:
        for asked in list(self.sent):
            if is_lost(asked) and asked in self.sent:
                self.lose(asked)

    def lose_between(self, one: int, other: int) -> None:
        """The connections between two processes break."""
        self._lose_all(lambda asked: {asked.sender, asked.receiver} == {one, other})

    def part(self, one: int, other: int) -> None:
        """Cut two processes off from each other from here on."""
        self.cut.add(frozenset((one, other)))
        self.lose_between(one, other)

    def exchange(self, rounds: int = ROUNDS_MAX) -> None:
        """Everything arrives and is answered, so often at most; long polls stay."""
        for _ in range(rounds):
            before = list(self.sent)
            for asked in before:
                if asked in self.sent and self._may_go(asked):
                    self.deliver(asked)
            for asked in list(self.sent):
                if asked in self.sent and not self.brokers[asked.sender].is_paused:
                    self.answer(asked)
            if before == self.sent:
                return
        assert rounds < ROUNDS_MAX, f"no end: {[e.send.message for e in self.sent][:5]}"

    def _may_go(self, asked: Exchange) -> bool:
        """A connection has one request at a time."""
        first = next(each for each in self.sent if each.connection == asked.connection)
        return asked.key is None and asked is first and not self.brokers[asked.sender].is_paused

    def replicate(self, leader: int, *followers: int, times: int = 3) -> None:
        """Deliver only the fetches of these followers to this leader."""
        for _ in range(times):
            for follower in followers:
                for asked in self.of(follower, ApiKey.FETCH):
                    if asked.send.peer == leader:
                        if asked.key is None:
                            self.deliver(asked)
                        self.answer(asked)

    # ------------------------------------------------------------------ time

    def processes(self) -> Iterator[CoreProcess]:
        yield from self.brokers.values()

    def advance(self, duration_ms: int) -> None:
        """Time passes for all, and nothing arrives."""
        for process in self.processes():
            if process.is_up and not process.is_paused:
                process.advance(duration_ms)
            else:
                process.pass_time(duration_ms)

    def run(self, duration_ms: int) -> None:
        """Time passes for all, and everything arrives."""
        for _ in range(0, duration_ms, SLICE_MS):
            self.exchange()
            self.advance(SLICE_MS)
        self.exchange()

    # ------------------------------------------------------------------ clients

    def held(self, topic: str = "orders", partition: int = 0) -> PartitionRegistration:
        """The partition, as whoever decides has it."""
        return self.topics[topic].partitions[partition]

    def leader(self, place: TopicPartition = ORDERS) -> int:
        return self.held(*place).leader

    def coordinator(self, topic: str, key: str) -> int:
        count = len(self.topics[topic].partitions)
        return self.leader(TopicPartition(topic, partition_for(key, count)))

    def ask(self, number: int, message: Any, version: int, within_ms: int = 2_000) -> Any:
        """A client's request, and its answer as soon as there is one."""
        broker = self.brokers[number]
        key = broker.send(message, version, connection_id=CLIENT_CONNECTION)
        for _ in range(0, within_ms, SLICE_MS):
            if key in broker.asked.answers:
                break
            self.run(SLICE_MS)
        assert key in broker.asked.answers, broker.asked.closed
        return broker.asked.answers.pop(key)

    def producer(self, name: str = "t", *, retries: bool = False) -> RawProducer:
        """A producer that asks whoever leads, and says what it is told."""
        return _Producer(_ToLeaders(self), name, retries=retries)  # type: ignore[arg-type]

    def produce(self, leader: int, *values: str, acks: int = -1, **producer: Any) -> AnswerKey:
        """Send one batch to `orders`; the key of the answer."""
        broker = self.brokers[leader]
        records = build_batch(*values, timestamp=broker.now_ms, **producer)
        name = "txn" if producer.get("transactional") else None
        return broker.send(produce_request({ORDERS: records}, acks, name), 11)

    def write(self, *values: str, topic: str = "orders", acks: int = -1) -> ErrorCode:
        """Write one batch to the first partition; return its leader's answer."""
        leader = self.held(topic).leader
        batch = build_batch(*values, timestamp=self.brokers[leader].now_ms)
        answer = self.ask(leader, produce_request({(topic, 0): batch}, acks), 11)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    def outcome(self, leader: int, key: AnswerKey) -> Any:
        """The partition's result of a Produce request, None while it waits."""
        answer = self.brokers[leader].asked.answers.get(key)
        return None if answer is None else answer.responses[0].partition_responses[0]

    def fetch(self, number: int, offset: int = 0, version: int = 12, **fields: Any) -> Any:
        message = fetch_request("orders", offset, max_wait_ms=0, **fields)
        return self.brokers[number].ask(message, version).responses[0].partitions[0]

    def state(self, number: int, name: str = "t") -> str:
        message = request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[name])
        (found,) = self.ask(number, message, 0).transaction_states
        return found.transaction_state if found.error_code == 0 else error_name(found.error_code)

    def committed(self, place: TopicPartition = ORDERS) -> list[str]:
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

    def batches(self, number: int, end_offset: int | None = None) -> list[tuple[int, int, int]]:
        """(base offset, leader epoch, crc) of the batches of a replica up to an offset."""
        log = self.brokers[number].log()
        end = log.log_end_offset if end_offset is None else end_offset
        return [
            (header.base_offset, header.leader_epoch, header.crc)
            for header, _ in log.batches(log.log_start_offset)
            if header.base_offset < end
        ]


class _ToLeaders:
    """A connection that goes to whoever leads."""

    def __init__(self, cluster: CoreNetwork) -> None:
        self.cluster = cluster

    def ask(self, message: Any, version: int) -> Any:
        for _ in range(100):
            place = self.place_of(message)
            if place != NO_LEADER:
                break
            self.cluster.run(100)
        return self.cluster.ask(place, message, version)

    def place_of(self, message: Any) -> int:
        """The broker that a client asks."""
        cluster = self.cluster
        if message.API_KEY in KEYS:
            name = getattr(message, KEYS[message.API_KEY])
            return cluster.coordinator(TRANSACTION_STATE_TOPIC, name)
        if message.API_KEY == ApiKey.PRODUCE:
            (topic,) = message.topic_data
            return cluster.leader(TopicPartition(topic.name, topic.partition_data[0].index))
        return cluster.coordinator(GROUP_METADATA_TOPIC, message.group_id)


class _Producer(RawProducer):
    """Between two tries time passes in the cluster."""

    def _retry(self, attempt: Callable[[], str]) -> str:
        error = attempt()
        for _ in range(100 if self.retries else 0):
            if error not in RETRIABLE:
                break
            self.connection.cluster.run(100)  # type: ignore[attr-defined]
            error = attempt()
        return error
