"""A client process in virtual time: runs the real operations (`txnlog_kafka.operations`).

What `txnlog_kafka.host` does on sockets is done here on the virtual network, by the same rules: a
connection per node, ApiVersions first, calls to one node in their order without waiting in between;
a timeout closes the connection, and every call on it is `Unanswered`, sent or not sent.

A process can be killed (its operation is never resumed) or paused as by SIGSTOP: what happens
meanwhile is handled when it goes on, which makes it a zombie if another took over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from simulation.hosts.clock import MachineClock
from simulation.hosts.network import BrokerEnd, Network, SimulatedConnection
from simulation.hosts.scheduler import Event, Scheduler
from simulation.trace import Trace
from txnlog_kafka.operations.effects import (
    ANOTHER_NODE,
    ANY_NODE,
    Ask,
    Call,
    Calls,
    Failpoint,
    FileAsk,
    FileOutcome,
    FlushFile,
    ListFolder,
    Operation,
    Outcome,
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
from txnlog_kafka.operations.metadata import api_versions_request
from txnlog_kafka.wire.conversation import Asked, Conversation
from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.messages import Message, api_of
from txnlog_spark.errors import TxnLogError

API_VERSIONS_VERSION = 3

Done = Callable[[Any, TxnLogError | None], None]
"""Gets the result of an operation, or the error that the operation raised."""


def _ignore(*_: object) -> None:
    """Drop the result of an operation that nobody waits for."""


class Watcher:
    """Called at these moments of an operation; it does nothing where a subclass has no method."""

    __slots__ = ()

    def on_sent(self, request: Message) -> None:
        """Hear that a request leaves the process."""

    def on_answer(self, request: Message) -> None:
        """Hear that a request was answered."""

    def on_reached(self, reached: Failpoint) -> None:
        """Hear that the operation has come to a step; the process may die or stop there."""

    def serve_file(self, ask: FileAsk) -> FileOutcome:
        """Perform a file operation of the operation; the process may die in it."""

    def file_delay_us(self) -> int:
        """Return the microseconds that the next file operation takes."""
        return 0


@dataclass(slots=True)
class _Wait:
    """Wait of the operation: for any of the tickets, or for all of them of one `Calls`."""

    tickets: frozenset[Ticket]
    is_for_all: bool = False
    timer: Event | None = None


@dataclass(slots=True, eq=False)
class _InFlight(Asked):
    """A request, and whether its bytes left."""

    ticket: Ticket
    call: Call
    version: int = -1
    sent: bool = False
    timer: Event | None = None


@dataclass(slots=True)
class _NodeLink:
    """The connection to one node, its requests, and those that wait for the node's versions."""

    connection: SimulatedConnection
    conversation: Conversation[Asked]
    waiting: list[_InFlight] = field(default_factory=list)

    def ask(self, message: Message, version: int, asked: Asked) -> None:
        """Send a request."""
        self.connection.request(b"".join(self.conversation.ask(message, version, asked))[4:])


class ClientProcess:
    """A process with a single operation at a time."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        network: Network,
        brokers: dict[int, BrokerEnd],
        trace: Trace,
        *,
        clock: MachineClock | None = None,
        on_sent: Callable[[str, Message], None] = _ignore,
        on_answer: Callable[[str, Message, Message, int], None] = _ignore,
    ) -> None:
        """`clock` is the clock of a machine that runs other processes too.

        `on_sent` and `on_answer` get the name of the process, and each request, or answer with
        its version.
        """
        self.name = name
        self.alive = True
        self.paused = False
        self.clock = clock or MachineClock(scheduler)
        """Clock of the machine, by which the process measures timeouts and waits."""
        self.sent_counts: dict[str, int] = {}
        """Requests that left this process, by API name."""
        self._on_sent = on_sent
        self._on_answer = on_answer
        self._watcher = Watcher()
        self._scheduler = scheduler
        self._network = network
        self._brokers = brokers
        self._trace = trace
        self._links: dict[int, _NodeLink] = {}
        self._bootstrap = 0
        self._turn = 0
        """Count of bootstrap servers that have refused: the next try takes another one."""
        # The operation that runs, and what it waits for.
        self._operation: Operation[Any] | None = None
        self._done: Done = _ignore
        self._next_ticket = 1
        self._open: set[Ticket] = set()
        self._outcomes: dict[Ticket, Reply | Unanswered] = {}
        """Outcomes that the operation has not received yet."""
        self._wait: _Wait | None = None
        self._deferred: list[Callable[[], None]] = []

    # ------------------------------------------------------------------ life

    def run(self, operation: Operation[Any], done: Done, watcher: Watcher | None = None) -> None:
        """Run `operation`; `done` gets its result or the error that it raised.

        `watcher` hears of each moment of the operation, and performs its file operations.
        """
        self._operation, self._done = operation, done
        self._watcher = watcher or Watcher()
        self._later(lambda: self._resume(None))

    def kill(self) -> None:
        """Kill the process as by SIGKILL; its connections close."""
        self._trace.line(self.name, "killed")
        self.alive = False
        for link in self._links.values():
            link.connection.close()
        self._links.clear()

    def pause(self, duration_us: int) -> None:
        """Stop the process as by SIGSTOP; let it go on after a while."""
        self._trace.line(self.name, "paused", {"for_us": duration_us})
        self.paused = True

        def go_on() -> None:
            self._trace.line(self.name, "resumed")
            self.paused = False
            deferred, self._deferred = self._deferred, []
            for action in deferred:
                self._later(action)

        self._scheduler.after(duration_us, go_on)

    def discard(self) -> None:
        """Close the generator without an error: the simulation is over."""
        self.alive = False
        if self._operation is not None:
            # While the operation is closed, it may ask for more, or raise an error of its own.
            # The run is over, so no check waits for its outcome.
            with contextlib.suppress(RuntimeError, TxnLogError):
                self._operation.close()

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run what happened to this process: never when dead, later when paused."""
        if not self.alive:
            return
        if self.paused:
            self._deferred.append(action)
            return
        action()

    def _later(self, action: Callable[[], None], delay_us: int = 0) -> Event:
        return self._scheduler.after(delay_us, partial(self._guarded, action))

    def _timer(self, action: Callable[[], None], duration_ms: int) -> Event:
        return self._later(action, self.clock.us_for(duration_ms))

    # ------------------------------------------------------------------ the operation

    def _resume(self, outcome: Outcome) -> None:
        operation = self._operation
        if operation is None:
            return
        try:
            ask = operation.send(outcome)
        except StopIteration as stop:
            self._finish(stop.value, None)
        except TxnLogError as error:
            self._finish(None, error)
        else:
            self._perform(ask)

    def _finish(self, result: Any, error: TxnLogError | None) -> None:
        if error is not None:
            self._trace.line(self.name, "failed", {"error": f"{type(error).__name__}: {error}"})
        self._operation = None
        self._abandon()
        self._done(result, error)

    def _perform(self, ask: Ask) -> None:
        match ask:
            case Send(call):
                ticket = self._send(call)
                self._later(lambda: self._resume(ticket))
            case Receive(tickets, within_ms):
                wait = _Wait(tickets)
                if within_ms is not None:
                    wait.timer = self._timer(partial(self._time_out_wait, wait), within_ms)
                self._await(wait)
            case Calls(calls):
                self._await(_Wait(frozenset(self._send(call) for call in calls), is_for_all=True))
            case Sleep(duration_ms):
                self._timer(lambda: self._resume(None), duration_ms)
            case Failpoint():
                fields = {"step": ask.step, "when": ask.when, "batch_id": ask.batch_id}
                self._trace.line(self.name, "reached", fields)
                self._later(lambda: self._resume(None))
                self._watcher.on_reached(ask)
            case (
                ReadFile()
                | ListFolder()
                | WriteFile()
                | FlushFile()
                | RemoveOtherRuns()
                | ReadStaged()
            ):
                fields = {"path": getattr(ask, "path", "-"), "what": type(ask).__name__}
                self._trace.line(self.name, "file", fields)
                self._later(lambda: self._serve(ask), self._watcher.file_delay_us())

    def _serve(self, ask: FileAsk) -> None:
        outcome = self._watcher.serve_file(ask)
        self._later(lambda: self._resume(outcome))

    def _await(self, wait: _Wait) -> None:
        self._wait = wait
        self._end_wait()

    def _end_wait(self) -> None:
        """Resume the operation if what it waits for is there."""
        wait = self._wait
        if wait is None:
            return
        found = wait.tickets & self._outcomes.keys()
        if wait.is_for_all and found == wait.tickets:
            outcome: Outcome = tuple(self._outcomes.pop(t) for t in sorted(found))
        elif found and not wait.is_for_all:
            outcome = (min(found), self._outcomes.pop(min(found)))
        else:
            return
        if wait.timer is not None:
            wait.timer.cancel()
        self._wait = None
        self._later(lambda: self._resume(outcome))

    def _time_out_wait(self, wait: _Wait) -> None:
        # While the process was paused its time may have passed, and an answer have come before.
        if self._wait is wait:
            self._wait = None
            self._resume(None)

    def _abandon(self) -> None:
        self._wait = None
        self.close_unanswered()

    def close_unanswered(self) -> None:
        """Close the connections that still owe an answer to an operation that has ended."""
        self._open.clear()
        self._outcomes.clear()
        for node, link in list(self._links.items()):
            if link.conversation.unanswered or link.waiting:
                self._break(node, "the operation that asked has ended")

    # ------------------------------------------------------------------ calls

    def _send(self, call: Call) -> Ticket:
        flight = _InFlight(Ticket(self._next_ticket), call)
        self._next_ticket += 1
        self._open.add(flight.ticket)
        self._start(flight)
        return flight.ticket

    def _start(self, flight: _InFlight) -> None:
        node = flight.call.node
        if node == ANOTHER_NODE:
            self._turn += 1
            node = sorted(self._brokers)[self._turn % len(self._brokers)]
        elif node == ANY_NODE:
            nodes = sorted(self._brokers)
            node = next(iter(self._links), nodes[self._bootstrap % len(nodes)])
        link = self._links.get(node) or self._connect(node)
        if link is None:
            self._bootstrap += 1
            self._later(
                lambda: self._settle(flight, Unanswered("connection refused", sent=False)),
                self._network.delay_us(),
            )
            return
        name = api_of(flight.call.message).name
        reason = f"no answer to {name} in {flight.call.timeout_ms} ms"
        flight.timer = self._timer(
            partial(self._time_out, flight, node, reason), flight.call.timeout_ms
        )
        link.waiting.append(flight)
        self._flush(node, link)

    def _connect(self, node: int) -> _NodeLink | None:
        broker = self._brokers.get(node)
        connection = None if broker is None else self._network.connect(self, broker)
        if connection is None:
            return None
        conversation = Conversation[Asked](self.name, connection.decode)
        link = self._links[node] = _NodeLink(connection, conversation)
        link.ask(api_versions_request(), API_VERSIONS_VERSION, Asked())
        return link

    def _flush(self, node: int, link: _NodeLink) -> None:
        if not link.conversation.versions:
            return
        waiting, link.waiting = link.waiting, []
        for flight in waiting:
            if self._links.get(node) is not link:
                self._settle(flight, Unanswered("connection lost", sent=False))
                continue
            api = api_of(flight.call.message)
            version = link.conversation.negotiate(api, flight.call.version_max)
            if version is None:
                self._settle(flight, Unanswered(f"no common version of {api.name}", sent=False))
                continue
            flight.version, flight.sent = version, True
            self._on_sent(self.name, flight.call.message)
            self._watcher.on_sent(flight.call.message)
            self.sent_counts[api.name] = self.sent_counts.get(api.name, 0) + 1
            link.ask(flight.call.message, version, flight)

    def _settle(self, flight: _InFlight, answer: Reply | Unanswered) -> None:
        if flight.timer is not None:
            flight.timer.cancel()
        if flight.ticket in self._open:
            self._open.remove(flight.ticket)
            self._outcomes[flight.ticket] = answer
            self._end_wait()

    def _time_out(self, flight: _InFlight, node: int, reason: str) -> None:
        if flight.ticket in self._open:
            self._break(node, reason)

    def _break(self, node: int, reason: str) -> None:
        link = self._links.pop(node, None)
        if link is None:
            return
        self._trace.line(self.name, "disconnected", {"node": node, "reason": reason})
        link.connection.close()
        for flight in (*link.conversation.unanswered, *link.waiting):
            if isinstance(flight, _InFlight):
                self._settle(flight, Unanswered(reason, sent=flight.sent))

    # ------------------------------------------------------------------ ClientEnd

    def on_frame(self, connection: SimulatedConnection, frame: bytes) -> None:
        """Take an answer that has arrived."""
        self._guarded(lambda: self._on_frame(connection, frame))

    def on_closed(self, connection: SimulatedConnection) -> None:
        """Give up all calls of a connection that broke."""
        self._guarded(lambda: self._on_closed(connection))

    def _node_of(self, connection: SimulatedConnection) -> int | None:
        found = (n for n, link in self._links.items() if link.connection is connection)
        return next(found, None)

    def _on_closed(self, connection: SimulatedConnection) -> None:
        node = self._node_of(connection)
        if node is not None:
            self._break(node, "connection lost")

    def _on_frame(self, connection: SimulatedConnection, frame: bytes) -> None:
        node = self._node_of(connection)
        if node is None:
            return
        link = self._links[node]
        flight = link.conversation.oldest(frame)
        link.conversation.unanswered.popleft()
        answer = flight.decode(frame)
        if not isinstance(flight, _InFlight):
            link.conversation.on_versions(answer)
            self._flush(node, link)
            return
        api = api_of(flight.call.message)
        fields = {"version": flight.version, "error": _error_of(answer)}
        self._trace.line(self.name, f"answer-{api.key.name}", fields)
        self._watcher.on_answer(flight.call.message)
        self._on_answer(self.name, flight.call.message, answer, flight.version)
        self._settle(flight, Reply(answer, flight.version))


def _error_of(answer: Message) -> str:
    """Return the answer's top-level error; "-" if the message has no such field."""
    code = getattr(answer, "error_code", None)
    return "-" if code is None else error_name(code)
