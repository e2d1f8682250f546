"""Every interleaving of a few actors, with at most one fault: by states, not by walking each path.

A state is what the brokers have, the checkpoint's files, the node of each actor's tree of outcomes,
and whether the fault has happened. The brokers (`explored_broker`) and the actors
(`explored_actor`) are automata whose steps are computed once, so a step of all together is a few
lookups; states that were seen are not followed again. From each of them an end can be reached.

A fault is a crash of an actor at a shared ask, a request without an answer, or a file that is said
to have failed: carried out at once, never, or at any later time.

When all actors are over, a driver without faults begins and runs to its end; when a request that
comes late has fenced it, another one. Then the audit looks at what is left.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from support.explorer.explored_actor import (
    Actor,
    CreateFile,
    ListFiles,
    Node,
    Request,
    SharedAsk,
)
from support.explorer.explored_broker import BrokerAutomaton
from support.models.transactions import Reference

from simulation.hosts.checkpoint import names_in
from txnlog_kafka.operations.effects import (
    Call,
    FileFailed,
    ListFolder,
    ReadFile,
    Unanswered,
    WriteFile,
)
from txnlog_kafka.wire.messages import ApiKey, api_of
from txnlog_spark.errors import ProgressError, TxnLogError

CRASH, REQUEST_LOST, ANSWER_LOST, LATE = "crash", "request lost", "answer lost", "late"
FILE_FAILED, WRITE_DONE, WRITE_LATE = "file failed", "write done", "write late"
"""The store says of all three that it failed: a put that did nothing, one that did, a slow one."""
STATES_MAX = 2_000_000
"""Limit of a small exploration: an operation that exceeds it does not end."""
NOTHING = -1

_UNANSWERED = Unanswered("lost", sent=True)
_FAILED = FileFailed("the store is said to be down")


class State(NamedTuple):
    """Facts on which the next steps depend."""

    broker: int
    files: int
    nodes: tuple[Node | None, ...]
    """Nodes of the actors. None is an actor that is over; when all are over, the driver that runs
    to the end takes their place."""
    may_fail: bool
    late: int
    """The request that is still on its way, by number; or NOTHING."""
    late_file: int
    """The write that the store still has to carry out, by number; or NOTHING."""
    last_driver: int
    """Index of the driver without faults that runs; NOTHING before."""
    turn: int
    """The driver that went last."""
    switches: int
    """Number of times that another driver may still go on while the present one could."""


class Step(NamedTuple):
    actor: str
    kind: str
    ask: Any


class Violated(AssertionError):
    """A schedule that breaks what holds always; the shortest one, step by step."""


@dataclass(frozen=True, slots=True)
class Explored:
    states: int
    steps: int
    ends: int
    """Different states in the end, each audited."""
    nodes: int
    """Different points of the actors' code and of what they know."""
    stops: frozenset[str]
    """The errors that drivers stopped with."""


@dataclass(slots=True)
class Files:
    """Contents of the checkpoint, by number; 0 is the first."""

    contents: list[dict[str, bytes]]
    _numbers: dict[frozenset[tuple[str, bytes]], int] = field(default_factory=dict)
    _steps: dict[tuple[int, str, bytes], int] = field(default_factory=dict)

    def write(self, number: int, path: str, data: bytes) -> int:
        """The contents after a write."""
        found = self._steps.get((number, path, data))
        if found is None:
            changed = {**self.contents[number], path: data}
            key = frozenset(changed.items())
            found = self._numbers.setdefault(key, len(self.contents))
            if found == len(self.contents):
                self.contents.append(changed)
            self._steps[number, path, data] = found
        return found


class Explorer:
    """`drivers` interleave; `last_drivers` go on after them, one after the other where needed."""

    def __init__(
        self,
        broker: BrokerAutomaton,
        files: dict[str, bytes],
        drivers: Sequence[Actor],
        last_drivers: Sequence[Actor],
        audit: Callable[[Reference], None],
        *,
        faults: frozenset[str],
        may_fail: int,
        switches_max: int,
    ) -> None:
        """The fault hits one of the first `may_fail` drivers: of drivers that are alike, the
        first, since their names could be changed over. `switches_max`: how often a driver that
        could go on is left standing for another one. Nearly all bugs of interleaving take two or
        less, and there are too many schedules without a bound (Musuvathi and Qadeer, "Iterative
        context bounding", PLDI 2007). One that has ended,
        or whose ask changes nothing, is not counted."""
        self._broker = broker
        self._files = Files([files])
        self._drivers = drivers
        self._last_drivers = last_drivers
        self._audit = audit
        self._faults = faults
        self._may_fail = may_fail
        self._switches_max = switches_max
        self._late: list[tuple[Call, bytes]] = []
        self._late_numbers: dict[bytes, int] = {}
        self._late_files: list[WriteFile] = []
        self._stops: set[str] = set()

    def run(self) -> Explored:
        """See all. Raises Violated with the shortest schedule that breaks something."""
        gc.disable()  # nearly all that is made stays, and looking through it takes a third longer
        try:
            return self._run()
        finally:
            gc.enable()

    def _run(self) -> Explored:
        roots = tuple(actor.root for actor in self._drivers)
        may_fail = bool(self._faults)
        first = State(0, 0, roots, may_fail, NOTHING, NOTHING, NOTHING, NOTHING, self._switches_max)
        numbers = {first: 0}
        order = [first]
        came: list[tuple[int, Step | None]] = [(NOTHING, None)]
        successors: list[list[int]] = []
        ends: list[int] = []
        for number, state in enumerate(order):  # grows meanwhile
            following = []
            try:
                for actor, kind, ask, after in self._steps_or_time(state):
                    known = numbers.setdefault(after, len(order))
                    if known == len(order):
                        order.append(after)
                        came.append((number, Step(actor, kind, ask)))
                    following.append(known)
                is_end = all(node is None for node in state.nodes)
                if is_end and not self._broker.undecided(state.broker):
                    ends.append(number)
                    self._audit(self._broker.states[state.broker])
            except AssertionError as error:
                raise Violated(_schedule(came, number, str(error))) from error
            successors.append(following)
            if len(order) > STATES_MAX:
                raise AssertionError(_schedule(came, number, "there is no end of states"))
        stuck = _stuck(successors, ends)
        if stuck != NOTHING:
            raise Violated(_schedule(came, stuck, "from here on there is no end"))
        actors = [*self._drivers, *self._last_drivers]
        return Explored(
            states=len(order),
            steps=sum(map(len, successors)),
            ends=len(ends),
            nodes=sum(actor.nodes for actor in actors),
            stops=frozenset(self._stops),
        )

    # ------------------------------------------------------------------ steps

    def _steps_or_time(self, state: State) -> Iterator[tuple[str, str, Any, State]]:
        """Yield the steps that change anything. If there are no such steps, or if a driver waits
        for transactions to be decided, open transactions time out."""
        can_go_on = False
        for step in self._steps(state):
            if _changes(state, step):
                can_go_on = True
                yield step
        if not can_go_on or any(node and _waits_for_stable(node) for node in state.nodes):
            for name in self._broker.states[state.broker].ongoing():
                broker = self._broker.time_out(state.broker, name)
                yield "brokers", "time out", name, state._replace(broker=broker)

    def _steps(self, state: State) -> Iterator[tuple[str, str, Any, State]]:
        """(actor, kind, ask, the state after it) of everything that can happen next."""
        for name in self._broker.undecided(state.broker):
            completed = self._broker.complete(state.broker, name)
            yield "brokers", "markers", name, state._replace(broker=completed)
        if state.late != NOTHING:
            broker, _, _ = self._broker.ask(state.broker, *self._late[state.late])
            yield "network", LATE, "arrives", state._replace(broker=broker, late=NOTHING)
        if state.late_file != NOTHING:
            files, _ = self._perform(state.files, self._late_files[state.late_file])
            yield "store", WRITE_LATE, "is done", state._replace(files=files, late_file=NOTHING)
        actors = self._drivers
        if state.last_driver != NOTHING:
            actors = self._last_drivers[state.last_driver :]
        running = [
            (place, node, actor)
            for place, (node, actor) in enumerate(zip(state.nodes, actors, strict=False))
            if node is not None
        ]
        running.sort(key=lambda each: each[0] != state.turn)
        can_go_on = False
        for place, node, actor in running:
            switches = state.switches - (can_go_on and place != state.turn)
            if switches < 0:
                return
            turned = state._replace(turn=place, switches=switches)
            for step in self._steps_of(turned, place, node, actor):
                can_go_on |= place == state.turn and _changes(state, step)
                yield step

    def _steps_of(
        self, state: State, place: int, node: Node, actor: Actor
    ) -> Iterator[tuple[str, str, Any, State]]:
        ask = node.ask
        name = actor.name
        for request in node.requests:
            yield from self._steps_of_request(state, place, (node, actor), request)
        if not node.requests and ask is not None:
            files, outcome = self._perform(state.files, ask)
            done = actor.child(node, outcome, outcome)
            yield name, "does", ask, self._after(state, place, done, files=files)
            if state.may_fail and place < self._may_fail:
                yield from self._file_faults(state, place, node, actor)
        if state.may_fail and place < self._may_fail and CRASH in self._faults:
            yield name, CRASH, ask, self._after(state, place, None, may_fail=False)

    def _steps_of_request(
        self, state: State, place: int, at: tuple[Node, Actor], request: Request
    ) -> Iterator[tuple[str, str, Any, State]]:
        """Carry a request out and answer it, or let one of the two fail."""
        (node, actor), (ticket, call, key) = at, request
        name = actor.name
        broker, reply, reply_key = self._broker.ask(state.broker, call, key)
        outcome: Any = reply if ticket is None else (ticket, reply)
        answered = actor.child(node, outcome, (ticket, reply_key))
        yield name, "asks", call, self._after(state, place, answered, broker=broker)
        if not state.may_fail or place >= self._may_fail:
            return
        if self._faults & {REQUEST_LOST, ANSWER_LOST, LATE}:
            nothing: Any = _UNANSWERED if ticket is None else (ticket, _UNANSWERED)
            lost = actor.child(node, nothing, (ticket, None))
            after = self._after(state, place, lost, may_fail=False)
            if REQUEST_LOST in self._faults:
                yield name, REQUEST_LOST, call, after
            if ANSWER_LOST in self._faults:
                yield name, ANSWER_LOST, call, after._replace(broker=broker)
            if LATE in self._faults:
                yield name, LATE, call, after._replace(late=self._late_number(call, key))

    def _file_faults(
        self, state: State, place: int, node: Node, actor: Actor
    ) -> Iterator[tuple[str, str, Any, State]]:
        ask = node.ask
        if not self._faults & {FILE_FAILED, WRITE_DONE, WRITE_LATE}:
            return
        if not isinstance(ask, ReadFile | ListFolder | WriteFile):
            return
        failed = actor.child(node, _FAILED, _FAILED)
        after = self._after(state, place, failed, may_fail=False)
        if FILE_FAILED in self._faults:
            yield actor.name, FILE_FAILED, ask, after
        if not isinstance(ask, WriteFile):
            return
        if WRITE_DONE in self._faults:
            done, _ = self._perform(state.files, ask)
            yield actor.name, WRITE_DONE, ask, after._replace(files=done)
        if WRITE_LATE in self._faults:
            if ask not in self._late_files:
                self._late_files.append(ask)
            number = self._late_files.index(ask)
            yield actor.name, WRITE_LATE, ask, after._replace(late_file=number)

    def _perform(self, files: int, ask: SharedAsk) -> tuple[int, Any]:
        known = self._files.contents[files]
        match ask:
            case ReadFile(path):
                return files, known.get(path)
            case ListFolder(path):
                return files, names_in(path, known)
            case WriteFile(path, data):
                return self._files.write(files, path, data), None
            case CreateFile(path, data):
                is_new = path not in known
                return (self._files.write(files, path, data) if is_new else files), is_new
            case ListFiles():
                return files, frozenset(p for p in known if "/offsets/" in p or "/commits/" in p)
        raise AssertionError(f"nobody performs {ask}")

    def _late_number(self, call: Call, key: bytes) -> int:
        number = self._late_numbers.setdefault(key, len(self._late))
        if number == len(self._late):
            self._late.append((call, key))
        return number

    # ------------------------------------------------------------------ ends

    def _after(self, state: State, place: int, node: Node | None, **changes: Any) -> State:
        """The state with an actor's new node; when all are over, with the next driver's first."""
        goes_on = node is not None and node.ask is not None
        stands = node if goes_on else None
        nodes = (*state.nodes[:place], stands, *state.nodes[place + 1 :])
        after = state._replace(nodes=nodes, **changes)
        error = None if node is None else node.error
        if error is not None:
            self._check_stop(error)
        if any(nodes):
            return after
        if state.last_driver == NOTHING:
            return self._begin_last(after, 0)
        if error is None:
            return after
        if not self._late or state.last_driver + 1 == len(self._last_drivers):
            raise AssertionError(f"a driver without faults stopped: {error!r}") from error
        return self._begin_last(after, state.last_driver + 1)

    def _begin_last(self, state: State, number: int) -> State:
        root = self._last_drivers[number].root
        return state._replace(nodes=(root,), may_fail=False, last_driver=number, turn=0, switches=0)

    def _check_stop(self, error: BaseException) -> None:
        """A driver may be overtaken, or not know, or have no store; never may a person have to
        look."""
        self._stops.add(type(error).__name__)
        is_store = _FAILED.reason in str(error)
        if isinstance(error, ProgressError) and is_store:
            return
        if isinstance(error, ProgressError) or not isinstance(error, TxnLogError):
            raise AssertionError(f"a driver stopped: {error!r}") from error


def _waits_for_stable(node: Node) -> bool:
    """True if the actor reads offsets that must be decided; it has no transaction of its own
    then."""
    return any(getattr(call.message, "require_stable", False) for _, call, _ in node.requests)


def _changes(state: State, step: tuple[str, str, Any, State]) -> bool:
    """True if the step is more than an answer that tells the actor to wait."""
    return step[-1]._replace(turn=state.turn, switches=state.switches) != state


def _schedule(came: list[tuple[int, Step | None]], number: int, what: str) -> str:
    """Return the broken rule, and the steps that lead there."""
    lines = []
    while number != NOTHING:
        number, step = came[number]
        if step is not None:
            lines.append(f"{step.actor:10} {step.kind:12} {_shown(step.ask)}")
    return "\n".join([what, *reversed(lines)])


def _shown(ask: Any) -> str:
    """An ask in one line, with what tells it from others."""
    match ask:
        case Call(message=message):
            names = ("group_id", "producer_id", "producer_epoch", "committed", "require_stable")
            told = [f"{n}={getattr(message, n)}" for n in names if hasattr(message, n)]
            told += [g.group_id for g in getattr(message, "groups", ())]
            told += [str(p.committed_offset) for t in _topics(message) for p in t.partitions]
            return " ".join([api_of(message).key.name, *told])
        case ReadFile(path) | ListFolder(path) | WriteFile(path) | CreateFile(path):
            return f"{type(ask).__name__} {path}"
    return str(ask)


def _topics(message: Any) -> Sequence[Any]:
    """Return the topics of a TxnOffsetCommit."""
    is_commit = api_of(message).key is ApiKey.TXN_OFFSET_COMMIT
    return message.topics if is_commit else ()


def _stuck(successors: list[list[int]], ends: list[int]) -> int:
    """A state that leads to no end, the first one; NOTHING when all do."""
    sources: list[list[int]] = [[] for _ in successors]
    for number, following in enumerate(successors):
        for each in following:
            sources[each].append(number)
    leads_on = [False] * len(successors)
    ready = list(ends)
    while ready:
        number = ready.pop()
        if not leads_on[number]:
            leads_on[number] = True
            ready += sources[number]
    return NOTHING if all(leads_on) else leads_on.index(False)
