"""The broker's core, in memory and on virtual time, for operations; its faults are scripted.

`CoreBroker.run(operation)` is the plain driver of a generator. Each request is encoded and decoded
at the negotiated version and carried out by the core; a script says which of them are lost, refused
or answered with something else. Several nodes are names for the one core: `leaders` says which of
them is told to lead what, and the others refuse. A node handles its requests one after another. One
without an answer breaks its connection: what was sent behind it has no answer either, and was
carried out or not. `Calls` are answered at once. The clock of the client is the core's.
"""

from __future__ import annotations

import copy
import functools
import random
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from support.core.broker_build import SMALL, BrokerOnDisk, fetch_request, request, struct
from support.query.staged_pieces import read_back

from broker_sim.core.config import BrokerConfig
from broker_sim.core.config.security import AUTHORIZER
from broker_sim.core.effects import Request
from simulation.checkers.batches import Batch, decode_batches
from simulation.hosts.checkpoint import names_in
from txnlog_kafka.operations.effects import (
    Call,
    Calls,
    FileFailed,
    ListFolder,
    Milestone,
    ReadFile,
    ReadStaged,
    Receive,
    Reply,
    Send,
    Sleep,
    Ticket,
    Unanswered,
    WriteFile,
)
from txnlog_kafka.operations.session import Session, SessionConfig
from txnlog_kafka.wire.errors import ErrorCode as E
from txnlog_kafka.wire.framing import decode_request, encode_request
from txnlog_kafka.wire.messages import ApiKey, api_of
from txnlog_kafka.wire.records import MarkerType

Partition = tuple[str, int]
Offsets = dict[Partition, tuple[int, str]]
"""A group's offsets, each with its metadata."""


@dataclass(frozen=True)
class Fault:
    """What happens to one request instead of the normal thing.

    `applied`: the broker carries it out. `code`: it answers this error; without one there is no
    answer. `sent` False: it certainly never left the client.
    """

    code: int | None = None
    applied: bool = False
    sent: bool = True
    retriable: bool = True


OPTIONS = {"node.id": 1, "auto.create.topics.enable": False, "log.retention.ms": -1}
"""Tests give their records timestamps of long ago."""
TIMEOUTS_CHECKED_MS = 10_000
"""How often the core looks for transactions that have timed out."""
LOST = Fault()
"""The request never arrives; the client cannot know."""
ANSWER_LOST = Fault(applied=True)
"""It is carried out, the answer is lost."""
NOT_SENT = Fault(sent=False)
"""The connection was refused."""
MALFORMED = Fault(applied=True, retriable=False)
"""It is carried out; the answer is no answer."""


def refused(code: int) -> Fault:
    """Not carried out, answered with an error."""
    return Fault(code=code)


def applied_but(code: int) -> Fault:
    """Carried out, yet answered with an error."""
    return Fault(code=code, applied=True)


@dataclass
class Asked:
    """One request that was sent."""

    api_key: ApiKey
    message: Any
    version: int
    node: int
    timeout_ms: int
    round: int
    """How often the client had waited before."""


@dataclass
class CoreBroker:
    """See the module. Its topics are those of `leaders`; node 1 coordinates all."""

    transaction_version: int = 2
    leaders: dict[Partition, int] = field(
        default_factory=lambda: {(topic, n): 1 for topic in ("out", "in") for n in range(2)}
    )
    """What Metadata says: -1 is no leader, and what is missing is not known to it."""
    nodes: tuple[int, ...] = (1,)
    versions_max: dict[ApiKey, int] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    delay_ms: Callable[[Asked], int] = lambda _asked: 1
    """How long a node takes for a request."""
    seed: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self.options = OPTIONS | {"transaction.version": self.transaction_version} | self.config
        self.core = BrokerOnDisk(self.options)
        self._started_ms = self.core.monotonic_ms
        counts: dict[str, int] = {}
        for topic, number in self.leaders:
            counts[topic] = max(number + 1, counts.get(topic, 0))
        self._create(counts)
        self.asked: list[Asked] = []
        self.waits = 0
        self.sent: dict[Ticket, Asked] = {}
        self.open: dict[Ticket, Reply | Unanswered] = {}
        """What was handled and not received yet."""
        self.queues: dict[int, deque[tuple[int, Ticket]]] = defaultdict(deque)
        """By node: when each of its requests will be handled."""
        self.most_in_flight: dict[int, int] = defaultdict(int)
        """By node."""
        self.reached: list[tuple[str, str]] = []
        self.slept_ms: list[int] = []
        self.faults: dict[ApiKey, deque[Fault | None]] = defaultdict(deque)
        self.always: dict[ApiKey, Fault] = {}
        self.files: dict[str, bytes] = {}
        self.unreadable: set[str] = set()
        """Files that are there, and whose store fails."""
        self.on_reached: Callable[[str, str], None] = lambda _step, _when: None
        self.on_wait: Callable[[], None] = lambda: None
        """Called before each wait for answers."""
        self.refuses: Callable[[Partition], int | None] = lambda _partition: None
        """Asked for each partition of a Produce: the error in place of the append."""

    # ------------------------------------------------------------------ what tests script

    @property
    def now_ms(self) -> int:
        """Virtual time; what is due in the core happens when it passes."""
        return self.core.monotonic_ms - self._started_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.core.advance(now_ms - self.now_ms)

    def session(self, **config: int) -> Session:
        """A client's fresh session on this clock."""
        return Session(lambda: self.now_ms, SessionConfig(**config))

    def script(self, api_key: ApiKey, *faults: Fault | None) -> None:
        """The next requests of this kind meet these, one each; None is the normal thing."""
        self.faults[api_key].extend(faults)

    def in_flight(self, node: int) -> int:
        """The requests that this node has not handled."""
        return len(self.queues[node])

    def stand_still(self, duration_ms: int) -> None:
        """Time passes for the core alone, as while the client's machine is suspended."""
        self.core.advance(duration_ms)
        self._started_ms += duration_ms

    def restart(self, **options: Any) -> None:
        """The core is started anew, with these options changed."""
        self.options |= options
        self.core.config = BrokerConfig(SMALL | self.options)
        self.core.kill()

    # ------------------------------------------------------------------ what was asked

    def apis(self) -> list[ApiKey]:
        """The kinds of what was asked, in order."""
        return [a.api_key for a in self.asked]

    def requests(self, api_key: ApiKey) -> list[Any]:
        """What was asked of one kind."""
        return [a.message for a in self.asked if a.api_key == api_key]

    def rounds(self) -> list[list[ApiKey]]:
        """The kinds of what was asked, as far as it was asked at once."""
        by_round = groupby(self.asked, lambda asked: asked.round)
        return [[asked.api_key for asked in together] for _, together in by_round]

    # ------------------------------------------------------------------ what the core holds

    def log_bytes(self, topic: str, partition: int) -> bytes:
        """All batches of a log."""
        message = fetch_request(topic, partition=partition, max_wait_ms=0, max_bytes=1 << 30)
        entry = self.core.ask(message, 12).responses[0].partitions[0]
        return bytes(entry.records or b"")

    def batches(self, topic: str, partition: int) -> list[Batch]:
        """Those of a log, its markers left out."""
        return [b for b in decode_batches(self.log_bytes(topic, partition)) if b.marker is None]

    def values(self, topic: str, partition: int) -> list[bytes]:
        """All values that were appended."""
        return [r.value or b"" for b in self.batches(topic, partition) for r in b.records]

    def committed_values(self, topic: str, partition: int) -> list[bytes]:
        """Those of committed transactions."""
        found: list[bytes] = []
        decided: dict[int, MarkerType] = {}
        for batch in reversed(list(decode_batches(self.log_bytes(topic, partition)))):
            if batch.marker is not None:
                decided[batch.header.producer_id] = batch.marker.marker_type
            elif decided.get(batch.header.producer_id) is MarkerType.COMMIT:
                found[:0] = [record.value or b"" for record in batch.records]
        return found

    def transaction(self, transactional_id: str) -> Any:
        """As DescribeTransactions has it."""
        message = request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[transactional_id])
        return self.core.ask(message, 0).transaction_states[0]

    def offsets(self, group_id: str) -> Offsets:
        """Those that are committed, if there are any."""
        message = request(ApiKey.OFFSET_FETCH, group_id=group_id, topics=None)
        return {
            (topic.name, part.partition_index): (part.committed_offset, part.metadata)
            for topic in self.core.ask(message, 7).topics
            for part in topic.partitions
        }

    def commit_offsets(self, group_id: str, offsets: Offsets) -> None:
        """As a consumer does that is in no group."""
        self.core.ask(request(ApiKey.FIND_COORDINATOR, key=group_id), 3)
        message = request(ApiKey.OFFSET_COMMIT, group_id=group_id, member_id="")
        message.generation_id_or_member_epoch = -1
        part_type = message.OffsetCommitRequestTopic.OffsetCommitRequestPartition
        message.topics = [
            message.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    part_type(
                        partition_index=number, committed_offset=offset, committed_metadata=metadata
                    )
                ],
            )
            for (topic, number), (offset, metadata) in offsets.items()
        ]
        codes = [p.error_code for t in self.core.ask(message, 7).topics for p in t.partitions]
        assert not any(codes), codes

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """All partitions are led by node 1."""
        self._create({topic: partitions})
        self.leaders |= {(topic, number): 1 for number in range(partitions)}

    def _create(self, counts: Mapping[str, int]) -> None:
        message = request(ApiKey.CREATE_TOPICS, timeout_ms=1000)
        message.topics = [
            message.CreatableTopic(name=topic, num_partitions=count, replication_factor=1)
            for topic, count in counts.items()
        ]
        self.core.ask(message, 4)

    def delete_topic(self, topic: str) -> None:
        """With the offsets that were committed for it, as Kafka does."""
        message = request(ApiKey.DELETE_TOPICS, topic_names=[topic], timeout_ms=1000)
        self.core.ask(message, 5)
        for partition in [p for p in self.leaders if p[0] == topic]:
            del self.leaders[partition]

    def configure(self, topic: str, **configs: Any) -> None:
        """Change options of a topic."""
        message = request(ApiKey.INCREMENTAL_ALTER_CONFIGS)
        changes = [
            struct(message, "AlterableConfig", name=name.replace("_", "."), value=str(value))
            for name, value in configs.items()
        ]
        message.resources = [
            struct(
                message,
                "AlterConfigsResource",
                resource_type=2,
                resource_name=topic,
                configs=changes,
            )
        ]
        self.core.ask(message, 1)

    def fork(self) -> CoreBroker:
        """A broker that knows what this one knows now, and hears of nothing more."""
        made = copy.copy(self)
        made.core = BrokerOnDisk(self.options, disk=copy.deepcopy(self.core.disk))
        made.core.now_ms, made.core.monotonic_ms = self.core.now_ms, self.core.monotonic_ms
        return made

    # ------------------------------------------------------------------ the driver

    def run(self, operation: Any) -> Any:
        """Carry an operation to its end."""
        try:
            ask = next(operation)
            while True:
                try:
                    outcome = self.perform(ask)
                except Exception as error:
                    ask = operation.throw(error)
                else:
                    ask = operation.send(outcome)
        except StopIteration as stop:
            return stop.value

    def run_until(self, operation: Any, step: str) -> None:
        """Carry an operation on until it is about to do this step; `run` carries it to its end."""
        ask = next(operation)
        while not (isinstance(ask, Milestone) and (ask.step, ask.when) == (step, "before")):
            ask = operation.send(self.perform(ask))

    def perform(self, ask: Any) -> Any:
        match ask:
            case Sleep(duration_ms):
                self.slept_ms.append(duration_ms)
                self.now_ms += duration_ms
            case Milestone(step, when, _):
                self.reached.append((step, when))
                self.on_reached(step, when)
            case Calls(calls):
                self.now_ms += 1
                outcomes = tuple(self.handle(self._ask(call)) for call in calls)
                self.waits += 1
                return outcomes
            case Send(call):
                return self._send(call)
            case Receive(tickets, within_ms):
                self.waits += 1
                return self._receive(tickets, within_ms)
            case ReadStaged(piece):
                return read_back(piece)
            case ReadFile(path):
                failed = path in self.unreadable
                return FileFailed("it fails") if failed else self.files.get(path)
            case WriteFile(path, data):
                self.files[path] = data
            case ListFolder(path):
                return names_in(path, self.files)
        return None

    def _send(self, call: Call) -> Ticket:
        ticket = Ticket(len(self.sent) + 1)
        self.sent[ticket] = asked = self._ask(call)
        queue = self.queues[call.node]
        begins_ms = max(self.now_ms, queue[-1][0] if queue else 0)
        queue.append((begins_ms + self.delay_ms(asked), ticket))
        self.most_in_flight[call.node] = max(len(queue), self.most_in_flight[call.node])
        return ticket

    def _receive(
        self, tickets: frozenset[Ticket], within_ms: int | None
    ) -> tuple[Ticket, Reply | Unanswered] | None:
        self.on_wait()
        if not tickets:
            self.slept_ms.append(within_ms)
        until_ms = None if within_ms is None else self.now_ms + within_ms
        while not tickets & self.open.keys():
            heads = [(queue[0], node) for node, queue in self.queues.items() if queue]
            if until_ms is not None and (not heads or min(heads)[0][0] > until_ms):
                self.now_ms = max(self.now_ms, until_ms)
                return None
            (at_ms, _), node = min(heads)
            self.now_ms = max(self.now_ms, at_ms)
            self._handle_next(node)
        ticket = min(tickets & self.open.keys())
        return ticket, self.open.pop(ticket)

    def _handle_next(self, node: int) -> None:
        _, ticket = self.queues[node].popleft()
        self.open[ticket] = outcome = self.handle(self.sent[ticket])
        if not isinstance(outcome, Unanswered):
            return
        for _, behind in self.queues[node]:
            if self._rng.random() < 0.5:
                self.handle(self.sent[behind])
            self.open[behind] = Unanswered("the connection broke", sent=True)
        self.queues[node].clear()

    # ------------------------------------------------------------------ one request

    def _ask(self, call: Call) -> Asked:
        """The request as it comes from the wire."""
        api = api_of(call.message)
        limits = (api.version_max, call.version_max, self.versions_max.get(api.key))
        version = min(each for each in limits if each is not None)
        _, message = decode_request(encode_request(call.message, version, 1, "test")[4:])
        self.asked.append(Asked(api.key, message, version, call.node, call.timeout_ms, self.waits))
        return self.asked[-1]

    def handle(self, asked: Asked) -> Reply | Unanswered:
        """What becomes of a request."""
        key = asked.api_key
        fault = self.faults[key].popleft() if self.faults[key] else None
        fault = fault or self.always.get(key) or Fault(applied=True, code=E.NONE)
        answer = self.carry_out(asked) if fault.applied else None
        if fault.code is None:
            self.now_ms += asked.timeout_ms if fault.sent else 0
            return Unanswered("scripted", fault.sent, fault.retriable)
        if fault.code != E.NONE:
            answer = refusal(asked.message, asked.version, fault.code)
        if answer is None:
            return Unanswered("the broker has closed the connection", sent=True)
        return self.answer(asked, answer)

    def answer(self, asked: Asked, message: Any) -> Reply | Unanswered:
        """What comes to the client."""
        return Reply(message, asked.version)

    def carry_out(self, asked: Asked) -> Any:
        """What the core answers to a request, perhaps once more; None without an answer."""
        if asked.api_key == ApiKey.PRODUCE:
            return self._produce(asked)
        answer = self._step(asked)
        if asked.api_key == ApiKey.METADATA and answer is not None:
            self._name_leaders(answer)
        return answer

    def _step(self, asked: Asked) -> Any:
        key = (1, len(self.core.steps))
        api, version, message = asked.api_key, asked.version, asked.message
        self.core.step(Request(*key, api, version, "test", "127.0.0.1", message))
        until_ms = self.now_ms + asked.timeout_ms
        while key not in self.core.asked.answers:
            if self.core.asked.closed.pop(1, None) or self.now_ms >= until_ms:
                return None
            self.now_ms += 1
        return self.core.asked.answers.pop(key)

    def _name_leaders(self, answer: Any) -> None:
        """As `leaders` has them, in a Metadata answer."""
        answer.cluster_id = "c"
        answer.brokers = [
            struct(answer, "MetadataResponseBroker", node_id=node, host="h", port=9000 + node)
            for node in self.nodes
        ]
        for topic in answer.topics:
            places = [(topic.name, part.partition_index) for part in topic.partitions]
            topic.partitions = [
                part
                for part, place in zip(topic.partitions, places, strict=True)
                if place in self.leaders
            ]
            if not topic.partitions:
                topic.error_code = topic.error_code or E.UNKNOWN_TOPIC_OR_PARTITION
            for part in topic.partitions:
                part.leader_id = self.leaders[topic.name, part.partition_index]
                part.error_code = E.NONE if part.leader_id >= 0 else E.LEADER_NOT_AVAILABLE

    def _produce(self, asked: Asked) -> Any:
        """Partitions that the node does not lead are refused."""
        found = []
        for topic in asked.message.topic_data:
            for part in topic.partition_data:
                only, alone = copy.copy(topic), copy.copy(asked.message)
                only.partition_data, alone.topic_data = [part], [only]
                found.append((self._refusal_of((topic.name, part.index), asked.node), alone))
        if not any(code for code, _ in found):
            return self._step(asked)
        answers = [
            refusal(alone, asked.version, code) if code else self._step(replace(asked, message=alone))
            for code, alone in found
        ]
        answers[0].responses = [topic for each in answers for topic in each.responses]
        return answers[0]

    def _refusal_of(self, partition: Partition, node: int) -> int | None:
        if self.leaders.get(partition, -1) != node:
            return E.NOT_LEADER_OR_FOLLOWER
        return self.refuses(partition)


# ---------------------------------------------------------------------- refusals


@functools.cache
def closed_broker() -> BrokerOnDisk:
    """One that lets nobody do anything."""
    return BrokerOnDisk({"authorizer.class.name": AUTHORIZER})


def refusal(message: Any, version: int, code: int) -> Any:
    """An answer to somebody who may not ask for this, with another code for that."""
    broker = closed_broker()
    key = broker.send(message, version)
    answer = broker.asked.answers.pop(key)
    replace_codes(answer, code)
    return answer


def replace_codes(answer: Any, code: int) -> None:
    """Wherever an answer has an error."""
    for each in answer.STRUCT.fields:
        value = getattr(answer, each.name)
        if each.name.endswith("error_code") and value != E.NONE:
            setattr(answer, each.name, int(code))
        elif each.struct is not None:
            for nested in value if isinstance(value, list) else [value] if value else []:
                replace_codes(nested, code)
