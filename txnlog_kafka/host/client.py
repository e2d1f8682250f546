"""Blocking host of operations: sockets and deadlines.

Theory of operation. `run` resumes an operation with the outcome of each ask, until it returns;
`stream` also hands on the items that it gives. Requests are put on one connection per node in their
order, written without waiting in between, and answered in order. The client waits for all
connections at once. A request without an answer by its deadline breaks its connection, and all
requests on it are `Unanswered`. A connection that owes an answer to an operation that has ended is
closed.

The client decides nothing: retries, routing and the meaning of an outcome are the operations'. It
is not safe for several threads, and forgets its sockets in a forked child.
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
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from txnlog_kafka.errors import TxnLogError
from txnlog_kafka.host.addresses import parse_bootstrap_servers
from txnlog_kafka.host.admin import Administration
from txnlog_kafka.host.channel_builder import ChannelBuilder
from txnlog_kafka.host.connection import Connection
from txnlog_kafka.host.failures import ConnectionFailed
from txnlog_kafka.host.pending import Pending
from txnlog_kafka.host.security import PLAINTEXT, Security
from txnlog_kafka.operations.effects import (
    ANOTHER_NODE,
    ANY_NODE,
    Ask,
    Call,
    Calls,
    Failpoint,
    Give,
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
from txnlog_kafka.operations.fetch import fetch_ahead
from txnlog_kafka.operations.fetch_cursor import FetchCursor, FetchedBatches
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
    """Requests of one operation that it has not received yet, by their tickets."""

    numbers: Iterator[int]
    """Numbers of tickets, ascending over all operations of a client."""
    unreachable: dict[int, Unanswered] = field(default_factory=dict)
    """Nodes that are not tried again until the operation has waited for an outcome."""
    _started: dict[Ticket, Pending | Unanswered] = field(default_factory=dict)

    def add(self, started: Pending | Unanswered) -> Ticket:
        """Return a ticket for a request."""
        ticket = Ticket(next(self.numbers))
        self._started[ticket] = started
        return ticket

    def take_first(self, tickets: frozenset[Ticket]) -> tuple[Ticket, Reply | Unanswered] | None:
        """Remove and return the first of these tickets that has an outcome; None without one."""
        check(tickets <= self._started.keys(), "an outcome is received once, by its operation")
        for ticket in sorted(tickets):
            started = self._started[ticket]
            outcome = started if isinstance(started, Unanswered) else started.outcome
            if outcome is not None:
                del self._started[ticket]
                return ticket, outcome
        return None

    def unanswered(self) -> list[Pending]:
        """Return the requests whose outcome is open."""
        pending = [p for p in self._started.values() if isinstance(p, Pending)]
        return [p for p in pending if p.outcome is None]


FETCH_BYTES = 8 * 1024 * 1024


class Client(Administration):
    """Client of a cluster.

    `client.run(operation(client.session, ...))` runs an operation; `close` or a `with` block ends
    the client.
    """

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

        Certificates and keys of `security` are read here: an error in them raises OptionError, as
        does a malformed address. A connection that was idle for longer than `idle_s_max` is closed
        before its next use, because a firewall in between may have forgotten it; None keeps it.
        `clock` returns monotonic seconds.
        """
        self.bootstrap = parse_bootstrap_servers(bootstrap_servers)
        self._channels = ChannelBuilder(security)
        self.session = Session(_monotonic_ms, config or SessionConfig(), notice=logger.warning)
        self.session.bootstrap_servers = bootstrap_servers
        self.brokers_option = f"--bootstrap-server {shlex.quote(bootstrap_servers)}"
        """Option by which a command that an error names reaches the same brokers."""
        if security.protocol != PLAINTEXT.protocol:
            self.brokers_option += " --command-config FILE"
        self._client_id = client_id
        self._connect_timeout_s = connect_timeout_s
        self._idle_s_max = idle_s_max
        self._clock = clock
        self._throttled_until_s: dict[tuple[str, int], float] = {}
        """End of the throttle, for brokers without a connection at the moment."""
        self._connections: dict[tuple[str, int], Connection] = {}
        self._last_answered: tuple[str, int] | None = None
        self._turn = 0
        """Number of times that another broker was asked; rotates the brokers."""
        self._pid = os.getpid()
        self._ticket_numbers = itertools.count(1)

    def run(self, operation: Operation[T]) -> T:
        """Carry the operation to its end and return its result, or raise its error."""
        try:
            next(self._run_operation(operation))
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
        """Yield all batches that hold offsets in [start_offset, end_offset), in order.

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
        """Yield `fetched`, the cursor's last answer if it had one, and all later batches up to its
        end."""
        return self.stream(fetch_ahead(self.session, cursor, fetched))

    def stream(self, operation: Stream[T]) -> Iterator[T]:
        """Yield the items that the operation gives; it goes on when the next item is asked for.

        Other operations may run in between. Raises the operation's error.
        """
        for item in self._run_operation(operation):
            given_s = self._clock()
            yield item
            away_s = self._clock() - given_s
            for connection in self._connections.values():
                connection.prolong(away_s)

    def _run_operation(
        self, operation: Generator[Ask | Give[Any], Outcome, T]
    ) -> Generator[Any, None, T]:
        """Perform the asks of the operation, yield its items, and return its result."""
        self._forget_after_fork()
        requests = Requests(self._ticket_numbers)
        try:
            ask = next(operation)
            while True:
                if isinstance(ask, Give):
                    yield ask.item
                    ask = operation.send(None)
                else:
                    ask = self._resume_operation(operation, ask, requests)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except TxnLogError as error:
            error.name_brokers(self.brokers_option)
            raise
        finally:
            operation.close()
            self._abandon_requests(requests)

    def _resume_operation(
        self, operation: Generator[Ask | Give[Any], Outcome, T], ask: Ask, requests: Requests
    ) -> Ask | Give[Any]:
        try:
            outcome = self._perform_ask(ask, requests)
        except TxnLogError as error:
            return operation.throw(error)
        return operation.send(outcome)

    def _perform_ask(self, ask: Ask, requests: Requests) -> Outcome:
        if isinstance(ask, Send):
            return self._send_call(ask.call, requests)
        if isinstance(ask, Receive):
            return self._receive_outcome(ask.tickets, ask.within_ms, requests)
        if isinstance(ask, Calls):
            sent = [self._send_call(call, requests) for call in ask.calls]
            received = [self._receive_outcome(frozenset({t}), None, requests) for t in sent]
            return tuple(each[1] for each in received if each is not None)
        if isinstance(ask, Sleep):
            time.sleep(ask.duration_ms / 1000)
        else:
            check(isinstance(ask, Failpoint), "an operation asks for what a host can do", ask=ask)
        return None

    # ------------------------------------------------------------------ requests

    def _send_call(self, call: Call, requests: Requests) -> Ticket:
        """Put a request on its connection and write as much as the socket takes at once."""
        started = requests.unreachable.get(call.node) or self._start_call(call)
        outcome = started.outcome if isinstance(started, Pending) else started
        if isinstance(outcome, Unanswered) and outcome.retriable:
            requests.unreachable[call.node] = outcome
        return requests.add(started)

    def _receive_outcome(
        self, tickets: frozenset[Ticket], within_ms: int | None, requests: Requests
    ) -> tuple[Ticket, Reply | Unanswered] | None:
        """Wait for the oldest of these requests that has an outcome; return it with its outcome."""
        requests.unreachable.clear()
        until_s = None if within_ms is None else self._clock() + within_ms / 1000
        check(bool(tickets) or until_s is not None, "there is something to wait for")
        while True:
            received = requests.take_first(tickets)
            if received is not None or (until_s is not None and self._clock() >= until_s):
                return received
            self._wait_for_sockets(until_s)

    def _abandon_requests(self, requests: Requests) -> None:
        """Close the connections that still owe an answer to an operation that has ended."""
        unanswered = requests.unanswered()
        for pending in unanswered:
            # Nobody asks any more: it goes nowhere else.
            pending.addresses.clear()
        for connection in list(self._connections.values()) if unanswered else ():
            if connection.owes(unanswered):
                self._drop_connection(
                    connection, ConnectionFailed("the operation that asked has ended")
                )

    def _start_call(self, call: Call) -> Pending | Unanswered:
        self._close_idle()
        addresses = deque(self._addresses(call.node))
        if not addresses:
            return Unanswered(f"the address of node {call.node} is not known", sent=False)
        pending = Pending(call, self._clock() + call.timeout_ms / 1000, addresses)
        self._route_request(pending)
        return pending

    def _route_request(self, pending: Pending) -> None:
        """Put a request on a connection to the next of its addresses; fail it when no address is
        left.

        A connection that fails before it took the request comes back to here.
        """
        while pending.addresses and (not pending.failures or self._clock() < pending.deadline_s):
            try:
                connection = self._connection_to(pending.addresses.popleft(), pending.deadline_s)
            except ConnectionFailed as error:
                pending.failures.append(error)
                continue
            connection.ask(pending)
            self._guard_connection(connection, connection.on_writable)
            return
        failures = pending.failures
        pending.outcome = Unanswered(
            "; ".join(str(each) for each in failures),
            sent=False,
            retriable=not all(each.final for each in failures),
            is_security=any(each.is_security for each in failures),
        )

    def _wait_for_sockets(self, until_s: float | None = None) -> None:
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
                    self._guard_connection(connection, connection.on_writable)
                if events & selectors.EVENT_READ:
                    self._guard_connection(connection, connection.on_readable)
                    if connection.is_ready and connection.address in self._connections:
                        self._last_answered = connection.address
        for connection in list(self._connections.values()):
            self._guard_connection(connection, connection.check_time)

    def _guard_connection(self, connection: Connection, go_on: Callable[[], None]) -> None:
        """Let one connection move on; drop it when it fails."""
        if self._connections.get(connection.address) is not connection:
            return
        try:
            go_on()
        except ConnectionFailed as error:
            self._drop_connection(connection, error)

    def _drop_connection(self, connection: Connection, failure: ConnectionFailed) -> None:
        """Close a connection; its unsent requests go to their next addresses."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        if self._last_answered == connection.address:
            self._last_answered = None
        if connection.is_misrouted:
            # The addresses are of another time: the bootstrap servers know the new ones.
            self.session.cluster = replace(self.session.cluster, nodes={})
        if connection.throttled_until_s > self._clock():
            self._throttled_until_s[connection.address] = connection.throttled_until_s
        unsent = connection.take_unsent()
        connection.close(str(failure))
        for pending in unsent:
            pending.failures.append(failure)
            self._route_request(pending)

    def _close_idle(self) -> None:
        if self._idle_s_max is None:
            return
        for connection in list(self._connections.values()):
            if connection.idle_s() > self._idle_s_max:
                self._drop_connection(
                    connection, ConnectionFailed(f"{connection.name} was idle for too long")
                )

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
        """Return a connection, which may still be opening. Raises ConnectionFailed."""
        connection = self._connections.get(address)
        if connection is not None and connection.is_stale:
            self._drop_connection(
                connection, ConnectionFailed(f"{connection.name} closed the connection")
            )
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
                broker=self._broker_at(address),
            )
        return connection

    def _broker_at(self, address: tuple[str, int]) -> tuple[str, int] | None:
        """Return cluster id and node id of the broker that has this address as far as is known."""
        cluster, config = self.session.cluster, self.session.config
        nodes = [node for node, each in cluster.nodes.items() if each == address]
        if not config.names_broker or cluster.cluster_id is None or len(nodes) != 1:
            return None
        return cluster.cluster_id, nodes[0]

    def _forget_after_fork(self) -> None:
        """Close the sockets in a forked child: its parent has them too, and writes to them."""
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
            self._drop_connection(connection, ConnectionFailed("the client was closed"))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
