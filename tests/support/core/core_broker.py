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
import itertools
import random
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Self

from support.core.broker_build import SMALL, BrokerOnDisk
from support.core.scripted_faults import Fault, refusal
from support.query.staged_pieces import read_back

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.configs import Resource
from broker_sim.core.effects import Request
from broker_sim.core.group.requests import OffsetCommit, OffsetErrors, OffsetToCommit
from broker_sim.core.parts import BrokerParts
from broker_sim.core.transaction.results import TransactionDescription
from simulation.checkers.batches import Batch, decode_batches
from simulation.hosts.checkpoint import names_in
from txnlog_kafka.operations.effects import (
    Call,
    Calls,
    Failpoint,
    FileFailed,
    FlushFile,
    ListFolder,
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
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.framing import decode_request, encode_request
from txnlog_kafka.wire.messages import ApiKey, api_of
from txnlog_kafka.wire.records import MarkerType
from txnlog_kafka.wire.topic_partition import INTERNAL_TOPICS

Offsets = dict[tuple[str, int], tuple[int, str]]
"""A group's offsets by partition, each with its metadata."""
Partition = tuple[str, int]
OPTIONS = {
    "node.id": 1,
    "auto.create.topics.enable": False,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "log.retention.ms": -1,
}
"""Limit on the age of records, switched off: tests give their records old timestamps."""
TIMEOUTS_CHECKED_MS = 10_000
"""Interval in which the core looks for transactions that have timed out."""


@dataclass
class Asked:
    api_key: ApiKey
    message: Any
    version: int
    node: int
    timeout_ms: int
    round: int
    """Number of times that the client had waited before."""


class CoreBroker:
    """Broker that plays several nodes. Its topics are those of `leaders`; node 1 coordinates
    all."""

    def __init__(
        self,
        transaction_version: int = 2,
        *,
        leaders: dict[Partition, int] | None = None,
        nodes: tuple[int, ...] = (1,),
        delay_ms: Callable[[Asked], int] = lambda _asked: 1,
        seed: int = 0,
        versions_max: dict[ApiKey, int] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.options = OPTIONS | {"transaction.version": transaction_version} | (config or {})
        self.core = BrokerOnDisk(self.options)
        self.transaction_version = transaction_version
        self.leaders = leaders or {(topic, n): 1 for topic in ("out", "in") for n in range(2)}
        """Leaders that Metadata names: -1 is no leader, and Metadata does not know missing
        partitions."""
        self.nodes = nodes
        self.delay_ms = delay_ms
        """Time that a node takes for a request, in ms."""
        self.versions_max = versions_max or {}
        self._rng = random.Random(seed)
        self._started_ms = self.core.monotonic_ms
        counts = dict.fromkeys(sorted(INTERNAL_TOPICS), 1)
        for topic, number in self.leaders:
            counts[topic] = max(number + 1, counts.get(topic, 0))
        self._create(counts)
        # The client's requests: what was asked, what is in flight, what is ready.
        self.asked: list[Asked] = []
        self.waits = 0
        self.open: dict[Ticket, Reply | Unanswered] = {}
        """Answers that are ready and that the client has not received yet."""
        self.queues: dict[int, deque[tuple[int, Ticket, Asked]]] = defaultdict(deque)
        """Requests of each node, with the time at which each will be handled."""
        self._tickets = map(Ticket, itertools.count(1))
        self.most_in_flight: dict[int, int] = defaultdict(int)
        """Most requests that were in flight at once, by node."""
        # The script of a test: faults, files, and what is called when.
        self.reached: list[tuple[str, str]] = []
        self.slept_ms: list[int] = []
        self.faults: dict[ApiKey, deque[Fault | None]] = defaultdict(deque)
        self.always: dict[ApiKey, Fault] = {}
        self.files: dict[str, bytes] = {}
        self.unreadable: set[str] = set()
        """Files that are there, and whose store fails."""
        self.on_flush: Callable[[str], None] = lambda path: None
        """Called with the path of each flushed file."""
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
        return Session(lambda: self.now_ms, SessionConfig(**config))

    def script(self, api_key: ApiKey, *faults: Fault | None) -> None:
        """The next requests of this kind meet these, one each; None is the normal thing."""
        self.faults[api_key].extend(faults)

    def in_flight(self, node: int) -> int:
        return len(self.queues[node])

    def stand_still(self, duration_ms: int) -> None:
        """Time passes for the core alone, as while the client's machine is suspended."""
        self.core.advance(duration_ms)
        self._started_ms += duration_ms

    def create_topics(self, **partitions: int) -> None:
        """Topics that are led by node 1."""
        self._create(partitions)
        self.leaders |= {(name, n): 1 for name, count in partitions.items() for n in range(count)}

    def _create(self, partitions: Mapping[str, int]) -> None:
        topics = self.parts.topics
        planned = [topics.plan(name, partition_count=n) for name, n in partitions.items()]
        self.core.cause(lambda effects: topics.create_all(planned, effects))

    # ------------------------------------------------------------------ what was asked

    def apis(self) -> list[ApiKey]:
        return [a.api_key for a in self.asked]

    def requests(self, api_key: ApiKey) -> list[Any]:
        return [a.message for a in self.asked if a.api_key == api_key]

    def rounds(self) -> list[list[ApiKey]]:
        """The kinds of what was asked, as far as it was asked at once."""
        by_round = groupby(self.asked, lambda asked: asked.round)
        return [[asked.api_key for asked in together] for _, together in by_round]

    # ------------------------------------------------------------------ the driver

    def run(self, operation: Any) -> Any:
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
        while not (isinstance(ask, Failpoint) and (ask.step, ask.when) == (step, "before")):
            ask = operation.send(self.perform(ask))

    def perform(self, ask: Any) -> Any:
        match ask:
            case Sleep(duration_ms):
                self.slept_ms.append(duration_ms)
                self.now_ms += duration_ms
            case Failpoint(step, when, _):
                self.reached.append((step, when))
                self.on_reached(step, when)
            case Calls(calls):
                self.now_ms += 1
                outcomes = tuple(self.handle(self._ask(call)) for call in calls)
                self.waits += 1
                return outcomes
            case Send(call):
                return self._send(self._ask(call))
            case Receive(tickets, within_ms):
                self.waits += 1
                return self._receive(tickets, within_ms)
            case ReadStaged(piece):
                return read_back(piece)
            case _:
                return self._perform_on_files(ask)
        return None

    def _perform_on_files(self, ask: Any) -> Any:
        match ask:
            case ReadFile(path):
                failed = path in self.unreadable
                return FileFailed("it fails") if failed else self.files.get(path)
            case WriteFile(path, data):
                self.files[path] = data
            case FlushFile(path):
                self.on_flush(path)
            case ListFolder(path, folders):
                return names_in(path, self.files, folders=folders)
        return None

    def _send(self, asked: Asked) -> Ticket:
        ticket, queue = next(self._tickets), self.queues[asked.node]
        begins_ms = max(self.now_ms, queue[-1][0] if queue else 0)
        queue.append((begins_ms + self.delay_ms(asked), ticket, asked))
        self.most_in_flight[asked.node] = max(len(queue), self.most_in_flight[asked.node])
        return ticket

    def _receive(
        self, tickets: frozenset[Ticket], within_ms: int | None
    ) -> tuple[Ticket, Reply | Unanswered] | None:
        self.on_wait()
        if not tickets:
            self.slept_ms.append(within_ms)
        until_ms = None if within_ms is None else self.now_ms + within_ms
        while not tickets & self.open.keys():
            heads = [(*queue[0][:2], node) for node, queue in self.queues.items() if queue]
            if until_ms is not None and (not heads or min(heads)[0] > until_ms):
                self.now_ms = max(self.now_ms, until_ms)
                return None
            at_ms, _, node = min(heads)
            self.now_ms = max(self.now_ms, at_ms)
            self._handle_next(self.queues[node])
        ticket = min(tickets & self.open.keys())
        return ticket, self.open.pop(ticket)

    def _handle_next(self, queue: deque[tuple[int, Ticket, Asked]]) -> None:
        _, ticket, asked = queue.popleft()
        self.open[ticket] = outcome = self.handle(asked)
        if not isinstance(outcome, Unanswered):
            return
        for _, behind, asked in queue:
            if self._rng.random() < 0.5:
                self.handle(asked)
            self.open[behind] = Unanswered("the connection broke", sent=True)
        queue.clear()

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
        return Reply(message, asked.version)

    def carry_out(self, asked: Asked) -> Any:
        """Return what the core answers to a request, which may come again; None without an
        answer."""
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
        """Put `leaders` into a Metadata answer."""
        answer.cluster_id = "c"
        answer.brokers = [
            answer.MetadataResponseBroker(node_id=node, host="h", port=9000 + node)
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
        parts = [
            (topic, part) for topic in asked.message.topic_data for part in topic.partition_data
        ]
        codes = [self._refusal_of((topic.name, part.index), asked.node) for topic, part in parts]
        if not any(codes):
            return self._step(asked)
        answers = []
        for (topic, part), code in zip(parts, codes, strict=True):
            alone, only = copy.copy(asked.message), copy.copy(topic)
            alone.topic_data, only.partition_data = [only], [part]
            answers.append(
                refusal(alone, asked.version, code)
                if code
                else self._step(replace(asked, message=alone))
            )
        answers[0].responses = [topic for each in answers for topic in each.responses]
        return answers[0]

    def _refusal_of(self, partition: Partition, node: int) -> int | None:
        if self.leaders.get(partition, -1) != node:
            return E.NOT_LEADER_OR_FOLLOWER
        return self.refuses(partition)

    @property
    def parts(self) -> BrokerParts:
        return self.core.broker.parts

    def restart(self, **options: Any) -> None:
        """The broker is started anew, with these options changed."""
        self.options |= {name.replace("_", "."): value for name, value in options.items()}
        self.core.config = BrokerConfig(SMALL | self.options)
        self.core.kill()

    def fork(self) -> Self:
        """A broker that knows what this one knows now, and hears of nothing more."""
        made = copy.copy(self)
        made.core = BrokerOnDisk(self.options, disk=copy.deepcopy(self.core.disk))
        made.core.now_ms, made.core.monotonic_ms = self.core.now_ms, self.core.monotonic_ms
        return made

    # ------------------------------------------------------------------ content, past requests

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and the offsets that were committed for it, as Kafka does."""
        parts = self.parts
        self.core.cause(lambda effects: parts.topics.delete(parts.image.topics[topic], effects))

    def configure(self, topic: str, **configs: Any) -> None:
        """A topic has these options, and all others their defaults."""
        pairs = [(name.replace("_", "."), str(value)) for name, value in configs.items()]
        self.core.cause(self.parts.configs.plan_replacement(Resource.TOPIC, topic, pairs))

    def log_bytes(self, topic: str, partition: int) -> bytes:
        log = self.parts.logs.get(topic, partition)
        return b"".join(data for _, data in log.batches(0))

    def batches(self, topic: str, partition: int) -> list[Batch]:
        """Return the batches of a log without its markers."""
        return [b for b in decode_batches(self.log_bytes(topic, partition)) if b.marker is None]

    def values(self, topic: str, partition: int) -> list[bytes]:
        return [r.value or b"" for b in self.batches(topic, partition) for r in b.records]

    def committed_values(self, topic: str, partition: int) -> list[bytes]:
        """Return the values of committed transactions."""
        found: list[bytes] = []
        decided: dict[int, MarkerType] = {}
        for batch in reversed(list(decode_batches(self.log_bytes(topic, partition)))):
            if batch.marker is not None:
                decided[batch.header.producer_id] = batch.marker.marker_type
            elif decided.get(batch.header.producer_id) is MarkerType.COMMIT:
                found[:0] = [record.value or b"" for record in batch.records]
        return found

    def transaction(self, transactional_id: str) -> TransactionDescription:
        return self.parts.transactions.describe(transactional_id)

    def offsets(self, group_id: str) -> Offsets:
        """Return the committed offsets of a group, if there are any."""
        found = self.parts.groups.offset_fetch(group_id, None, require_stable=False).offsets
        return {(o.topic, o.partition): (o.committed_offset, o.metadata or "") for o in found}

    def commit_offsets(self, group_id: str, offsets: Offsets) -> None:
        """Commit offsets as a consumer outside of the group does."""
        commits = [
            OffsetToCommit(topic, number, offset, -1, metadata)
            for (topic, number), (offset, metadata) in offsets.items()
        ]
        answers: list[OffsetErrors] = []
        commit = OffsetCommit(group_id=group_id, offsets=tuple(commits))
        groups = self.parts.groups
        self.core.cause(
            lambda effects: groups.offset_commit(commit, lambda e, _: answers.append(e), effects)
        )
        assert not any(answers[0].values()), answers
