"""Requests to other processes, brokers and the registry: performs `Step.sends`.

Theory of operation: a peer is connected to at the first request for it, and again at the first
request after a loss. Requests wait here while their connection is being made, or while the peer
reads too slowly; answers come in the order of the requests (`wire/conversation.py`). Any end of
a connection (refused, broken, no address, bytes that are not an answer, an answer that stays away)
loses the peer: all of its connections are dropped, and the core gets one PeerLost if it waits for
an answer.

A peer takes one request of a connection at a time, and some requests wait there for others: so each
kind has a connection of its own (`core/peers.py`).

A connection to a broker may begin with TLS and a login (`server/peer_security.py`). A login that
ends is renewed before that (KIP-368): from then on requests wait, and when the earlier requests are
answered the login begins again.

Rules for this file: nothing here holds up the loop. After a loss a peer is left alone for
RECONNECT_SECONDS, so that a core which asks again at once does not keep the process busy.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from broker_sim.apis.frames import encode_peer_request
from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import PeerAnswer, PeerLost, Send
from broker_sim.core.endpoint import Endpoint
from broker_sim.core.peers import ConnectionKind, connection_kind
from broker_sim.server.client_connection import WRITE_BUFFER_HIGH_BYTES
from broker_sim.server.peer_security import PeerSecurity, PeerUser, read_peer_security
from txnlog_kafka.wire.conversation import Asked, Conversation
from txnlog_kafka.wire.framing import Frame, FrameDecoder, MalformedFrame
from txnlog_kafka.wire.login import Login, LoginRefused
from txnlog_kafka.wire.messages import Message, api_of

RECONNECT_SECONDS = 0.05
"""Kafka's default of reconnect.backoff.ms."""
REQUESTS_MAX = 10_000
"""Requests to one peer that are not answered; the core's own limits are far below."""

_log = logging.getLogger(__name__)


class PeerConnections:
    """Connections of one broker to all its peers; used inside a running event loop."""

    def __init__(
        self,
        submit: Callable[[PeerAnswer | PeerLost, int], None],
        endpoint_of: Callable[[int], Endpoint | None],
        config: BrokerConfig,
    ) -> None:
        """`submit` hands the core an input of so many bytes. `endpoint_of` returns the endpoint of
        a peer; None if the core does not know it now.

        Raises ConfigError for invalid keys and logins of the inter-broker listener.
        """
        self._shared = _Shared(
            submit,
            endpoint_of,
            config.integer("socket.connection.setup.timeout.ms") / 1000,
            config.integer("replica.socket.timeout.ms") / 1000,
            f"broker-{config.integer('node.id')}",
            read_peer_security(config),
        )
        self._peers: dict[int, _Peer] = {}

    def send(self, request: Send) -> None:
        """Send a request; its answer, or the loss of the peer, is submitted later, never within
        this call."""
        peer = self._peers.get(request.peer)
        if peer is None:
            peer = self._peers[request.peer] = _Peer(request.peer, self._shared)
        peer.send(request)

    def close(self, *, abort: bool = False) -> None:
        """Drop all connections and report no loss: the core that asked is gone, or stops. The bytes
        that the sockets have still go, unless `abort`."""
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.close(abort)


@dataclass(frozen=True, slots=True)
class _Shared:
    """Ways to the host, and limits, of every connection."""

    submit: Callable[[PeerAnswer | PeerLost, int], None]
    endpoint_of: Callable[[int], Endpoint | None]
    connect_seconds_max: float
    answer_seconds_max: float
    client_id: str
    security: PeerSecurity
    """Security of connections to brokers; connections to the registry have no security."""


class _Peer:
    """Peer and its connections, by the kind of their requests."""

    def __init__(self, number: int, shared: _Shared) -> None:
        self.number = number
        self.shared = shared
        self._links: dict[ConnectionKind, _Link] = {}
        self._not_before = 0.0
        """Earliest time of the next connection, by the loop's clock."""
        self._is_away = False
        """True if the operator has been warned."""

    @property
    def name(self) -> str:
        return f"broker {self.number}" if self.is_broker else "the registry"

    @property
    def is_broker(self) -> bool:
        """True if it is a broker and not the registry."""
        return self.number >= 0

    @property
    def user(self) -> PeerUser | None:
        """User to log in as; None if a connection needs no login."""
        return self.shared.security.user if self.is_broker else None

    def send(self, request: Send) -> None:
        kind = connection_kind(request.message)
        link = self._links.get(kind)
        if link is None:
            link = self._links[kind] = _Link(self)
            link.open(self._not_before)
        link.send(request)

    def connected(self) -> None:
        """Note that a connection is open."""
        if self._is_away:
            _log.warning("connected to %s again", self.name)
        self._is_away = False

    def lost(self, reason: str) -> None:
        """Drop all connections, because one of them ended."""
        links, self._links = self._links, {}
        if not any(link.waits for link in links.values()):
            level = logging.DEBUG  # an idle one, which either side may close
        else:
            level = logging.DEBUG if self._is_away else logging.WARNING
            self._is_away = True
            self.shared.submit(PeerLost(self.number), 0)
        _log.log(level, "lost %s: %s", self.name, reason)
        self._not_before = asyncio.get_running_loop().time() + RECONNECT_SECONDS
        for link in links.values():
            link.close(abort=True)

    def close(self, abort: bool) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            link.close(abort)


@dataclass(slots=True, eq=False)
class _Asked(Asked):
    """Request that was handed to the socket."""

    deadline: float


class _Link(asyncio.Protocol):
    """Connection, from the attempt to make it; it is not used after it has ended."""

    def __init__(self, peer: _Peer) -> None:
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()
        self._unsent: deque[Send] = deque()
        self._conversation = Conversation[_Asked](peer.shared.client_id)
        self._unanswered = self._conversation.unanswered
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._overdue: asyncio.TimerHandle | None = None
        self._writable = True
        self._closed = False
        self._login: Login | None = None
        """Login that is going on."""
        self._renews_at = math.inf if peer.user is None else 0.0
        """Time from which requests wait for a new login, by the loop's clock."""

    @property
    def waits(self) -> bool:
        """True if it waits for an answer."""
        return bool(self._unsent or self._unanswered)

    def open(self, not_before: float) -> None:
        """Connect, in the loop's next turn or later."""
        self._connecting = self._loop.create_task(self._connect(not_before - self._loop.time()))

    def send(self, request: Send) -> None:
        """Send a request when the connection is there and the peer reads."""
        self._unsent.append(request)
        if len(self._unsent) + len(self._unanswered) > REQUESTS_MAX:
            self._fail(f"it has not answered {REQUESTS_MAX} requests")
            return
        self._write()

    def close(self, abort: bool) -> None:
        """Close the connection; it reports no loss any more."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._overdue is not None:
            self._overdue.cancel()
        if self._transport is not None:
            if abort:
                self._transport.abort()
            else:
                self._transport.close()

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with the connected socket."""
        self._transport = cast(asyncio.Transport, transport)
        if self._closed:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._peer.user is None:
            self._peer.connected()
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        """Lose the peer: the other side, or `close`, ended the connection."""
        self._fail("it has closed the connection" if exc is None else str(exc))

    def data_received(self, data: bytes) -> None:
        """Take a part of answers."""
        if self._closed:
            return
        try:
            for frame in self._decoder.feed(data):
                self._take_answer(frame)
        except (MalformedFrame, LoginRefused) as error:
            self._fail(str(error))

    def pause_writing(self) -> None:
        """Stop sending: the peer reads too slowly."""
        self._writable = False

    def resume_writing(self) -> None:
        """Go on: the peer has caught up."""
        self._writable = True
        self._write()

    # ------------------------------------------------------------------ details

    async def _connect(self, delay_seconds: float) -> None:
        peer = self._peer
        try:
            if delay_seconds > 0:
                await asyncio.sleep(delay_seconds)
            endpoint = peer.shared.endpoint_of(peer.number)
            if endpoint is None:
                self._fail("its address is not known")
                return
            async with asyncio.timeout(peer.shared.connect_seconds_max):
                await self._loop.create_connection(
                    lambda: self,
                    endpoint.host,
                    endpoint.port,
                    ssl=peer.shared.security.context if peer.is_broker else None,
                )
        except TimeoutError:
            self._fail(f"no connection within {peer.shared.connect_seconds_max:g} s")
        except (OSError, UnicodeError) as error:  # the latter for what cannot be a host name
            self._fail(str(error))

    def _fail(self, reason: str) -> None:
        if not self._closed:
            self._peer.lost(reason)

    def _write(self) -> None:
        transport = self._transport
        if transport is None or self._closed or not self._is_logged_in(transport):
            return
        while self._unsent and self._writable and not self._closed:
            request = self._unsent[0]
            try:
                frame, decode = encode_peer_request(
                    request.message,
                    request.api_version,
                    request.correlation_id,
                    self._peer.shared.client_id,
                )
            except Exception:  # noqa: BLE001 a bug of ours costs this connection only
                _log.exception("a request to %s cannot be encoded", self._peer.name)
                self._fail("a request cannot be encoded")
                return
            self._unsent.popleft()
            deadline = self._loop.time() + self._peer.shared.answer_seconds_max
            self._conversation.expect(_Asked(deadline), request.correlation_id, decode)
            transport.write(frame)
        self._await_answer()

    def _is_logged_in(self, transport: asyncio.Transport) -> bool:
        """True if requests may be sent; begins the login, or its renewal, when it is time."""
        now, user = self._loop.time(), self._peer.user
        if self._login is None and now < self._renews_at:
            return True
        if user is not None and self._login is None and self._unsent and not self._unanswered:
            self._login = user.new_login()
            deadline = now + self._peer.shared.answer_seconds_max
            self._send_login(transport, self._login.begin(), deadline)
            self._await_answer()
        return False

    def _send_login(self, transport: asyncio.Transport, request: Message, deadline: float) -> None:
        # The brokers of a cluster have one version: they know the newest versions.
        version = api_of(request).version_max
        transport.writelines(self._conversation.ask(request, version, _Asked(deadline)))

    def _go_on_with_login(self, login: Login, answer: Message, deadline: float) -> None:
        following = login.on_answer(answer)
        if following is not None and self._transport is not None:
            self._send_login(self._transport, following, deadline)
            return
        self._login = None
        self._renews_at = self._loop.time() + login.renewed_after_s
        self._peer.connected()
        self._write()

    def _take_answer(self, frame: Frame) -> None:
        """Take an answer. Raises MalformedFrame, LoginRefused."""
        asked = self._conversation.oldest(frame)
        message = asked.decode(frame)
        self._unanswered.popleft()
        if self._login is not None:
            self._go_on_with_login(self._login, message, asked.deadline)
            return
        answer = PeerAnswer(self._peer.number, asked.correlation_id, message)
        self._peer.shared.submit(answer, len(frame))
        if self._unsent and not self._unanswered:
            self._write()

    def _await_answer(self) -> None:
        if self._unanswered and self._overdue is None and not self._closed:
            self._overdue = self._loop.call_at(self._unanswered[0].deadline, self._check_overdue)

    def _check_overdue(self) -> None:
        self._overdue = None
        if self._unanswered and self._loop.time() >= self._unanswered[0].deadline:
            missing = "answer" if self._login is None else "login"
            self._fail(f"no {missing} within {self._peer.shared.answer_seconds_max:g} s")
        else:
            self._await_answer()
