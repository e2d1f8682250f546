"""One connection to one broker: frames out and in, versions negotiated, requests in order.

Theory of operation. A connection is opened with ApiVersions (KIP-511: asked at our newest version;
a broker that does not know it answers with version 0 and what it does know). Requests are queued as
frames, several without waiting, and answers arrive in the same order. The socket does not block;
the client waits on all of its connections at once and calls `on_writable` and `on_readable`. Any
trouble breaks the connection as a whole, because the order of its answers is lost with it.

`Pending.sent` tells whether a single byte of a request went out: only a request of which none did
is certain not to have been seen.

While the broker wants no requests (`throttle.py`) new ones stay in the queue, and their deadlines
move on by that time: it is the broker's, not a silence of it.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from txnlog_spark.client.strangers import (
    CLOSED_AFTER_VERSIONS,
    CLOSED_AT_ONCE,
    describe_stranger,
)
from txnlog_spark.client.throttle import throttle_seconds
from txnlog_spark.protocol.effects import Call, Reply, Unanswered
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.framing import (
    FrameDecoder,
    MalformedFrame,
    decode_response,
    encode_request,
    response_correlation_id,
)
from txnlog_spark.wire.messages import Api, ApiKey, Message, api_of

RECEIVE_BYTES = 1024 * 1024
CORRELATION_ID_MAX = 2**31 - 1


class ConnectionFailed(Exception):
    """The connection cannot be used any more; the text says why.

    `final` says that another attempt would end in the same way.
    """

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


@dataclass(slots=True)
class Pending:
    """One request on its way. `outcome` is None until it is known."""

    api: Api
    version: int
    correlation_id: int
    frame: bytes | None
    deadline_s: float
    sent: bool = False
    outcome: Reply | Unanswered | None = None

    def fail(self, reason: str, *, retriable: bool = True) -> None:
        """There will be no answer."""
        if self.outcome is None:
            self.outcome = Unanswered(reason, self.sent, retriable)


class Connection:
    """A non-blocking socket to `address`, with its queue of requests."""

    def __init__(
        self,
        address: tuple[str, int],
        client_id: str,
        *,
        connect_timeout_s: float,
        clock: Callable[[], float],
        throttled_until_s: float = 0.0,
    ) -> None:
        """`clock` gives monotonic seconds. The throttle is what the one before it was left with."""
        self.address = address
        self.throttled_until_s = throttled_until_s
        self.stranger: str | None = None
        """What the listener is, when it cannot be a broker to talk to."""
        self._clock = clock
        self._answers = 0
        self._last_used_s = clock()
        self.name = f"{address[0]}:{address[1]}"
        self._client_id = client_id
        self._frames = FrameDecoder()
        self._correlation_id = 0
        self._unwritten: deque[tuple[Pending, memoryview]] = deque()
        self._unanswered: deque[Pending] = deque()
        self.versions: dict[int, tuple[int, int]] = {}
        try:
            self.socket = socket.create_connection(address, timeout=connect_timeout_s)
        except (OSError, ValueError, OverflowError) as error:
            # The last two: a host or a port that a broker reported, and that cannot be one.
            raise ConnectionFailed(f"cannot connect to {self.name}: {error}") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A network that forgets a quiet connection in silence is found out by the kernel.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.socket.setblocking(False)

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait for the socket, and may go."""
        return bool(self._unwritten) and not self._is_held

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
        return 0.0 if self._unanswered else self._clock() - self._last_used_s

    @property
    def next_deadline_s(self) -> float | None:
        """When the oldest unanswered request runs out of time."""
        waiting = [p.deadline_s for p in self._unanswered]
        return min(waiting, default=None)

    def on_versions(self, answer: Message) -> None:
        """Remember what the broker supports, from its ApiVersions answer."""
        self.versions = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys or ()}

    def negotiate(self, call: Call) -> tuple[Api, int] | Unanswered:
        """The request's kind and version, or why no common version exists."""
        api = api_of(call.message)
        lowest, highest = self.versions.get(api.key, (0, -1))
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

    def send(self, api: Api, version: int, message: Message, *, deadline_s: float) -> Pending:
        """Queue one request behind all others."""
        self._correlation_id = (self._correlation_id + 1) & CORRELATION_ID_MAX
        frame = encode_request(message, version, self._correlation_id, self._client_id)
        deadline_s += self._throttle_left_s
        self._last_used_s = self._clock()
        pending = Pending(api, version, self._correlation_id, None, deadline_s)
        self._unwritten.append((pending, memoryview(frame)))
        self._unanswered.append(pending)
        return pending

    def owes(self, requests: Iterable[Pending]) -> bool:
        """Whether any of these requests has no answer here yet."""
        return any(asked is request for request in requests for asked in self._unanswered)

    def prolong(self, seconds: float) -> None:
        """Give what is not answered yet so much more time."""
        for pending in self._unanswered:
            pending.deadline_s += seconds

    def on_writable(self) -> None:
        """Write what the socket takes. Raises ConnectionFailed."""
        while self.wants_write:
            pending, view = self._unwritten[0]
            try:
                written = self.socket.send(view)
            except BlockingIOError:
                return
            except OSError as error:
                raise ConnectionFailed(self._broken(f": {error}")) from error
            pending.sent = pending.sent or written > 0
            if written == len(view):
                self._unwritten.popleft()
            else:
                self._unwritten[0] = (pending, view[written:])

    def on_readable(self) -> None:
        """Take what arrived and settle the requests it answers. Raises ConnectionFailed."""
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise ConnectionFailed(self._broken(f": {error}")) from error
        if not data:
            raise ConnectionFailed(self._broken(" closed the connection"))
        self._last_used_s = self._clock()
        if not self._answers and not self._frames.buffered_bytes:
            self.stranger = describe_stranger(data)
            if self.stranger is not None:
                raise ConnectionFailed(f"{self.name}: {self.stranger}")
        try:
            for frame in self._frames.feed(data):
                self._on_frame(frame)
        except MalformedFrame as error:
            raise ConnectionFailed(f"{self.name}: {error}") from error

    def _broken(self, what: str) -> str:
        """Why the connection is gone, with what that means when it is a new one."""
        asked = bool(self._unanswered) and self._unanswered[0].sent
        if asked and not self._answers:
            what += CLOSED_AT_ONCE
        elif asked and self._answers == 1:
            what += CLOSED_AFTER_VERSIONS
        return f"{self.name}{what}"

    def _on_frame(self, frame: bytes) -> None:
        correlation_id = response_correlation_id(frame)
        if not self._unanswered or self._unanswered[0].correlation_id != correlation_id:
            raise MalformedFrame(f"an answer to request {correlation_id}, which was not asked")
        pending = self._unanswered.popleft()
        try:
            message = _decode(pending, frame)
        except MalformedFrame as error:
            pending.fail(f"{self.name}: {error}", retriable=False)
            raise
        pending.outcome = Reply(message, pending.version)
        self._answers += 1
        throttle_s = throttle_seconds(pending.api.key, pending.version, message)
        if throttle_s:
            self._throttle(throttle_s)

    def _throttle(self, throttle_s: float) -> None:
        """Send nothing for so long; what has not been sent yet gets that time on top."""
        before_s = self._throttle_left_s
        self.throttled_until_s = max(self.throttled_until_s, self._clock() + throttle_s)
        for pending in self._unanswered:
            if not pending.sent:
                pending.deadline_s += self._throttle_left_s - before_s

    def expired(self, now_s: float) -> bool:
        """Whether a request has run out of time."""
        deadline_s = self.next_deadline_s
        return deadline_s is not None and deadline_s <= now_s

    @property
    def is_stale(self) -> bool:
        """Whether the peer has closed, or sent what nobody asked for, while nothing was asked."""
        if self._unanswered:
            return False
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def close(self, reason: str) -> None:
        """Break the connection; requests without an answer stay without one."""
        with contextlib.suppress(OSError):
            self.socket.close()
        for pending in self._unanswered:
            pending.fail(reason)
        self._unanswered.clear()
        self._unwritten.clear()


def _decode(pending: Pending, frame: bytes) -> Message:
    """The answer's message; ApiVersions may come back as version 0 (KIP-511)."""
    if pending.api.key == ApiKey.API_VERSIONS and pending.version > 0:
        code = int.from_bytes(frame[4:6], "big", signed=True)
        if code == ErrorCode.UNSUPPORTED_VERSION:
            pending.version = 0
    return decode_response(pending.api, pending.version, frame)
