"""The blocking host of operations: sockets and deadlines.

Theory of operation. `run` resumes an operation with the outcome of what it asked for, until it
returns; `stream` also hands on what it gives. Requests are put on one connection per node in their
order, written without waiting in between, and answered in order; all connections are waited for at
once. A request without an answer by its deadline breaks its connection, and all that was on it is
`Unanswered`. A connection that owes an answer to an operation that has ended is closed.

What it does not do: decide. Retries, routing and what an outcome means are the operations'. It is
not safe for several threads, and forgets its sockets in a forked child.
"""

from __future__ import annotations

import itertools
import logging
import os
import selectors
import shlex
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from txnlog_kafka.errors import TxnLogError
from txnlog_kafka.host.addresses import parse_bootstrap_servers
from txnlog_kafka.host.admin import Administration
from txnlog_kafka.host.channel_builder import ChannelBuilder
from txnlog_kafka.host.connection import Connection
from txnlog_kafka.host.link import ConnectionFailed
from txnlog_kafka.host.pending import Pending
from txnlog_kafka.host.security import PLAINTEXT, Security
from txnlog_kafka.operations.effects import (
    ANOTHER_NODE,
    ANY_NODE,
    Ask,
    Call,
    Calls,
    Give,
    Milestone,
    Operation,
    Outcome,
    Receive,
    Reply,
    Send,
    Sleep,
    Stream,
    Ticket,
    Unanswered,
)
from txnlog_kafka.operations.fetch import FetchCursor, FetchedBatches, fetch_ahead
from txnlog_kafka.operations.session import Session, SessionConfig
from txnlog_kafka.wire.invariants import InvariantViolation, check
from txnlog_kafka.wire.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
IDLE_S_MAX = 540.0
"""Kafka's connections.max.idle.ms: a minute before brokers close what is idle."""


@dataclass(slots=True)
class Requests:
    """The requests of one operation that it has not received yet, by their tickets."""

    numbers: Iterator[int]
    """Of tickets, ascending over all operations of a client."""
    unreachable: dict[int, Unanswered] = field(default_factory=dict)
    """Nodes that are not tried again until the operation has waited for something."""
    _started: dict[Ticket, Pending | Unanswered] = field(default_factory=dict)

    def add(self, started: Pending | Unanswered) -> Ticket:
        """A ticket for a request."""
        ticket = Ticket(next(self.numbers))
        self._started[ticket] = started
        return ticket

    def take_first(self, tickets: frozenset[Ticket]) -> tuple[Ticket, Reply | Unanswered] | None:
        """The first of these that has an outcome; it is not known any more after this."""
        check(tickets <= self._started.keys(), "an outcome is received once, by its operation")
        for ticket in sorted(tickets):
            started = self._started[ticket]
            outcome = started if isinstance(started, Unanswered) else started.outcome
            if outcome is not None:
                del self._started[ticket]
                return ticket, outcome
        return None

    def unanswered(self) -> list[Pending]:
        """Those whose outcome is open."""
        pending = [p for p in self._started.values() if isinstance(p, Pending)]
        return [p for p in pending if p.outcome is None]


FETCH_BYTES = 8 * 1024 * 1024


class Client(Administration):
    """`client.run(operation(client.session, ...))`; `close` or a `with` block ends it."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "txnlog-spark",
        config: SessionConfig | None = None,
        security: Security = PLAINTEXT,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        idle_s_max: float | None = IDLE_S_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`bootstrap_servers` is "host:port,host:port"; connections are opened when needed.

        Certificates and keys of `security` are read here: what is wrong with them raises
        OptionError, as does a malformed address. A connection that was idle for longer than
        `idle_s_max` is closed before its next use, as somebody in between may have forgotten it;
        None keeps it. `clock` gives monotonic seconds.
        """
        self.bootstrap = parse_bootstrap_servers(bootstrap_servers)
        self._channels = ChannelBuilder(security)
        self.session = Session(_monotonic_ms, config or SessionConfig(), notice=logger.warning)
        self.session.bootstrap_servers = bootstrap_servers
        self.brokers_option = f"--bootstrap-server {shlex.quote(bootstrap_servers)}"
        """How a command that an error names reaches the same brokers."""
        if security.protocol != PLAINTEXT.protocol:
            self.brokers_option += " --command-config FILE"
        self._client_id = client_id
        self._connect_timeout_s = connect_timeout_s
        self._idle_s_max = idle_s_max
        self._clock = clock
        self._throttled_until_s: dict[tuple[str, int], float] = {}
        """Of brokers to which there is no connection at the moment."""
        self._connections: dict[tuple[str, int], Connection] = {}
        self._last_answered: tuple[str, int] | None = None
        self._turn = 0
        """Of the brokers, when another one is asked."""
        self._pid = os.getpid()
        self._ticket_numbers = itertools.count(1)

    def run(self, operation: Operation[T]) -> T:
        """Carry the operation to its end and return its result, or raise what it raised."""
        try:
            next(self._carry_on(operation))
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise InvariantViolation("an operation that gives items is for `stream`")

    def fetch_range(
        self,
        topic: str,
        partition: int,
        *,
        start_offset: int,
        end_offset: int,
        read_committed: bool = True,
        max_bytes: int = FETCH_BYTES,
    ) -> Iterator[FetchedBatches]:
        """All batches that hold offsets in [start_offset, end_offset), in order; none when empty.

        Raises OffsetOutOfRange, CorruptData, UnknownTopic, FatalError, DeadlineExceeded.
        """
        return self.fetch_rest(
            FetchCursor(
                TopicPartition(topic, partition),
                start_offset,
                end_offset,
                read_committed,
                max_bytes,
            )
        )

    def fetch_rest(
        self, cursor: FetchCursor, fetched: FetchedBatches | None = None
    ) -> Iterator[FetchedBatches]:
        """`fetched`, the cursor's last answer if it had one, and what follows up to its end."""
        return self.stream(fetch_ahead(self.session, cursor, fetched))

    def stream(self, operation: Stream[T]) -> Iterator[T]:
        """The items that the operation gives; it goes on when the next one is asked for.

        Other operations may run in between. Raises what the operation raises.
        """
        for item in self._carry_on(operation):
            given_s = self._clock()
            yield item
            away_s = self._clock() - given_s
            for connection in self._connections.values():
                connection.prolong(away_s)

    def _carry_on(
        self, operation: Generator[Ask | Give[Any], Outcome, T]
    ) -> Generator[Any, None, T]:
        """Perform what the operation asks for, give its items, and return its result."""
        self._forget_after_fork()
        requests = Requests(self._ticket_numbers)
        try:
            ask = next(operation)
            while True:
                if isinstance(ask, Give):
                    yield ask.item
                    ask = operation.send(None)
                else:
                    ask = self._resume(operation, ask, requests)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except TxnLogError as error:
            error.name_brokers(self.brokers_option)
            raise
        finally:
            operation.close()
            self._abandon(requests)

    def _resume(
        self, operation: Generator[Ask | Give[Any], Outcome, T], ask: Ask, requests: Requests
    ) -> Ask | Give[Any]:
        try:
            outcome = self._perform(ask, requests)
        except TxnLogError as error:
            return operation.throw(error)
        return operation.send(outcome)

    def _perform(self, ask: Ask, requests: Requests) -> Outcome:
        if isinstance(ask, Send):
            return self._send(ask.call, requests)
        if isinstance(ask, Receive):
            return self._receive(ask.tickets, ask.within_ms, requests)
        if isinstance(ask, Calls):
            sent = [self._send(call, requests) for call in ask.calls]
            received = [self._receive(frozenset({t}), None, requests) for t in sent]
            return tuple(each[1] for each in received if each is not None)
        if isinstance(ask, Sleep):
            time.sleep(ask.duration_ms / 1000)
        else:
            check(isinstance(ask, Milestone), "an operation asks for what a host can do", ask=ask)
        return None

    # ------------------------------------------------------------------ requests

    def _send(self, call: Call, requests: Requests) -> Ticket:
        """Put a request on its connection and write what the socket takes at once."""
        started = requests.unreachable.get(call.node) or self._start(call)
        outcome = started.outcome if isinstance(started, Pending) else started
        if isinstance(outcome, Unanswered) and outcome.retriable:
            requests.unreachable[call.node] = outcome
        return requests.add(started)

    def _receive(
        self, tickets: frozenset[Ticket], within_ms: int | None, requests: Requests
    ) -> tuple[Ticket, Reply | Unanswered] | None:
        """The outcome of the oldest of these requests that has one, waited for."""
        requests.unreachable.clear()
        until_s = None if within_ms is None else self._clock() + within_ms / 1000
        check(bool(tickets) or until_s is not None, "there is something to wait for")
        while True:
            received = requests.take_first(tickets)
            if received is not None or (until_s is not None and self._clock() >= until_s):
                return received
            self._wait(until_s)

    def _abandon(self, requests: Requests) -> None:
        """Close the connections that still owe an answer to an operation that has ended."""
        unanswered = requests.unanswered()
        for pending in unanswered:
            # Nobody asks any more: it goes nowhere else.
            pending.addresses.clear()
        for connection in list(self._connections.values()) if unanswered else ():
            if connection.owes(unanswered):
                self._drop(connection, ConnectionFailed("the operation that asked has ended"))

    def _start(self, call: Call) -> Pending | Unanswered:
        self._close_idle()
        addresses = deque(self._addresses(call.node))
        if not addresses:
            return Unanswered(f"the address of node {call.node} is not known", sent=False)
        pending = Pending(call, self._clock() + call.timeout_ms / 1000, addresses)
        self._route(pending)
        return pending

    def _route(self, pending: Pending) -> None:
        """Put a request on a connection to the next of its addresses; without one it has failed.

        A connection that fails before it took the request comes back to here.
        """
        while pending.addresses and (not pending.failures or self._clock() < pending.deadline_s):
            try:
                connection = self._connection_to(pending.addresses.popleft(), pending.deadline_s)
            except ConnectionFailed as error:
                pending.failures.append(error)
                continue
            connection.ask(pending)
            self._guard(connection, connection.on_writable)
            return
        failures = pending.failures
        pending.outcome = Unanswered(
            "; ".join(str(each) for each in failures),
            sent=False,
            retriable=not all(each.final for each in failures),
            is_security=any(each.is_security for each in failures),
        )

    def _wait(self, until_s: float | None = None) -> None:
        """Wait for the next socket or deadline, and let the connections move on."""
        with selectors.DefaultSelector() as selector:
            wakes = [] if until_s is None else [until_s]
            for connection in self._connections.values():
                wake_s = connection.wakes_at_s
                if wake_s is None:
                    continue
                wakes.append(wake_s)
                events = selectors.EVENT_READ
                if connection.wants_write:
                    events |= selectors.EVENT_WRITE
                selector.register(connection.socket, events, connection)
                if connection.background_call is not None:
                    selector.register(connection.background_call, selectors.EVENT_READ, connection)
            timeout_s = max(0.0, min(wakes, default=0.0) - self._clock())
            for key, events in selector.select(timeout_s):
                connection = key.data
                if events & selectors.EVENT_WRITE:
                    self._guard(connection, connection.on_writable)
                if events & selectors.EVENT_READ:
                    self._guard(connection, connection.on_readable)
                    if connection.is_ready and connection.address in self._connections:
                        self._last_answered = connection.address
        for connection in list(self._connections.values()):
            self._guard(connection, connection.check_time)

    def _guard(self, connection: Connection, go_on: Callable[[], None]) -> None:
        """Let one connection move on; drop it when it fails."""
        if self._connections.get(connection.address) is not connection:
            return
        try:
            go_on()
        except ConnectionFailed as error:
            self._drop(connection, error)

    def _drop(self, connection: Connection, failure: ConnectionFailed) -> None:
        """Close a connection; what was not sent on it goes where else it may."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        if self._last_answered == connection.address:
            self._last_answered = None
        if connection.throttled_until_s > self._clock():
            self._throttled_until_s[connection.address] = connection.throttled_until_s
        unsent = connection.take_unsent()
        connection.close(str(failure))
        for pending in unsent:
            pending.failures.append(failure)
            self._route(pending)

    def _close_idle(self) -> None:
        if self._idle_s_max is None:
            return
        for connection in list(self._connections.values()):
            if connection.idle_s() > self._idle_s_max:
                self._drop(connection, ConnectionFailed(f"{connection.name} was idle for too long"))

    # ------------------------------------------------------------------ connections

    def _addresses(self, node: int) -> list[tuple[str, int]]:
        nodes = self.session.cluster.nodes
        if node not in (ANY_NODE, ANOTHER_NODE):
            return [nodes[node]] if node in nodes else []
        last = [] if self._last_answered is None else [self._last_answered]
        if node == ANOTHER_NODE and nodes:
            self._turn += 1
            in_turn = deque(sorted(nodes.values()))
            in_turn.rotate(-self._turn)
            others = [address for address in in_turn if address not in last]
            return list(dict.fromkeys((*others, *last, *self.bootstrap)))
        known = sorted(a for a in nodes.values() if a in self._connections)
        return list(dict.fromkeys((*last, *known, *self.bootstrap, *sorted(nodes.values()))))

    def _connection_to(self, address: tuple[str, int], deadline_s: float) -> Connection:
        """One that may still be opening. Raises ConnectionFailed."""
        connection = self._connections.get(address)
        if connection is not None and connection.is_stale:
            self._drop(connection, ConnectionFailed(f"{connection.name} closed the connection"))
            connection = None
        if connection is None:
            connection = self._connections[address] = Connection(
                address,
                self._client_id,
                deadline_s=deadline_s,
                connect_timeout_s=self._connect_timeout_s,
                clock=self._clock,
                channels=self._channels,
                throttled_until_s=self._throttled_until_s.pop(address, 0.0),
            )
        return connection

    def _forget_after_fork(self) -> None:
        """A forked child shares the sockets with its parent: it must not speak on them."""
        if self._pid != os.getpid():
            for connection in self._connections.values():
                connection.close("the process was forked")
            self._connections.clear()
            self._last_answered = None
            self._pid = os.getpid()

    def close(self) -> None:
        """Close all connections; the client may be used again."""
        self._forget_after_fork()
        for connection in list(self._connections.values()):
            for pending in connection.take_unsent():
                pending.fail("the client was closed")
            self._drop(connection, ConnectionFailed("the client was closed"))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
