"""An operation as an automaton: what it asks next is a function of the outcomes it was given.

Generators cannot be copied, so a node of the tree of outcomes is reached by replaying the outcomes
before it; each node is made once. Outcomes after which the program is in the same state
(`generator_state`) lead to one node: neither what was lost nor waiting leaves a trace. Asks that
touch nothing shared are performed at once.

Of the requests that a program has on their way any may be carried out and answered next, but for
those of one kind, which come in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from support.explorer.explored_broker import version_of
from support.explorer.generator_state import state_of
from support.query.staged_pieces import read_back

from simulation.hosts.checkpoint import names_in
from txnlog_kafka.operations.effects import (
    Call,
    Calls,
    Failpoint,
    FlushFile,
    ListFolder,
    ReadFile,
    ReadStaged,
    Receive,
    RemoveOtherRuns,
    Reply,
    Send,
    Sleep,
    Ticket,
    Unanswered,
    WriteFile,
)
from txnlog_kafka.operations.session import Session, SessionConfig
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.framing import encode_request
from txnlog_kafka.wire.messages import ApiKey, api_of

LOCAL_APIS = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.FIND_COORDINATOR,
        ApiKey.API_VERSIONS,
        ApiKey.LIST_OFFSETS,
        ApiKey.DESCRIBE_GROUPS,
    }
)
"""Their answers are the same in every state that is explored."""
ROUNDS_MAX = 1000
"""Local asks in a row: more are a loop."""
_PATIENT = SessionConfig(
    retry_backoff_ms=100, retry_backoff_max_ms=100, operation_timeout_ms=10**12
)
"""Deadlines do not pass, and how long a wait is does not depend on those before it."""


@dataclass(frozen=True, slots=True)
class CreateFile:
    """An entry of one of Spark's logs; resumed with whether it is new."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ListFiles:
    """The paths of Spark's logs; resumed with a frozenset."""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Requests on their way; resumed with (ticket, Reply | Unanswered) of any of them."""

    calls: tuple[tuple[Ticket, Call], ...]


SharedAsk = Call | AnyOf | ReadFile | ListFolder | WriteFile | CreateFile | ListFiles
Request = tuple[Ticket | None, Call, bytes]
"""Request that brokers can carry out: its ticket, if it has one, and a key that is equal for equal
requests."""
Program = Callable[[Session], Generator[Any, Any, None]]


@dataclass(slots=True)
class Round:
    """Requests that are sent at once, carried out one after the other, and their outcomes."""

    calls: tuple[Call, ...]
    outcomes: list[Reply | Unanswered] = field(default_factory=list)


class Host:
    """Performs a program's local asks, and stops at each one that others may notice."""

    def __init__(
        self,
        program: Program,
        answer: Callable[[Call], Reply],
        constants: dict[str, bytes],
        local: dict[Any, Any],
        in_order: bool,
    ) -> None:
        """`constants`: files that are read after they were written and never change, with all
        that they are numbered with. `answer`: to local requests. `local`: their outcomes, which
        all hosts of the program share. `in_order`: requests on their way at once are carried out as
        they were sent.
        """
        self.now_ms = 0
        self.round: Round | None = None
        self._operation = program(Session(lambda: self.now_ms, _PATIENT))
        self._answer = answer
        self._constants = constants
        self._constant_paths = tuple({path.rstrip("0123456789") for path in constants})
        self._local = local
        self._in_order = in_order
        self._open: dict[Ticket, Call] = {}
        """Open calls, in the order in which they were sent."""
        self._ask: Any = None

    def start(self) -> SharedAsk:
        """The first shared ask. Raises StopIteration, or what ends the program."""
        self._ask = next(self._operation)
        return self._run()

    def resume(self, outcome: Any) -> SharedAsk:
        """The shared ask after this outcome. Raises StopIteration, or what ends the program."""
        match self._ask:
            case Receive():
                del self._open[outcome[0]]
                self._ask = self._operation.send(outcome)
            case Calls() if self.round is not None:
                self.round.outcomes.append(outcome)
            case _:
                self._ask = self._operation.send(outcome)
        return self._run()

    def state(self) -> Any:
        """Equal for programs that go on in the same way."""
        return state_of((self._operation, self._open, self._ask, self.round))

    def _run(self) -> SharedAsk:
        for _ in range(ROUNDS_MAX):
            match self._ask:
                case Calls(calls):
                    self.round = self.round or Round(calls)
                    asked = self._next_call(self.round)
                    if asked is not None:
                        return asked
                    outcomes, self.round = tuple(self.round.outcomes), None
                    self._ask = self._operation.send(outcomes)
                case Send(call):
                    # Numbers are used again: how many were sent before changes nothing.
                    ticket = Ticket(next(n for n in count(1) if n not in self._open))
                    self._open[ticket] = call
                    self._ask = self._operation.send(ticket)
                case Receive(tickets) if tickets:
                    asked = self._any_of(tickets)
                    if isinstance(asked, AnyOf):
                        return asked
                    self._ask = self._operation.send(asked)
                case ReadFile(path) if not path.startswith(self._constant_paths):
                    return self._ask
                case ListFolder(folders=False) | WriteFile() | CreateFile() | ListFiles():
                    return self._ask
                case _:
                    self._ask = self._operation.send(self._perform(self._ask))
        raise AssertionError(f"the program does not come to an end of {self._ask}")

    def _any_of(self, tickets: Iterable[Ticket]) -> AnyOf | tuple[Ticket, Any]:
        """The first of each kind; or the outcome of one that is local."""
        firsts: dict[int, tuple[Ticket, Call]] = {}
        for ticket in [each for each in self._open if each in tickets]:
            call = self._open[ticket]
            key = api_of(call.message).key
            if key in LOCAL_APIS:
                del self._open[ticket]
                return ticket, self._local_answer(call)
            firsts.setdefault(key, (ticket, call))
        calls = tuple(firsts.values())
        return AnyOf(calls[:1] if self._in_order else calls)

    def _local_answer(self, call: Call) -> Any:
        key = (call.node, call.version_max, repr(call.message))
        if key not in self._local:
            self._local[key] = self._answer(call)
        return self._local[key]

    def _next_call(self, asked: Round) -> Call | None:
        """The first request of a round that is not local; None when all have outcomes."""
        while len(asked.outcomes) < len(asked.calls):
            call = asked.calls[len(asked.outcomes)]
            if api_of(call.message).key not in LOCAL_APIS:
                return call
            asked.outcomes.append(self._local_answer(call))
        return None

    def _perform(self, ask: Any) -> Any:
        match ask:
            case Sleep(duration_ms):
                self.now_ms += duration_ms
            case Receive(_, within_ms):
                self.now_ms += within_ms or 0
            case ReadStaged(piece):
                return read_back(piece)
            case ReadFile(path):
                return self._constants.get(path)
            case ListFolder(path, folders=True):  # of the state, which is there or is not
                return names_in(path, self._constants, folders=True)
            case Failpoint() | RemoveOtherRuns() | FlushFile():
                pass
            case _:
                raise AssertionError(f"nobody performs {ask}")
        return None


@dataclass(slots=True, eq=False)
class Node:
    """Point of a program after some outcomes: at a shared ask, or at its end."""

    number: int
    parent: Node | None
    outcome: Any
    """The one that led here from `parent`."""
    ask: SharedAsk | None = None
    key: bytes = b""
    """Equal for equal asks."""
    requests: tuple[Request, ...] = ()
    """Requests of the ask that brokers can carry out."""
    error: BaseException | None = None
    commits_sent: frozenset[tuple[int, int]] = frozenset()
    """(producer id, epoch) of each EndTxn(commit) whose outcome is not known."""
    children: dict[Any, Node] = field(default_factory=dict)
    host: Host | None = None
    """Host at this very node; the first child takes it."""


class AbortAfterCommit(AssertionError):
    """EndTxn(abort) was sent after EndTxn(commit) of the same transaction."""


class Actor:
    """Program with its tree of outcomes."""

    def __init__(
        self,
        name: str,
        program: Program,
        answer: Callable[[Call], Reply],
        constants: dict[str, bytes],
        *,
        in_order: bool,
    ) -> None:
        self.name = name
        self.nodes = 0
        self._known: dict[Any, Node] = {}
        """Nodes at shared asks, by what the program does next."""
        local: dict[Any, Any] = {}
        self._new_host = lambda: Host(program, answer, constants, local, in_order)
        self.root = self._node(None, None, self._new_host(), lambda host: host.start())

    def child(self, node: Node, outcome: Any, key: Any) -> Node:
        """Return the program's node after this outcome; `key` is equal for equal outcomes."""
        found = node.children.get(key)
        if found is None:
            host = self._host_at(node)
            found = self._node(node, outcome, host, lambda host: host.resume(outcome))
            node.children[key] = found
        return found

    def _node(
        self, parent: Node | None, outcome: Any, host: Host, step: Callable[[Host], SharedAsk]
    ) -> Node:
        self.nodes += 1
        node = Node(self.nodes, parent, outcome)
        if parent is not None:
            node.commits_sent = _commits_sent(parent, outcome)
        try:
            node.ask, node.host = step(host), host
        except StopIteration:
            return node
        except Exception as error:
            node.error = error
            return node
        node.key = _key_of(node.ask)
        node.requests = _requests_of(node.ask, node.key)
        ended = _ended_by(node.ask)
        if ended is not None and ended in node.commits_sent and not _is_commit(node.ask):
            raise AbortAfterCommit(f"{self.name}: {node.ask}")
        return self._known.setdefault((host.state(), node.commits_sent), node)

    def _host_at(self, node: Node) -> Host:
        """The program at this node: as it was left there, or by replaying the outcomes."""
        host, node.host = node.host, None
        if host is not None:
            return host
        outcomes = []
        at = node
        while at.parent is not None:
            outcomes.append(at.outcome)
            at = at.parent
        host = self._new_host()
        host.start()
        for outcome in reversed(outcomes):
            host.resume(outcome)
        return host


def _requests_of(ask: SharedAsk, key: bytes) -> tuple[Request, ...]:
    match ask:
        case Call():
            return ((None, ask, key),)
        case AnyOf(calls):
            return tuple((ticket, call, _key_of(call)) for ticket, call in calls)
    return ()


def _key_of(ask: SharedAsk) -> bytes:
    if not isinstance(ask, Call):
        return repr(ask).encode()
    version = version_of(ask)
    return b"%d:%d:" % (ask.node, version) + encode_request(ask.message, version, 1, "")


def _ended_by(ask: SharedAsk | None) -> tuple[int, int] | None:
    """(producer id, epoch) of an EndTxn."""
    if not isinstance(ask, Call) or api_of(ask.message).key is not ApiKey.END_TXN:
        return None
    return ask.message.producer_id, ask.message.producer_epoch


def _is_commit(ask: SharedAsk | None) -> bool:
    return isinstance(ask, Call) and bool(ask.message.committed)


def _commits_sent(parent: Node, outcome: Any) -> frozenset[tuple[int, int]]:
    """Leave out the commit that was answered with success: its epoch may go on (version 1)."""
    ended = _ended_by(parent.ask)
    if ended is None or not _is_commit(parent.ask):
        return parent.commits_sent
    if isinstance(outcome, Reply) and outcome.message.error_code == ErrorCode.NONE:
        return parent.commits_sent - {ended}
    return parent.commits_sent | {ended}
