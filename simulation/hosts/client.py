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
    FileAsk,
    FileOutcome,
    FlushFile,
    ListFolder,
    Milestone,
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
from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.framing import decode_response, encode_request, response_correlation_id
from txnlog_kafka.wire.messages import APIS, ApiKey, Message, api_of
from txnlog_spark.errors import TxnLogError

API_VERSIONS_VERSION = 3

OnReply = Callable[[Message, Message, int], None]
"""Gets request, answer and version of every answered call: the history."""


def _ignore(*_: object) -> None:
    """Nobody listens."""


@dataclass(slots=True)
class _Wait:
    """Wait of the operation: for any of the tickets, or for all of them of one `Calls`."""

    tickets: frozenset[Ticket]
    is_for_all: bool = False
    timer: Event | None = None


@dataclass(slots=True)
class _InFlight:
    """A request, and whether its bytes left."""

    ticket: Ticket
    call: Call
    version: int = -1
    sent: bool = False
    timer: Event | None = None


@dataclass(slots=True)
class _NodeLink:
    """The connection to one node and what waits on it; `versions` None while negotiating."""

    connection: SimulatedConnection
    versions: dict[int, tuple[int, int]] | None = None
    waiting: list[_InFlight] = field(default_factory=list)
    sent: dict[int, _InFlight] = field(default_factory=dict)
    next_correlation_id: int = 1


class ClientProcess:
    """A process with a single operation at a time."""

    def __init__(
        self, name: str, scheduler: Scheduler, network: Network, brokers: dict[int, BrokerEnd],
        trace: Trace,
    ) -> None:  # fmt: skip
        self.name = name
        self.alive = True
        self.paused = False
        self.clock = MachineClock(scheduler)
        """Its machine's: timeouts and waits go by it."""
        self.sent_counts: dict[str, int] = {}
        """Requests that left this process, by API name."""
        self.on_reply: OnReply = _ignore
        self.on_sent: Callable[[Message], None] = _ignore
        self.on_reached: Callable[[Milestone], None] = _ignore
        self.serve_file: Callable[[FileAsk], FileOutcome] = _ignore
        """Performs what is asked of the checkpoint's disk; the process may die in it."""
        self.file_delay_us: Callable[[], int] = int
        self._scheduler = scheduler
        self._network = network
        self._brokers = brokers
        self._trace = trace
        self._links: dict[int, _NodeLink] = {}
        self._bootstrap = 0
        self._turn = 0
        """Count of bootstrap servers that have refused: the next try takes another one."""
        self._operation: Operation[Any] | None = None
        self._done: Callable[[Any, TxnLogError | None], None] = _ignore
        self._next_ticket = 1
        self._open: set[Ticket] = set()
        self._outcomes: dict[Ticket, Reply | Unanswered] = {}
        """Outcomes that the operation has not received yet."""
        self._wait: _Wait | None = None
        self._deferred: list[Callable[[], None]] = []

    # ------------------------------------------------------------------ life

    def run(
        self, operation: Operation[Any], done: Callable[[Any, TxnLogError | None], None]
    ) -> None:
        """Run `operation`; `done` gets its result or the error that it raised."""
        self._operation, self._done = operation, done
        self._later(lambda: self._resume(None))

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more; its connections close."""
        self._trace.line(self.name, "killed")
        self.alive = False
        for link in self._links.values():
            link.connection.close()
        self._links.clear()

    def pause(self, duration_us: int) -> None:
        """SIGSTOP, and SIGCONT after a while."""
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
        """The simulation is over: let the generator go without a word."""
        self.alive = False
        if self._operation is not None:
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
                    wait.timer = self._timer(partial(self._give_up, wait), within_ms)
                self._await(wait)
            case Calls(calls):
                self._await(_Wait(frozenset(self._send(call) for call in calls), is_for_all=True))
            case Sleep(duration_ms):
                self._timer(lambda: self._resume(None), duration_ms)
            case Milestone():
                fields = {"step": ask.step, "when": ask.when, "batch_id": ask.batch_id}
                self._trace.line(self.name, "reached", fields)
                self._later(lambda: self._resume(None))
                self.on_reached(ask)
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
                self._later(lambda: self._serve(ask), self.file_delay_us())

    def _serve(self, ask: FileAsk) -> None:
        outcome = self.serve_file(ask)
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

    def _give_up(self, wait: _Wait) -> None:
        # While the process was paused its time may have passed, and an answer have come before.
        if self._wait is wait:
            self._wait = None
            self._resume(None)

    def _abandon(self) -> None:
        self._wait = None
        self.close_unanswered()

    def close_unanswered(self) -> None:
        """The operation that asked has ended: close the connections that still owe it an answer."""
        self._open.clear()
        self._outcomes.clear()
        for node, link in list(self._links.items()):
            if link.sent or link.waiting:
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
        link = self._links[node] = _NodeLink(connection)
        api = APIS[ApiKey.API_VERSIONS]
        request = api.request(client_software_name="sim", client_software_version="1")
        connection.request(encode_request(request, API_VERSIONS_VERSION, 0, self.name)[4:])
        return link

    def _flush(self, node: int, link: _NodeLink) -> None:
        if link.versions is None:
            return
        waiting, link.waiting = link.waiting, []
        for flight in waiting:
            if self._links.get(node) is not link:
                self._settle(flight, Unanswered("connection lost", sent=False))
                continue
            api = api_of(flight.call.message)
            low, high = link.versions.get(api.key, (1, 0))
            wanted = api.version_max if flight.call.version_max is None else flight.call.version_max
            flight.version = min(api.version_max, high, wanted)
            if flight.version < max(api.version_min, low):
                self._settle(flight, Unanswered(f"no common version of {api.name}", sent=False))
                continue
            correlation_id = link.next_correlation_id
            link.next_correlation_id += 1
            frame = encode_request(flight.call.message, flight.version, correlation_id, self.name)
            flight.sent = True
            self.on_sent(flight.call.message)
            link.sent[correlation_id] = flight
            self.sent_counts[api.name] = self.sent_counts.get(api.name, 0) + 1
            link.connection.request(frame[4:])

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
        for flight in (*link.sent.values(), *link.waiting):
            self._settle(flight, Unanswered(reason, sent=flight.sent))

    # ------------------------------------------------------------------ ClientEnd

    def on_frame(self, connection: SimulatedConnection, frame: bytes) -> None:
        """An answer arrived."""
        self._guarded(lambda: self._on_frame(connection, frame))

    def on_closed(self, connection: SimulatedConnection) -> None:
        """The connection broke."""
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
        if link.versions is None:
            api = APIS[ApiKey.API_VERSIONS]
            answer = decode_response(api, API_VERSIONS_VERSION, frame, connection.decode)
            link.versions = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}
            self._flush(node, link)
            return
        flight = link.sent.pop(response_correlation_id(frame))
        api = api_of(flight.call.message)
        answer = decode_response(api, flight.version, frame, connection.decode)
        fields = {"version": flight.version, "error": _error_of(answer)}
        self._trace.line(self.name, f"answer-{api.key.name}", fields)
        self.on_reply(flight.call.message, answer, flight.version)
        self._settle(flight, Reply(answer, flight.version))


def _error_of(answer: Message) -> str:
    """The answer's top-level error, "-" where the message has none there."""
    code = getattr(answer, "error_code", None)
    return "-" if code is None else error_name(code)
