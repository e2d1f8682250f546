"""One connection to one broker: frames out and in, versions negotiated, requests in order.

Theory of operation. A connection is opened with ApiVersions (KIP-511: asked at our newest version;
a broker that does not know it answers with version 0 and what it does know). Requests are queued as
frames, several without waiting, and answers arrive in the same order. The socket does not block;
the driver waits on all of its connections at once and calls `on_writable` and `on_readable`. Any
trouble breaks the connection as a whole, because the order of its answers is lost with it.

`Pending.sent` tells whether a single byte of a request went out: only a request of which none did
is certain not to have been seen.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from dataclasses import dataclass

from txnlog_spark.protocol.effects import Call, Reply, Unanswered
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.framing import (
    FrameDecoder,
    MalformedFrame,
    decode_response,
    encode_request,
    response_correlation_id,
)
from txnlog_spark.wire.messages import APIS, Api, ApiKey, Message, api_of

RECEIVE_BYTES = 1024 * 1024
CORRELATION_ID_MAX = 2**31 - 1
CLIENT_SOFTWARE_NAME = "txnlog-spark"
CLIENT_SOFTWARE_VERSION = "0.1.0"


class ConnectionFailed(Exception):
    """The connection cannot be used any more; the text says why."""


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
        self, address: tuple[str, int], client_id: str, *, connect_timeout_s: float
    ) -> None:
        self.address = address
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
            # The last two: a host or a port that a broker told us, and that cannot be one.
            raise ConnectionFailed(f"cannot connect to {self.name}: {error}") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait for the socket."""
        return bool(self._unwritten)

    @property
    def next_deadline_s(self) -> float | None:
        """When the oldest unanswered request runs out of time."""
        waiting = [p.deadline_s for p in self._unanswered]
        return min(waiting, default=None)

    def on_versions(self, answer: Message) -> None:
        """Remember what the broker speaks, from its ApiVersions answer."""
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
            f"{self.name} speaks {api.name} v{lowest} to v{highest}, v{api.version_min} to v{ours} "
            "are needed"
            if highest >= 0
            else f"{self.name} does not know {api.name}"
        )
        return Unanswered(reason, sent=False, retriable=False)

    def send(self, api: Api, version: int, message: Message, *, deadline_s: float) -> Pending:
        """Queue one request behind all others."""
        self._correlation_id = (self._correlation_id + 1) & CORRELATION_ID_MAX
        frame = encode_request(message, version, self._correlation_id, self._client_id)
        pending = Pending(api, version, self._correlation_id, None, deadline_s)
        self._unwritten.append((pending, memoryview(frame)))
        self._unanswered.append(pending)
        return pending

    def on_writable(self) -> None:
        """Write what the socket takes. Raises ConnectionFailed."""
        while self._unwritten:
            pending, view = self._unwritten[0]
            try:
                written = self.socket.send(view)
            except BlockingIOError:
                return
            except OSError as error:
                raise ConnectionFailed(f"{self.name}: {error}") from error
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
            raise ConnectionFailed(f"{self.name}: {error}") from error
        if not data:
            raise ConnectionFailed(f"{self.name} closed the connection")
        try:
            for frame in self._frames.feed(data):
                self._on_frame(frame)
        except MalformedFrame as error:
            raise ConnectionFailed(f"{self.name}: {error}") from error

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


def api_versions_request() -> Message:
    """The first request on every connection."""
    return APIS[ApiKey.API_VERSIONS].request(
        client_software_name=CLIENT_SOFTWARE_NAME, client_software_version=CLIENT_SOFTWARE_VERSION
    )
