"""One connection to one broker: handshake, versions, frames out and in, requests in order.

Theory of operation. A connection is opened without waiting for anything: `link.py` looks the host
up, connects and goes through TLS, `handshake.py` asks for the versions and logs in. Requests that
are made meanwhile are kept in their order, and sent when it is ready. After that they are queued as
frames, several without waiting, and answers arrive in the same order. The client waits on all of
its connections at once and calls `on_writable` and `on_readable`. Any trouble breaks the connection
as a whole, because the order of its answers is lost with it; what was never sent on it may be taken
elsewhere (`take_unsent`).

A login that is good for a limited time (KIP-368) is done again before the first request after most
of that time; requests wait for it as they do for the first one.

`Pending.sent` tells whether a single byte of a request went out: only a request of which none did
is certain not to have been seen.

While the broker wants no requests (`throttle.py`) new ones stay in the queue, and their deadlines
move on by that time: it is the broker's, not a silence of it.
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from socket import socket as Socket  # noqa: N812 - `socket` is a property here

from txnlog_kafka.host.background_calls import BackgroundCall
from txnlog_kafka.host.channel_builder import ChannelBuilder
from txnlog_kafka.host.diagnosis import (
    REQUIRES_TLS,
    SILENT,
    SILENT_IN_TLS,
    describe_answer,
    describe_closed,
)
from txnlog_kafka.host.handshake import Handshake, HandshakeRequest
from txnlog_kafka.host.link import ConnectionFailed, Link, LinkBroken, TlsFailed
from txnlog_kafka.host.login import NO_TOKEN_IN_TIME, Login, LoginRefused
from txnlog_kafka.host.pending import Asked, Pending
from txnlog_kafka.operations.effects import Call, Reply, Unanswered
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.framing import (
    Frame,
    FrameDecoder,
    MalformedFrame,
    decode_response,
    request_pieces,
    response_correlation_id,
)
from txnlog_kafka.wire.messages import Api, ApiKey, Message, api_of, throttle_seconds

CORRELATION_ID_MAX = 2**31 - 1
PIECES_MAX = 128
"""Of a request, given to the socket at once; systems take up to 1,024."""
SESSION_PART = 0.85
"""Of a login's time, after which the next request waits for a new one; Kafka's takes 85 to 95 %."""


class Phase(enum.Enum):
    """How far a connection is. A ready one goes back to LOGIN when its login must be renewed."""

    LINK = "connecting"
    """The host is looked up, connected to, and TLS is begun; -> VERSIONS."""
    VERSIONS = "ApiVersions"
    """-> PREPARE with SASL, else -> READY."""
    PREPARE = "preparing the login"
    """What the login needs is fetched, such as a token; -> LOGIN."""
    LOGIN = "SASL login"
    """SaslHandshake and SaslAuthenticate; -> READY."""
    READY = "ready"


class Connection:
    """A link to `address`, with its queue of requests."""

    def __init__(
        self,
        address: tuple[str, int],
        client_id: str,
        *,
        deadline_s: float,
        connect_timeout_s: float,
        clock: Callable[[], float],
        channels: ChannelBuilder,
        throttled_until_s: float = 0.0,
    ) -> None:
        """Begin to open it. Raises ConnectionFailed when that has failed already.

        `clock` gives monotonic seconds, `deadline_s` is one of them: of the handshake. The throttle
        is what the connection before this one was left with.
        """
        self.address = address
        self.name = f"{address[0]}:{address[1]}"
        self.throttled_until_s = throttled_until_s
        self.diagnosis: str | None = None
        """What the listener is, when it cannot be a broker to talk to."""
        self._clock = clock
        self._client_id = client_id
        self._channels = channels
        self._phase = Phase.LINK
        self._handshake = Handshake(self.name)
        self._handshake_until_s = deadline_s + self._throttle_left_s
        self._connect_timeout_s = connect_timeout_s
        self._connected_until_s = min(clock() + connect_timeout_s, deadline_s)
        self._login_due_s: float | None = None
        self._preparing: BackgroundCall[Login] | None = None
        self._answers = 0
        self._last_used_s = clock()
        self._frames = FrameDecoder()
        self._correlation_id = 0
        self._waiting: deque[Pending] = deque()
        self._unwritten: deque[tuple[Asked, memoryview]] = deque()
        self._unanswered: deque[Asked] = deque()
        try:
            self._link = Link(address, channels.new_tls(address[0]))
        except TlsFailed as error:
            raise ConnectionFailed(f"{self.name}: {error}", final=error.final) from error
        try:
            self._go_on()
        except LinkBroken as error:
            self._link.close()
            raise ConnectionFailed(f"{self.name}{error}") from error
        except ConnectionFailed:
            self._link.close()
            raise

    # ------------------------------------------------------------------ what the client waits for

    @property
    def socket(self) -> Socket:
        """What becomes readable or writable next."""
        return self._link.waits_on

    @property
    def background_call(self) -> Socket | None:
        """What becomes readable when the login can begin."""
        return None if self._preparing is None else self._preparing.socket

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait for the socket, and may go."""
        return self._link.wants_write or (bool(self._unwritten) and not self._is_held)

    @property
    def is_ready(self) -> bool:
        """Whether requests are sent at once."""
        return self._phase is Phase.READY

    @property
    def _is_held(self) -> bool:
        """Whether the next request waits for the throttle; one that was begun goes on."""
        return self._throttle_left_s > 0 and not self._unwritten[0][0].sent

    @property
    def _throttle_left_s(self) -> float:
        if not self.throttled_until_s:
            return 0.0
        return max(0.0, self.throttled_until_s - self._clock())

    @property
    def wakes_at_s(self) -> float | None:
        """When to look at this connection again, if the socket stays silent."""
        deadline_s = self.next_deadline_s
        if deadline_s is not None and self._unwritten and self._is_held:
            return min(deadline_s, self.throttled_until_s)
        return deadline_s

    def idle_s(self) -> float:
        """For how long it has not been used; 0 while an answer is awaited."""
        if self._unanswered or not self.is_ready:
            return 0.0
        return self._clock() - self._last_used_s

    @property
    def next_deadline_s(self) -> float | None:
        """When the handshake, or the oldest request without an outcome, runs out of time."""
        times = [asked.deadline_s for asked in self._unanswered]
        times += [pending.deadline_s for pending in self._waiting]
        if not self.is_ready:
            times.append(self._handshake_until_s)
        if not self._link.is_connected:
            times.append(self._connected_until_s)
        return min(times, default=None)

    def check_time(self) -> None:
        """Go on to another address of the host that does not answer in time, if it has one.

        Raises ConnectionFailed when something else has run out of time.
        """
        now_s, deadline_s = self._clock(), self.next_deadline_s
        if deadline_s is None or deadline_s > now_s:
            return
        in_time = now_s < self._handshake_until_s
        try:
            if not in_time or not self._link.try_next_address():
                raise self._late
            self._connected_until_s = min(now_s + self._connect_timeout_s, self._handshake_until_s)
            self._go_on()
        except LinkBroken as error:
            raise self._broken(str(error)) from error

    @property
    def _late(self) -> ConnectionFailed:
        """What it means that something has run out of time."""
        if not self._link.is_connected:
            return ConnectionFailed(f"cannot connect to {self.name}: timed out")
        if self._phase is Phase.PREPARE:
            return ConnectionFailed(f"{self.name}: {NO_TOKEN_IN_TIME}")
        silent = f"{self.name} did not answer in time"
        if self._phase is Phase.LINK:
            silent += SILENT_IN_TLS
        elif self._phase is Phase.VERSIONS:
            silent += SILENT
        return self._in_handshake(ConnectionFailed(silent))

    # ------------------------------------------------------------------ requests

    def ask(self, pending: Pending) -> None:
        """Queue one request behind all others."""
        pending.deadline_s += self._throttle_left_s
        self._last_used_s = self._clock()
        if self.is_ready and self._login_due_s is not None and self._clock() >= self._login_due_s:
            self._handshake_until_s = pending.deadline_s
            self._phase = Phase.PREPARE
        if self.is_ready:
            self._queue(pending)
        else:
            self._waiting.append(pending)

    def _queue(self, pending: Pending) -> None:
        negotiated = self._negotiate(pending.call)
        if isinstance(negotiated, Unanswered):
            pending.outcome = negotiated
            return
        api, version = negotiated
        self._send(
            HandshakeRequest(api, version, pending.call.message), pending.deadline_s, pending
        )

    def _negotiate(self, call: Call) -> tuple[Api, int] | Unanswered:
        """The request's kind and version, or why no common version exists."""
        api = api_of(call.message)
        lowest, highest = self._handshake.versions.get(api.key, (0, -1))
        ours = api.version_max if call.version_max is None else call.version_max
        version = min(highest, ours, api.version_max)
        if version >= max(lowest, api.version_min):
            return api, version
        reason = (
            f"{self.name} supports {api.name} v{lowest} to v{highest}, v{api.version_min} to "
            f"v{ours} is needed"
            if highest >= 0
            else f"{self.name} does not support {api.name}"
        )
        return Unanswered(reason, sent=False, retriable=False)

    def _send(self, request: HandshakeRequest, deadline_s: float, pending: Pending | None) -> None:
        self._correlation_id = (self._correlation_id + 1) & CORRELATION_ID_MAX
        pieces = request_pieces(
            request.message, request.version, self._correlation_id, self._client_id
        )
        asked = Asked(request.api, request.version, self._correlation_id, deadline_s, pending)
        self._unwritten += ((asked, memoryview(piece)) for piece in pieces)
        self._unanswered.append(asked)

    def owes(self, requests: Iterable[Pending]) -> bool:
        """Whether any of these requests has no outcome here yet."""
        mine = [asked.pending for asked in self._unanswered] + list(self._waiting)
        return any(each is request for request in requests for each in mine)

    def prolong(self, seconds: float) -> None:
        """Give what has no outcome yet so much more time."""
        for asked in self._unanswered:
            asked.deadline_s += seconds
        for pending in self._waiting:
            pending.deadline_s += seconds
        self._handshake_until_s += seconds
        self._connected_until_s += seconds

    def take_unsent(self) -> list[Pending]:
        """The requests that waited for this connection to be ready: none was seen by the broker."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    # ------------------------------------------------------------------ bytes

    def on_writable(self) -> None:
        """Go on opening, or write what the socket takes. Raises ConnectionFailed."""
        try:
            self._go_on()
            while self._unwritten and self._link.is_open and not self._is_held:
                asked, _ = self._unwritten[0]
                some = itertools.islice(self._unwritten, PIECES_MAX)
                views = [view for request, view in some if request is asked]
                left = self._link.send(views)
                if not left:
                    return
                asked.mark_sent()
                for view in views:
                    if left < len(view):
                        self._unwritten[0] = (asked, view[left:])
                        break
                    self._unwritten.popleft()
                    left -= len(view)
            if self._link.wants_write:
                self._go_on()
        except LinkBroken as error:
            raise self._broken(str(error)) from error
        except ConnectionFailed as error:
            raise self._in_handshake(error) from error

    def on_readable(self) -> None:
        """Take what arrived and settle the requests it answers. Raises ConnectionFailed."""
        try:
            if self._link.is_connected:
                self._receive()
            self.on_writable()
        except LinkBroken as error:
            raise self._broken(str(error)) from error
        except MalformedFrame as error:
            raise ConnectionFailed(f"{self.name}: {error}") from error
        except ConnectionFailed as error:
            raise self._in_handshake(error) from error

    def _receive(self) -> None:
        space = None if self._link.is_sealed else self._frames.space()
        if space is None:
            data = self._link.receive()
            self._go_on()
            if not data:
                return
            self._diagnose(data)
            self._frames.append(data)
        else:
            with space:
                self._frames.filled(self._link.receive_into(space))
        self._last_used_s = self._clock()
        while (frame := self._frames.pop()) is not None:
            self._on_frame(frame)

    def _diagnose(self, data: bytes) -> None:
        """What answers first may be something else than a broker."""
        if not self._answers and not self._frames.buffered_bytes:
            self.diagnosis = describe_answer(data)
            if self.diagnosis is not None:
                raise ConnectionFailed(
                    f"{self.name}: {self.diagnosis}",
                    final=True,
                    is_security=self.diagnosis == REQUIRES_TLS,
                )

    def _on_frame(self, frame: Frame) -> None:
        correlation_id = response_correlation_id(frame)
        if not self._unanswered or self._unanswered[0].correlation_id != correlation_id:
            raise MalformedFrame(f"an answer to request {correlation_id}, which was not asked")
        asked = self._unanswered.popleft()
        try:
            message = _decode(asked, frame)
        except MalformedFrame as error:
            if asked.pending is not None:
                asked.pending.fail(f"{self.name}: {error}", retriable=False)
            raise
        self._answers += 1
        throttle_s = throttle_seconds(asked.api.key, asked.version, message)
        if throttle_s:
            self._throttle(throttle_s)
        if asked.pending is None:
            self._on_greeting_answer(asked, message)
        else:
            asked.pending.outcome = Reply(message, asked.version)

    def _throttle(self, throttle_s: float) -> None:
        """Send nothing for so long; what has not been sent yet gets that time on top."""
        before_s = self._throttle_left_s
        self.throttled_until_s = max(self.throttled_until_s, self._clock() + throttle_s)
        added_s = self._throttle_left_s - before_s
        for asked in self._unanswered:
            if not asked.sent:
                asked.deadline_s += added_s
        for pending in self._waiting:
            pending.deadline_s += added_s
        self._handshake_until_s += added_s

    # ------------------------------------------------------------------ handshake

    def _go_on(self) -> None:
        """Take the next steps of opening that need no waiting. Raises as `on_writable`."""
        if not self._link.is_open or self._link.wants_write:
            self._link.advance()
        if self._phase is Phase.LINK and self._link.is_open:
            self._phase = Phase.VERSIONS
            self._send_own(self._handshake.ask_versions())
        if self._phase is Phase.PREPARE:
            self._prepare_login()

    def _prepare_login(self) -> None:
        """Begin the login, now or when what it needs has been fetched."""
        host = self.address[0]
        if not self._channels.login_blocks:
            self._begin_login(self._channels.new_login(host))
        elif self._preparing is None:
            self._preparing = BackgroundCall(lambda: self._channels.new_login(host))
        elif self._preparing.is_done:
            preparing, self._preparing = self._preparing, None
            try:
                login = preparing.result()
            except LoginRefused as error:
                raise ConnectionFailed(
                    f"{self.name}: {error}", final=error.final, is_security=True
                ) from error
            self._begin_login(login)

    def _begin_login(self, login: Login) -> None:
        self._phase = Phase.LOGIN
        self._send_own(self._handshake.log_in(login))

    def _on_greeting_answer(self, asked: Asked, answer: Message) -> None:
        if self._phase is Phase.VERSIONS:
            request = self._handshake.on_versions(answer)
            if request is None and self._channels.has_login:
                self._phase = Phase.PREPARE
                return
        else:
            request = self._handshake.on_login_answer(asked.api, asked.version, answer)
        if request is not None:
            self._send_own(request)
            return
        lifetime_s = self._handshake.session_lifetime_ms / 1000
        self._login_due_s = self._clock() + SESSION_PART * lifetime_s if lifetime_s else None
        self._phase = Phase.READY
        for pending in self.take_unsent():
            self._queue(pending)

    def _send_own(self, request: HandshakeRequest) -> None:
        self._send(request, self._handshake_until_s, None)

    # ------------------------------------------------------------------ the end

    def _in_handshake(self, error: ConnectionFailed) -> ConnectionFailed:
        """With what was being done, for a person."""
        text = str(error)
        if self._phase in (Phase.LINK, Phase.READY) or text.startswith(self._phase.value):
            return error
        return ConnectionFailed(
            f"{self._phase.value}: {text}", final=error.final, is_security=error.is_security
        )

    def _broken(self, what: str) -> ConnectionFailed:
        """Why the connection is gone, with what that means when it is a new one."""
        if self._unanswered and self._unanswered[0].sent:
            what += describe_closed(
                self._answers, self._channels, logs_in=self._phase is Phase.LOGIN
            )
        return self._in_handshake(ConnectionFailed(f"{self.name}{what}"))

    @property
    def is_stale(self) -> bool:
        """Whether the peer has closed, or sent something, while nothing was asked."""
        if self._unanswered or not self.is_ready:
            return False
        try:
            # What TLS alone had to say, such as a ticket, is nothing here.
            return bool(self._link.receive())
        except (LinkBroken, ConnectionFailed):
            return True

    def close(self, reason: str) -> None:
        """Break the connection; requests without an answer stay without one."""
        if self._preparing is not None:
            self._preparing.close()
        self._link.close()
        for asked in self._unanswered:
            if asked.pending is not None:
                asked.pending.fail(reason)
        for pending in self._waiting:
            pending.fail(reason)
        self._unanswered.clear()
        self._unwritten.clear()
        self._waiting.clear()


def _decode(asked: Asked, frame: Frame) -> Message:
    """The answer's message; ApiVersions may come back as version 0 (KIP-511)."""
    if asked.api.key == ApiKey.API_VERSIONS and asked.version > 0:
        code = int.from_bytes(frame[4:6], "big", signed=True)
        if code == ErrorCode.UNSUPPORTED_VERSION:
            asked.version = 0
    return decode_response(asked.api, asked.version, frame)
