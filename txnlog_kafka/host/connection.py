"""Connection to one broker: handshake, versions, frames out and in, requests in order.

Theory of operation. A connection is opened without waiting for anything: `link.py` looks the host
up, connects and goes through TLS; then the connection asks for the versions and logs in. Requests
that are made meanwhile are kept in their order, and sent when the connection is ready. After that
requests are queued as frames, several without waiting, and answers arrive in the same order
(`wire/conversation.py`). The client waits on all of its connections at once and calls `on_writable`
and `on_readable`. Any trouble breaks the connection as a whole, because the order of its answers is
lost with it. The client may send its unsent requests elsewhere (`take_unsent`).

A login may be good for a limited time (KIP-368). The connection logs in again before the first
request after most of that time; requests wait for it as they do for the first login.

`Pending.sent` is True as soon as a single byte of a request went out: only a request without a sent
byte is certain not to have been seen.

While the broker wants no requests (`_throttle`) new requests stay in the queue, and their
deadlines move by that time: the broker asked for the wait, so it is not a silence.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable
from socket import socket as Socket  # noqa: N812 - `socket` is a property here

from txnlog_kafka.host.background_calls import BackgroundCall
from txnlog_kafka.host.channel_builder import NO_TOKEN_IN_TIME, ChannelBuilder
from txnlog_kafka.host.diagnosis import (
    REQUIRES_TLS,
    SILENT,
    SILENT_IN_TLS,
    describe_answer,
    describe_closed,
    describe_refusal,
)
from txnlog_kafka.host.failures import ConnectionFailed, LinkBroken, TlsFailed
from txnlog_kafka.host.link import Link
from txnlog_kafka.host.pending import EncodedRequest, Pending
from txnlog_kafka.operations.effects import Reply
from txnlog_kafka.operations.metadata import api_versions_request
from txnlog_kafka.wire.conversation import Conversation
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.framing import Frame, FrameDecoder, MalformedFrame
from txnlog_kafka.wire.login import Login, LoginRefused
from txnlog_kafka.wire.messages import APIS, Api, ApiKey, Message, api_of, throttle_seconds

PIECES_MAX = 128
"""Pieces of a request that the socket gets at once; systems take up to 1,024."""
_API_VERSIONS = APIS[ApiKey.API_VERSIONS]
BROKER_NAMED_FROM = 5


class Phase(enum.Enum):
    """Progress of a connection, which goes back to LOGIN when its login must be renewed."""

    LINK = "connecting"
    """Looking the host up, connecting and beginning TLS; -> VERSIONS."""
    VERSIONS = "ApiVersions"
    """-> PREPARE with SASL, else -> READY."""
    PREPARE = "preparing the login"
    """Fetching the needs of a login, such as a token; -> LOGIN."""
    LOGIN = "SASL login"
    """SaslHandshake and SaslAuthenticate; -> READY."""
    READY = "ready"


class Connection:
    """Link to `address`, with its queue of requests."""

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
        broker: tuple[str, int] | None = None,
    ) -> None:
        """Begin to open the connection. Raises ConnectionFailed if that has failed already.

        `clock` returns monotonic seconds; `deadline_s` is the deadline of the handshake on that
        clock. `throttled_until_s` is the throttle that the former connection was left with.
        `broker` is the cluster id and the node id that are meant, if they are known.
        """
        self.address = address
        self.name = f"{address[0]}:{address[1]}"
        self.throttled_until_s = throttled_until_s
        self.diagnosis: str | None = None
        """Diagnosis of the listener, if it cannot be a broker to talk to."""
        self.is_misrouted = False
        """True if another broker than the one that is meant has answered."""
        self._clock = clock
        self._broker = broker
        self._channels = channels
        # Opening: the time limits, and the login, which is renewed later.
        self._phase = Phase.LINK
        self._handshake_until_s = deadline_s + self._throttle_left_s
        self._connect_timeout_s = connect_timeout_s
        self._connected_until_s = min(clock() + connect_timeout_s, deadline_s)
        self._login_due_s = math.inf
        self._preparing: BackgroundCall[Login] | None = None
        self._login: Login | None = None
        # Requests: before the connection is ready, before the socket takes them, and sent.
        self._answers = 0
        self._last_used_s = clock()
        self._frames = FrameDecoder()
        self._conversation = Conversation[EncodedRequest](client_id)
        self._unanswered = self._conversation.unanswered
        self._waiting: deque[Pending] = deque()
        self._unwritten: deque[tuple[EncodedRequest, memoryview]] = deque()
        try:
            self._link = Link(address, channels.new_tls(address[0]))
        except TlsFailed as error:
            raise ConnectionFailed(f"{self.name}: {error}", final=error.final) from error
        try:
            self._advance_opening()
        except LinkBroken as error:
            self._link.close()
            raise ConnectionFailed(f"{self.name}{error}") from error
        except ConnectionFailed:
            self._link.close()
            raise

    # ------------------------------------------------------------------ what the client waits for

    @property
    def socket(self) -> Socket:
        """Socket that becomes readable or writable next."""
        return self._link.waits_on

    @property
    def background_call(self) -> Socket | None:
        """Socket that becomes readable when the login can begin."""
        return None if self._preparing is None else self._preparing.socket

    @property
    def wants_write(self) -> bool:
        """True if bytes wait for the socket, and may go."""
        return self._link.wants_write or (bool(self._unwritten) and not self._is_held)

    @property
    def is_ready(self) -> bool:
        """True if requests are sent at once."""
        return self._phase is Phase.READY

    @property
    def _is_held(self) -> bool:
        """True if the next request waits for the throttle; a request that was begun goes on."""
        return self._throttle_left_s > 0 and not self._unwritten[0][0].sent

    @property
    def _throttle_left_s(self) -> float:
        if not self.throttled_until_s:
            return 0.0
        return max(0.0, self.throttled_until_s - self._clock())

    @property
    def wakes_at_s(self) -> float | None:
        """Time to look at this connection again, if the socket stays silent."""
        deadline_s = self.next_deadline_s
        if deadline_s is not None and self._unwritten and self._is_held:
            return min(deadline_s, self.throttled_until_s)
        return deadline_s

    def idle_s(self) -> float:
        """Return the seconds since its last use; 0 while an answer is awaited."""
        if self._unanswered or not self.is_ready:
            return 0.0
        return self._clock() - self._last_used_s

    @property
    def next_deadline_s(self) -> float | None:
        """Time when the handshake, or the oldest request without an outcome, runs out of time."""
        times = [asked.deadline_s for asked in self._unanswered]
        times += [pending.deadline_s for pending in self._waiting]
        if not self.is_ready:
            times.append(self._handshake_until_s)
        if not self._link.is_connected:
            times.append(self._connected_until_s)
        return min(times, default=None)

    def check_time(self) -> None:
        """Try the next address of a host that does not answer in time, if there is one.

        Raises ConnectionFailed if something else has run out of time.
        """
        now_s, deadline_s = self._clock(), self.next_deadline_s
        if deadline_s is None or deadline_s > now_s:
            return
        in_time = now_s < self._handshake_until_s
        try:
            if not in_time or not self._link.try_next_address():
                raise self._late
            self._connected_until_s = min(now_s + self._connect_timeout_s, self._handshake_until_s)
            self._advance_opening()
        except LinkBroken as error:
            raise self._broken(str(error)) from error

    @property
    def _late(self) -> ConnectionFailed:
        """Error of the step that has run out of time."""
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
        if self.is_ready and self._last_used_s >= self._login_due_s:
            self._handshake_until_s = pending.deadline_s
            self._phase = Phase.PREPARE
        if self.is_ready:
            self._queue(pending)
        else:
            self._waiting.append(pending)

    def _queue(self, pending: Pending) -> None:
        message, version_max = pending.call.message, pending.call.version_max
        api = api_of(message)
        version = self._conversation.negotiate(api, version_max)
        if version is not None:
            self._send(api, version, message, pending.deadline_s, pending)
            return
        reason = f"{self.name} does not support {api.name}"
        lowest, highest = self._conversation.versions.get(api.key, (0, -1))
        if highest >= 0:
            ours = api.version_max if version_max is None else version_max
            reason = (
                f"{self.name} supports {api.name} v{lowest} to v{highest}, v{api.version_min} to "
                f"v{ours} is needed"
            )
        pending.fail(reason, retriable=False)

    def _send(
        self, api: Api, version: int, message: Message, deadline_s: float, pending: Pending | None
    ) -> None:
        asked = EncodedRequest(api.key, version, deadline_s, pending)
        pieces = self._conversation.ask(message, version, asked)
        self._unwritten += ((asked, memoryview(piece)) for piece in pieces)

    def owes(self, requests: Iterable[Pending]) -> bool:
        """True if any of these requests has no outcome here yet."""
        mine = [asked.pending for asked in self._unanswered] + list(self._waiting)
        return any(each is request for request in requests for each in mine)

    def prolong(self, seconds: float) -> None:
        """Extend all deadlines of open requests, and of the handshake, by so many seconds."""
        for asked in self._unanswered:
            asked.deadline_s += seconds
        for pending in self._waiting:
            pending.deadline_s += seconds
        self._handshake_until_s += seconds
        self._connected_until_s += seconds

    def take_unsent(self) -> list[Pending]:
        """Take the requests that waited for this connection to be ready: the broker saw none."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    # ------------------------------------------------------------------ bytes

    def on_writable(self) -> None:
        """Go on opening, or write as much as the socket takes. Raises ConnectionFailed."""
        try:
            self._advance_opening()
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
                self._advance_opening()
        except LinkBroken as error:
            raise self._broken(str(error)) from error
        except (ConnectionFailed, LoginRefused) as error:
            raise self._in_handshake(error) from error

    def on_readable(self) -> None:
        """Take bytes that arrived, and settle the requests they answer. Raises ConnectionFailed."""
        try:
            if self._link.is_connected:
                self._receive()
        except LinkBroken as error:
            raise self._broken(str(error)) from error
        except MalformedFrame as error:
            raise ConnectionFailed(f"{self.name}: {error}") from error
        except (ConnectionFailed, LoginRefused) as error:
            raise self._in_handshake(error) from error
        self.on_writable()

    def _receive(self) -> None:
        space = None if self._link.is_sealed else self._frames.space()
        if space is None:
            data = self._link.receive()
            self._advance_opening()
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
        """Raise ConnectionFailed if the first bytes of an answer are not a broker's."""
        if not self._answers and not self._frames.buffered_bytes:
            self.diagnosis = describe_answer(data)
            if self.diagnosis is not None:
                raise ConnectionFailed(
                    f"{self.name}: {self.diagnosis}",
                    final=True,
                    is_security=self.diagnosis == REQUIRES_TLS,
                )

    def _on_frame(self, frame: Frame) -> None:
        asked = self._conversation.oldest(frame)
        try:
            message = asked.decode(frame)
        except MalformedFrame as error:
            if asked.pending is not None:
                asked.pending.fail(f"{self.name}: {error}", retriable=False)
            raise
        self._unanswered.popleft()
        self._answers += 1
        throttle_s = throttle_seconds(asked.api_key, asked.version, message)
        if throttle_s:
            self._throttle(throttle_s)
        if asked.pending is None:
            self._on_handshake_answer(message)
        else:
            asked.pending.outcome = Reply(message, asked.version)

    def _throttle(self, throttle_s: float) -> None:
        """Send nothing for so long; requests that were not sent yet get that time on top."""
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

    def _advance_opening(self) -> None:
        """Take the next steps of opening that need no waiting. Raises as `on_writable`."""
        if not self._link.is_open or self._link.wants_write:
            self._link.advance()
        if self._phase is Phase.LINK and self._link.is_open:
            self._phase = Phase.VERSIONS
            self._send_own(api_versions_request(self._broker), _API_VERSIONS.version_max)
        if self._phase is Phase.PREPARE:
            self._prepare_login()

    def _prepare_login(self) -> None:
        """Begin the login, now or when the token that it needs has been fetched."""
        host = self.address[0]
        if not self._channels.login_blocks:
            self._begin_login(self._channels.new_login(host))
        elif self._preparing is None:
            self._preparing = BackgroundCall(lambda: self._channels.new_login(host))
        elif self._preparing.is_done:
            preparing, self._preparing = self._preparing, None
            self._begin_login(preparing.result())

    def _begin_login(self, login: Login) -> None:
        self._phase, self._login = Phase.LOGIN, login
        self._send_login(login.begin())

    def _on_handshake_answer(self, answer: Message) -> None:
        if self._login is None or self._phase is Phase.VERSIONS:
            self._on_versions(answer)
        elif (request := self._login.on_answer(answer)) is not None:
            self._send_login(request)
        else:
            version = self._conversation.negotiate(_API_VERSIONS) or 0
            is_compared = self._login_due_s == math.inf and version >= BROKER_NAMED_FROM
            self._login_due_s = self._clock() + self._login.renewed_after_s
            if self._broker is None or not is_compared:
                self._be_ready()
                return
            # Brokers compare the ids after the login alone.
            self._phase = Phase.VERSIONS
            self._send_own(api_versions_request(self._broker), version)

    def _on_versions(self, answer: Message) -> None:
        self._conversation.on_versions(answer)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION and self._answers == 1:
            # A broker that does not know our newest version names the versions that it knows
            # (KIP-511).
            version = self._conversation.negotiate(_API_VERSIONS) or 0
            self._send_own(api_versions_request(self._broker), version)
        elif answer.error_code != ErrorCode.NONE:
            self.is_misrouted = answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED
            raise ConnectionFailed(self.name + describe_refusal(answer.error_code, self._broker))
        elif self._channels.security.has_login and self._login is None:
            self._phase = Phase.PREPARE
        else:
            self._be_ready()

    def _be_ready(self) -> None:
        self._phase = Phase.READY
        for pending in self.take_unsent():
            self._queue(pending)

    def _send_login(self, message: Message) -> None:
        api = api_of(message)
        version = self._conversation.negotiate(api)
        if version is None:
            raise LoginRefused(
                f"it does not support {api.name} v{api.version_min}, which a login needs: look at "
                "kafka.security.protocol"
            )
        self._send_own(message, version)

    def _send_own(self, message: Message, version: int) -> None:
        self._send(api_of(message), version, message, self._handshake_until_s, None)

    # ------------------------------------------------------------------ the end

    def _in_handshake(self, error: ConnectionFailed | LoginRefused) -> ConnectionFailed:
        """Return the error with the step of the handshake, for a person."""
        text = str(error)
        if isinstance(error, LoginRefused):
            text = f"{self.name}: {text}"
        elif self._phase in (Phase.LINK, Phase.READY):
            return error
        return ConnectionFailed(
            f"{self._phase.value}: {text}", final=error.final, is_security=error.is_security
        )

    def _broken(self, what: str) -> ConnectionFailed:
        """Return why the connection is gone, and for a new connection what that suggests."""
        if self._unanswered and self._unanswered[0].sent:
            what += describe_closed(
                self._answers, self._channels.security, logs_in=self._phase is Phase.LOGIN
            )
        return self._in_handshake(ConnectionFailed(f"{self.name}{what}"))

    @property
    def is_stale(self) -> bool:
        """True if the peer has closed, or sent bytes, while no request was open."""
        if self._unanswered or not self.is_ready:
            return False
        try:
            # What TLS alone had to say, such as a ticket, is nothing here.
            return bool(self._link.receive())
        except (LinkBroken, ConnectionFailed):
            # Nothing is lost: no request is open here, and the next opens a new connection.
            return True

    def close(self, reason: str) -> None:
        """Break the connection; requests without an answer stay without an answer."""
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
