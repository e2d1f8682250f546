"""A broker without sockets or time for operations: Kafka's rules in small, and faults by script.

`ScriptedCluster.run(operation)` is the plain driver of a generator. Every request is encoded and
decoded at the negotiated version, applied to a small model (transactions, sequences and pending
group offsets by Kafka's rules), and answered; unless a fault is scripted for it.
Markers are written at once: there is no Prepare state unless a script says so. Time is virtual.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from support.query.staged_pieces import read_back
from support.scripted import scripted_answers as answers
from support.scripted.scripted_state import FakeState

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
from txnlog_kafka.wire.framing import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from txnlog_kafka.wire.messages import ApiKey, api_of

BROKER_VERSIONS_MAX = {ApiKey.FETCH: 12}


@dataclass(frozen=True)
class Fault:
    """What happens to one request instead of the normal thing.

    `applied`: the broker carries it out. `code`: it answers this error (a Produce answer for every
    partition); without one there is no answer. `sent` False: it certainly never left the client.
    """

    code: int | None = None
    applied: bool = False
    sent: bool = True
    retriable: bool = True


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
    """One request that reached the driver."""

    api_key: ApiKey
    message: Any
    version: int
    node: int
    round: int
    """How often the client had waited before."""


@dataclass
class ScriptedCluster:
    """One or more brokers; node 1 coordinates all."""

    transaction_version: int = 2
    leaders: dict[tuple[str, int], int] = field(
        default_factory=lambda: {("out", 0): 1, ("out", 1): 1, ("in", 0): 1}
    )
    nodes: tuple[int, ...] = (1,)
    versions_max: dict[ApiKey, int] = field(default_factory=dict)
    broker_configs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = FakeState(self.transaction_version)
        self.asked: list[Asked] = []
        self.waits = 0
        self.sent: dict[Ticket, Call] = {}
        self.open: dict[Ticket, Reply | Unanswered] = {}
        """What was sent and not received yet."""
        self.most_in_flight: dict[int, int] = defaultdict(int)
        """By node."""
        self.reached: list[tuple[str, str]] = []
        self.slept_ms: list[int] = []
        self.now_ms = 0
        self.faults: dict[ApiKey, deque[Fault | None]] = defaultdict(deque)
        self.always: dict[ApiKey, Fault] = {}
        self.files: dict[str, bytes] = {}
        self.unreadable: set[str] = set()
        """Files that are there, and whose store fails."""
        self.on_reached: Callable[[str, str], None] = lambda _step, _when: None

    def session(self, **config: int) -> Session:
        """A client's fresh session on this cluster's clock."""
        return Session(lambda: self.now_ms, SessionConfig(**config))

    def script(self, api_key: ApiKey, *faults: Fault | None) -> None:
        """The next requests of this kind meet these, one each; None is the normal thing."""
        self.faults[api_key].extend(faults)

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

    def delete_topic(self, topic: str) -> None:
        """With the offsets that were committed for it, as Kafka does."""
        for partition in [p for p in self.leaders if p[0] == topic]:
            del self.leaders[partition]
            for committed in self.state.offsets.values():
                committed.pop(partition, None)

    def run(self, operation: Any) -> Any:
        """Carry an operation to its end."""
        try:
            ask = next(operation)
            while True:
                try:
                    outcome = self._perform(ask)
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
            ask = operation.send(self._perform(ask))

    def _perform(self, ask: Any) -> Any:
        match ask:
            case Sleep(duration_ms):
                self.slept_ms.append(duration_ms)
                self.now_ms += duration_ms
            case Milestone(step, when, _):
                self.reached.append((step, when))
                self.on_reached(step, when)
            case Calls(calls):
                self.now_ms += 1
                outcomes = tuple(self._call(call) for call in calls)
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
        """Carried out at once; the answer waits until it is received."""
        ticket = Ticket(len(self.sent) + 1)
        self.sent[ticket] = call
        self.open[ticket] = self._call(call)
        to_node = sum(self.sent[t].node == call.node for t in self.open)
        self.most_in_flight[call.node] = max(to_node, self.most_in_flight[call.node])
        return ticket

    def _receive(
        self, tickets: frozenset[Ticket], within_ms: int | None
    ) -> tuple[Ticket, Reply | Unanswered] | None:
        self.now_ms += 1
        if not tickets:
            self.slept_ms.append(within_ms)
            self.now_ms += within_ms
            return None
        return min(tickets), self.open.pop(min(tickets))

    def _call(self, call: Call) -> Reply | Unanswered:
        api = api_of(call.message)
        version = min(
            api.version_max,
            call.version_max if call.version_max is not None else api.version_max,
            self.versions_max.get(api.key, BROKER_VERSIONS_MAX.get(api.key, 99)),
        )
        frame = encode_request(call.message, version, 1, "test")
        _, message = decode_request(frame[4:])
        self.asked.append(Asked(api.key, message, version, call.node, self.waits))
        fault = self.faults[api.key].popleft() if self.faults[api.key] else None
        fault = fault or self.always.get(api.key)
        if fault is None:
            return self._answer(api, version, answers.answer(self, api.key, message, version))
        if fault.applied:
            answers.answer(self, api.key, message, version)
        if fault.code is None:
            self.now_ms += call.timeout_ms if fault.sent else 0
            return Unanswered("scripted", fault.sent, fault.retriable)
        return self._answer(api, version, answers.error(api.key, message, version, fault.code))

    def _answer(self, api: Any, version: int, message: Any) -> Reply:
        frame = encode_response(api.key, version, 1, message)
        return Reply(decode_response(api, version, frame[4:]), version)
