"""The blocking host of operations: sockets, deadlines, failpoints.

Theory of operation. `run` resumes an operation with the outcome of what it asked for, until it
returns. `Calls` are put on one connection per node in their order, written without waiting in
between, and answered in order; all connections are waited for at once. A request without an answer
by its deadline breaks its connection, and all that was on it is `Unanswered`.

What it does not do: decide. Retries, routing and what an outcome means are the operations'. It is
not safe for several threads, and forgets its sockets in a forked child.
"""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from txnlog_spark import failpoints
from txnlog_spark.client.addresses import parse_bootstrap_servers, refuse_security
from txnlog_spark.client.connection import (
    Connection,
    ConnectionFailed,
    Pending,
)
from txnlog_spark.client.strangers import SILENT
from txnlog_spark.errors import FailpointRaised
from txnlog_spark.failpoints import Interference
from txnlog_spark.protocol.effects import (
    ANY_NODE,
    Ask,
    Call,
    Calls,
    Operation,
    Outcome,
    Reached,
    Reply,
    Sleep,
    Unanswered,
)
from txnlog_spark.protocol.metadata import api_versions_request
from txnlog_spark.protocol.session import Session, SessionConfig
from txnlog_spark.wire.errors import ErrorCode, error_name
from txnlog_spark.wire.invariants import InvariantViolation, check
from txnlog_spark.wire.messages import APIS, ApiKey

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
IDLE_S_MAX = 540.0
"""Kafka's connections.max.idle.ms: a minute before brokers close what is idle."""


class Client:
    """`client.run(operation(client.session, ...))`; `close` or a `with` block ends it."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "txnlog-spark",
        config: SessionConfig | None = None,
        security: Mapping[str, str] | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        idle_s_max: float | None = IDLE_S_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`bootstrap_servers` is "host:port,host:port"; connections are opened when needed.

        `security` are options of `kafka.*` without that prefix; anything but
        security.protocol=PLAINTEXT raises OptionError, as does a malformed address. A connection
        that was idle for longer than `idle_s_max` is closed before its next use, as somebody in
        between may have forgotten it; None keeps it. `clock` gives monotonic seconds.
        """
        self.bootstrap = parse_bootstrap_servers(bootstrap_servers)
        refuse_security(security or {})
        self.session = Session(_monotonic_ms, config or SessionConfig(), notice=logger.warning)
        self._client_id = client_id
        self._connect_timeout_s = connect_timeout_s
        self._idle_s_max = idle_s_max
        self._clock = clock
        self._throttled_until_s: dict[tuple[str, int], float] = {}
        """Of brokers to which there is no connection at the moment."""
        self._connections: dict[tuple[str, int], Connection] = {}
        self._last_answered: tuple[str, int] | None = None
        self._pid = os.getpid()
        self._interference = Interference.NONE

    def run(self, operation: Operation[T]) -> T:
        """Carry the operation to its end and return its result, or raise what it raised."""
        self._forget_after_fork()
        try:
            ask = next(operation)
            while True:
                ask = self._resume(operation, ask)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            operation.close()

    def _resume(self, operation: Operation[T], ask: Ask) -> Ask:
        try:
            outcome = self._perform(ask)
        except FailpointRaised as error:
            return operation.throw(error)
        return operation.send(outcome)

    def _perform(self, ask: Ask) -> Outcome:
        if isinstance(ask, Calls):
            return self._perform_calls(ask.calls)
        if isinstance(ask, Sleep):
            time.sleep(ask.duration_ms / 1000)
            return None
        if not isinstance(ask, Reached):
            raise InvariantViolation(f"files are not the client's: {ask}")
        self._interference = failpoints.reached(ask.step, ask.when, ask.batch_id)
        return None

    # ------------------------------------------------------------------ calls

    def _perform_calls(self, calls: tuple[Call, ...]) -> tuple[Reply | Unanswered, ...]:
        interference, self._interference = self._interference, Interference.NONE
        if interference is Interference.DROP_REQUEST:
            return tuple(Unanswered("failpoint: not sent", sent=True) for _ in calls)
        started = self.start_calls(calls)
        if interference is Interference.KILL_ON_SEND:
            self._write_all()
            failpoints.kill_driver()
        outcomes = self.finish_calls(started)
        if interference is Interference.DROP_RESPONSE:
            return tuple(Unanswered("failpoint: answer dropped", sent=True) for _ in calls)
        return outcomes

    def start_calls(self, calls: tuple[Call, ...]) -> list[Pending | Unanswered]:
        """Put the calls on their connections and write what the sockets take at once."""
        self._close_idle()
        started: list[Pending | Unanswered] = []
        broken: dict[int, Unanswered] = {}
        for call in calls:
            if call.node in broken:
                started.append(broken[call.node])
                continue
            result = self._start(call)
            if isinstance(result, Unanswered) and result.retriable:
                broken[call.node] = result
            started.append(result)
        for connection in list(self._connections.values()):
            self._guard(connection, writing=True)
        return started

    def finish_calls(self, started: list[Pending | Unanswered]) -> tuple[Reply | Unanswered, ...]:
        """Wait until every started call has its outcome."""
        waiting = [p for p in started if isinstance(p, Pending)]
        while any(p.outcome is None for p in waiting):
            self._wait()
        return tuple(_outcome_of(p) for p in started)

    def _start(self, call: Call) -> Pending | Unanswered:
        deadline_s = self._clock() + call.timeout_ms / 1000
        connection = self._connect(call.node, deadline_s)
        if isinstance(connection, Unanswered):
            return connection
        negotiated = connection.negotiate(call)
        if isinstance(negotiated, Unanswered):
            return negotiated
        api, version = negotiated
        return connection.send(api, version, call.message, deadline_s=deadline_s)

    def _write_all(self) -> None:
        while any(c.wants_write for c in self._connections.values()):
            self._wait()

    def _wait(self) -> None:
        """Wait for the next socket or deadline, and let the connections move on."""
        with selectors.DefaultSelector() as selector:
            wakes = []
            for connection in self._connections.values():
                wake_s = connection.wakes_at_s
                if wake_s is None:
                    continue
                wakes.append(wake_s)
                events = selectors.EVENT_READ
                if connection.wants_write:
                    events |= selectors.EVENT_WRITE
                selector.register(connection.socket, events, connection)
            timeout_s = max(0.0, min(wakes, default=0.0) - self._clock())
            for key, events in selector.select(timeout_s):
                if events & selectors.EVENT_WRITE:
                    self._guard(key.data, writing=True)
                if events & selectors.EVENT_READ:
                    self._guard(key.data, writing=False)
        now_s = self._clock()
        for connection in list(self._connections.values()):
            if connection.expired(now_s):
                self._drop(connection, _too_late(connection))

    def _guard(self, connection: Connection, *, writing: bool) -> None:
        """Let one connection move on; drop it when it fails."""
        if self._connections.get(connection.address) is not connection:
            return
        try:
            if writing:
                connection.on_writable()
            else:
                connection.on_readable()
                self._last_answered = connection.address
        except ConnectionFailed as error:
            self._drop(connection, str(error))

    def _drop(self, connection: Connection, reason: str) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        if self._last_answered == connection.address:
            self._last_answered = None
        if connection.throttled_until_s > self._clock():
            self._throttled_until_s[connection.address] = connection.throttled_until_s
        connection.close(reason)

    def _close_idle(self) -> None:
        if self._idle_s_max is None:
            return
        for connection in list(self._connections.values()):
            if connection.idle_s() > self._idle_s_max:
                self._drop(connection, f"{connection.name} was idle for too long")

    # ------------------------------------------------------------------ connections

    def _connect(self, node: int, deadline_s: float) -> Connection | Unanswered:
        """A usable connection to the node; for ANY_NODE to whichever broker can be had."""
        reasons: list[str] = []
        final = True
        for address in self._addresses(node):
            try:
                return self._connection_to(address, deadline_s)
            except ConnectionFailed as error:
                reasons.append(str(error))
                final = final and error.final
        if not reasons:
            return Unanswered(f"the address of node {node} is not known", sent=False)
        return Unanswered("; ".join(reasons), sent=False, retriable=not final)

    def _addresses(self, node: int) -> list[tuple[str, int]]:
        nodes = self.session.cluster.nodes
        if node != ANY_NODE:
            return [nodes[node]] if node in nodes else []
        last = [] if self._last_answered is None else [self._last_answered]
        known = sorted(a for a in nodes.values() if a in self._connections)
        return list(dict.fromkeys((*last, *known, *self.bootstrap, *sorted(nodes.values()))))

    def _connection_to(self, address: tuple[str, int], deadline_s: float) -> Connection:
        connection = self._connections.get(address)
        if connection is not None and connection.is_stale:
            self._drop(connection, f"{connection.name} closed the connection")
            connection = None
        if connection is not None:
            return connection
        connection = Connection(
            address,
            self._client_id,
            connect_timeout_s=min(self._connect_timeout_s, max(0.001, deadline_s - self._clock())),
            clock=self._clock,
            throttled_until_s=self._throttled_until_s.pop(address, 0.0),
        )
        self._connections[address] = connection
        self._ask_versions(connection, deadline_s)
        return connection

    def _ask_versions(self, connection: Connection, deadline_s: float) -> None:
        """ApiVersions, again at the broker's newest version if it does not know ours."""
        api = APIS[ApiKey.API_VERSIONS]
        version = api.version_max
        code = int(ErrorCode.UNSUPPORTED_VERSION)
        for _ in range(2):
            pending = connection.send(api, version, api_versions_request(), deadline_s=deadline_s)
            (outcome,) = self.finish_calls([pending])
            if isinstance(outcome, Unanswered):
                silent = SILENT if outcome.reason == _too_late(connection) else ""
                raise ConnectionFailed(
                    f"ApiVersions: {outcome.reason}{silent}",
                    final=connection.stranger is not None,
                )
            connection.on_versions(outcome.message)
            code = outcome.message.error_code
            if code == ErrorCode.NONE:
                return
            if code != ErrorCode.UNSUPPORTED_VERSION:
                break
            version = min(connection.versions.get(api.key, (0, 0))[1], api.version_max)
        self._drop(connection, "ApiVersions was refused")
        raise ConnectionFailed(f"{connection.name} refused ApiVersions: {error_name(code)}")

    def _forget_after_fork(self) -> None:
        """A forked child shares the sockets with its parent: it must not speak on them."""
        if self._pid != os.getpid():
            for connection in self._connections.values():
                connection.socket.close()
            self._connections.clear()
            self._last_answered = None
            self._pid = os.getpid()

    def close(self) -> None:
        """Close all connections; the client may be used again."""
        self._forget_after_fork()
        for connection in list(self._connections.values()):
            self._drop(connection, "the client was closed")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _too_late(connection: Connection) -> str:
    return f"{connection.name} did not answer in time"


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _outcome_of(started: Pending | Unanswered) -> Reply | Unanswered:
    if isinstance(started, Unanswered):
        return started
    check(started.outcome is not None, "a finished call has an outcome")
    return started.outcome or Unanswered("", sent=True)
