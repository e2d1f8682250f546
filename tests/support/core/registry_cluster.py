"""Brokers of the core and the registry's core, on disks in memory, with the test as the network.

Time passes in small slices; in each of them timers fire and everything that is under way arrives,
unless it is on a connection that is cut or of a process that is paused or down. All that is sent
goes over the wire's bytes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from support.core.broker_build import BrokerOnDisk, request, struct
from support.core.registry_build import RegistryHost

from broker_sim.apis import DEFINED_APIS, BrokerApiKey, frames, own_api_of
from broker_sim.core import membership
from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.effects import (
    Close,
    Disconnected,
    Input,
    PeerAnswer,
    PeerLost,
    Request,
    Respond,
    Send,
    Start,
    Step,
)
from broker_sim.core.peers import ConnectionKind, connection_kind
from broker_sim.core.security.principals import ANONYMOUS
from broker_sim.registry.config import RegistryConfig
from simulation.hosts.disk import SimDisk
from txnlog_kafka.wire import framing
from txnlog_kafka.wire.messages import ApiKey

SLICE_MS = 50
CONFIG = {
    "registry.connect": "registry:2181",
    "registry.session.timeout.ms": 3_000,
    "registry.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 2_000,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
}
REGISTRY = -1
_STARTS = itertools.count()


@dataclass(eq=False)
class Exchange:
    """A request between two processes, until it is answered or lost."""

    sender: int
    starts: int
    """Which start of the sender it is of."""
    send: Send
    connection: int
    request: Request | None = None
    """As it was delivered."""
    answer: Any = None
    has_answer: bool = False


@dataclass
class Connections:
    """One for each process, peer id and kind of request, until it is lost."""

    ids: dict[tuple[int, int, int, ConnectionKind], int] = field(default_factory=dict)
    made: int = 1000

    def of(self, sender: int, starts: int, send: Send) -> int:
        key = (sender, starts, send.peer, connection_kind(send.message))
        if key not in self.ids:
            self.made += 1
            self.ids[key] = self.made
        return self.ids[key]


class Member(BrokerOnDisk):
    """One broker; what it sends goes to the cluster."""

    def __init__(self, node_id: int, cluster: RegistryCluster, config: dict) -> None:
        self.node_id = node_id
        self.cluster = cluster
        self.is_up = True
        self.is_paused = False
        self.machine_boot_id = "boot"
        address = f"PLAINTEXT://broker{node_id}:9092"
        super().__init__({"node.id": node_id, "listeners": address} | CONFIG | config)

    def step(self, item: Input) -> Step:
        return super().step(Start(self.machine_boot_id) if isinstance(item, Start) else item)

    def _seed(self) -> str:
        # Brokers that draw the same make topics with the same id.
        return f"{self.node_id}/{self._starts}"

    def _carry_out(self, step: Step) -> Step:
        for send in step.sends:
            connection = self.cluster.connections.of(self.node_id, self._starts, send)
            self.cluster.under_way.append(Exchange(self.node_id, self._starts, send, connection))
        return super()._carry_out(step)

    def _respond(self, response: Any) -> None:
        if isinstance(response, Respond) and isinstance(response.api_key, BrokerApiKey):
            own = DEFINED_APIS[response.api_key]
            frame = frames.encode_response(
                own.key, own.version, response.correlation_id, response.message
            )
            key = response.connection_id, response.correlation_id
            self.asked.answers[key] = frames.decode_response(own, frame[4:])[1]
        else:
            super()._respond(response)

    @property
    def parts(self) -> Any:
        return self.broker.parts

    @property
    def membership(self) -> membership.ClusterMember:
        found = self.broker.membership
        assert isinstance(found, membership.ClusterMember)
        return found

    @property
    def is_controller(self) -> bool:
        return self.is_up and self.membership.controller.is_active


class RegistryCluster:
    """See the module. Processes are named by their ids; REGISTRY is the registry's."""

    def __init__(self, count: int = 3, **config: Any) -> None:
        self.under_way: list[Exchange] = []
        self.connections = Connections()
        self.broker_principal = ANONYMOUS
        """Who a broker is to another one."""
        self.registry_disk = SimDisk()
        self.registry: RegistryHost | None = None
        self.cut: set[frozenset[int]] = set()
        """Pairs of processes that cannot reach each other."""
        self._correlation_id = 0
        self.start_registry()
        options = {name.replace("_", "."): value for name, value in config.items()}
        self.brokers = {number: Member(number, self, options) for number in range(count)}

    # ------------------------------------------------------------------ processes

    def start_registry(self) -> None:
        # Registries that draw the same have the same id, whatever their directories are.
        seed = f"registry/{next(_STARTS)}"
        self.registry = RegistryHost(self.registry_disk, RegistryConfig(1_000, 9_000), seed)

    def stop_registry(self) -> None:
        self.registry = None
        self.lose_all(REGISTRY)

    def kill(self, number: int) -> None:
        """The process ends, with all its connections."""
        self.brokers[number].is_up = False
        self.lose_all(number)

    def start(self, number: int) -> None:
        """A new process on the same disk."""
        broker = self.brokers[number]
        broker.is_up, broker.is_paused = True, False
        broker.start()

    def pause(self, number: int) -> None:
        """The process stands still (SIGSTOP); what others send it waits."""
        self.brokers[number].is_paused = True

    def resume(self, number: int) -> None:
        self.brokers[number].is_paused = False

    @property
    def up(self) -> list[Member]:
        return [broker for broker in self.brokers.values() if broker.is_up]

    # ------------------------------------------------------------------ the network

    def lose(self, one: int, other: int) -> None:
        """The connections between two processes break."""
        for exchange in list(self.under_way):
            pair = {exchange.sender, self._receiver(exchange)}
            if pair == {one, other} and exchange in self.under_way:
                self._lose(exchange)

    def lose_all(self, number: int) -> None:
        for exchange in list(self.under_way):
            if number in (exchange.sender, self._receiver(exchange)) and (
                exchange in self.under_way
            ):
                self._lose(exchange)

    @staticmethod
    def _receiver(exchange: Exchange) -> int:
        return max(exchange.send.peer, REGISTRY)

    def _lose(self, exchange: Exchange) -> None:
        """With a connection goes all that is under way to that peer."""
        sender, peer = self.brokers[exchange.sender], exchange.send.peer
        place = exchange.sender, exchange.starts, peer
        lost = [e for e in self.under_way if (e.sender, e.starts, e.send.peer) == place]
        delivered = {e.connection for e in lost if e.request}
        self.under_way = [e for e in self.under_way if e not in lost]
        for kind in ConnectionKind:
            self.connections.ids.pop((*place, kind), None)
        receiver = self._receiver(exchange)
        for connection in sorted(delivered):
            if receiver == REGISTRY:
                if self.registry is not None:
                    self.registry.disconnect(connection)
            elif self.brokers[receiver].is_up:
                self.brokers[receiver].step(Disconnected(connection))
        if sender.is_up and sender._starts == exchange.starts:
            sender.step(PeerLost(peer))

    def _runs(self, number: int) -> bool:
        if number == REGISTRY:
            return self.registry is not None
        return self.brokers[number].is_up and not self.brokers[number].is_paused

    def deliver(self, exchange: Exchange) -> None:
        """The request comes to the other process, or it cannot."""
        receiver, pair = (
            self._receiver(exchange),
            frozenset((exchange.sender, self._receiver(exchange))),
        )
        is_down = receiver != REGISTRY and not self.brokers[receiver].is_up
        if pair in self.cut or is_down or (receiver == REGISTRY and self.registry is None):
            return self._lose(exchange)
        if not self._runs(receiver):
            return None
        self._correlation_id += 1
        message, version = exchange.send.message, exchange.send.api_version
        try:
            own_api_of(message)
            frame = frames.encode_request(message, self._correlation_id, "broker")
        except KeyError:
            frame = framing.encode_request(message, version, self._correlation_id, "broker")
        header, decoded = frames.decode_request(frame[4:])
        exchange.request = Request(
            exchange.connection,
            self._correlation_id,
            header.api_key,
            header.api_version,
            "broker",
            "127.0.0.1",
            decoded,
            principal=self.broker_principal,
        )
        if receiver != REGISTRY:
            self.brokers[receiver].step(exchange.request)
        elif self.registry is not None:
            self.registry.step(exchange.request)
        self._take_answers()
        return None

    def registry_requests(self, number: int) -> None:
        """What the broker has asked the registry arrives there, and is not answered yet."""
        for exchange in list(self.under_way):
            asks = (exchange.sender, self._receiver(exchange)) == (number, REGISTRY)
            if asks and exchange.request is None:
                self.deliver(exchange)

    def _take_answers(self) -> None:
        """What was answered is on its way back."""
        found: dict[tuple[int, int], Any] = {}
        if self.registry is not None:
            for each in self.registry.answers:
                assert not isinstance(each, Close), each
                found[each.connection_id, each.correlation_id] = each.message
            self.registry.answers.clear()
        for exchange in list(self.under_way):
            if exchange.request is None or exchange.has_answer:
                continue
            key = exchange.connection, exchange.request.correlation_id
            if self._receiver(exchange) != REGISTRY:
                asked = self.brokers[exchange.send.peer].asked
                if exchange.connection in asked.closed:
                    self._lose(exchange)
                    continue
                found |= {key: asked.answers.pop(key)} if key in asked.answers else {}
            if key in found:
                exchange.answer, exchange.has_answer = found[key], True

    def bring_back(self, exchange: Exchange) -> None:
        """The answer comes to who has asked."""
        sender = self.brokers[exchange.sender]
        self.under_way.remove(exchange)
        if sender.is_up and sender._starts == exchange.starts:
            sender.step(
                PeerAnswer(exchange.send.peer, exchange.send.correlation_id, exchange.answer)
            )

    def exchange(self) -> None:
        """Everything arrives, until nothing is left but what waits for something else."""
        for _ in range(200):
            self._take_answers()
            ready = [e for e in self.under_way if self._may_move(e)]
            if not ready:
                return
            for exchange in ready:
                if exchange not in self.under_way:
                    continue
                if exchange.has_answer:
                    self.bring_back(exchange)
                elif exchange.request is None:
                    self.deliver(exchange)
        raise AssertionError(f"no end: {[e.send.message for e in self.under_way][:5]}")

    def _may_move(self, exchange: Exchange) -> bool:
        if self.brokers[exchange.sender].is_paused:
            return False
        first = next(e for e in self.under_way if e.connection == exchange.connection)
        if exchange.has_answer:
            return True
        # A connection has one request at a time.
        pair = frozenset((exchange.sender, self._receiver(exchange)))
        stuck = pair not in self.cut and self._receiver(exchange) != REGISTRY
        if stuck and self.brokers[self._receiver(exchange)].is_paused:
            return False
        return exchange.request is None and exchange is first

    def run(self, duration_ms: int) -> None:
        """Time passes for all."""
        for _ in range(0, duration_ms, SLICE_MS):
            self.exchange()
            if self.registry is not None:
                self.registry.advance(SLICE_MS)
                self._take_answers()
            for broker in self.brokers.values():
                if self._runs(broker.node_id):
                    broker.advance(SLICE_MS)
                else:
                    broker._set_clock(broker.monotonic_ms + SLICE_MS)
        self.exchange()

    # ------------------------------------------------------------------ what holds

    def ask(self, number: int, message: Any, version: int, within_ms: int = 1_000) -> Any:
        """A client's request, and its answer as soon as there is one."""
        broker = self.brokers[number]
        key = broker.send(message, version)
        for _ in range(0, within_ms, SLICE_MS):
            if key in broker.asked.answers:
                break
            self.run(SLICE_MS)
        assert key in broker.asked.answers, broker.asked.closed
        return broker.asked.answers.pop(key)

    def create_topic(self, number: int, name: str, partitions: int = 3, **fields: Any) -> Any:
        """By a client of the broker; the topic's result."""
        message = request(ApiKey.CREATE_TOPICS, timeout_ms=1000, validate_only=False)
        made = {"num_partitions": partitions, "replication_factor": 3, "assignments": []} | fields
        message.topics = [struct(message, "CreatableTopic", name=name, configs=[], **made)]
        return self.ask(number, message, 7).topics[0]

    @property
    def controllers(self) -> list[int]:
        return [broker.node_id for broker in self.up if broker.is_controller]

    def controller(self) -> Member:
        (number,) = self.controllers
        return self.brokers[number]

    def held(self, topic: str, partition: int = 0) -> PartitionRegistration:
        """What the controller's image says of a partition."""
        found: PartitionRegistration = (
            self.controller().parts.image.topics[topic].partitions[partition]
        )
        return found

    def check_healed(self) -> None:
        """One controller, one image, all serve, all partitions are led with a full ISR."""
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
