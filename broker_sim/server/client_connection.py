"""Client connection: bytes to requests, a single request at a time, and answers back.

Rules for this file: whatever the bytes are, they become requests or close this connection, and
nothing else. As in Kafka, the next request is looked at when the request before it is answered. So
answers keep the order of requests, and a connection has a single request in the broker.

Memory of a connection is bounded by three parts: the received part of the next frame,
`READ_AHEAD_BYTES` behind it, and a piece of an answer for a peer that does not read.
`RequestMemory` bounds the first part over all connections. Record bytes stay in their files until
the socket can take them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from broker_sim.apis import only_brokers_ask
from broker_sim.apis.frames import decode_request, encode_response
from broker_sim.core.effects import Close, NoResponse, Request, Respond
from broker_sim.core.endpoint import Listener
from broker_sim.core.handlers.api_versions import unsupported_version_response
from broker_sim.core.replies import answer_to
from broker_sim.core.security.principals import ANONYMOUS
from broker_sim.server.faults.error_answers import error_answer
from broker_sim.server.faults.failing import fail_after, fail_before
from broker_sim.server.faults.rules import FaultRule, FaultRules
from broker_sim.server.outgoing import Outgoing
from broker_sim.server.tls import certified_principal
from txnlog_kafka.wire.framing import (
    Frame,
    FrameDecoder,
    MalformedFrame,
    UnsupportedVersion,
)
from txnlog_kafka.wire.messages import ApiKey

DEFAULT_LISTENER = "PLAINTEXT"
READ_AHEAD_BYTES = 64 * 1024
"""Bytes received while a request is being answered; beyond it the socket is not read."""
WRITE_BUFFER_HIGH_BYTES = 64 * 1024
PIECE_BYTES = 128 * 1024
"""Bytes of an answer that are handed to the socket at a time."""
TURN_BYTES = 1024 * 1024
"""Bytes that a fast reader is sent before other connections have their turn."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionOwner:
    """The host, as far as its client connections know it."""

    loop: asyncio.AbstractEventLoop
    frame_bytes_max: int
    frame_bytes_max_before_login: int
    faults: FaultRules | None
    opened: Callable[[ClientConnection], None]
    closed: Callable[[ClientConnection], None]
    account_memory: Callable[[ClientConnection], None]
    forget_memory: Callable[[ClientConnection], None]
    round_is_full: Callable[[], bool]
    """True if the next round has enough requests."""
    submit: Callable[[Request, int], None]
    """Hands a request of so many bytes to the core."""
    outgoing: Callable[[Respond], Outgoing]
    """Returns the answer, to be encoded piece by piece."""
    topic_name: Callable[[uuid.UUID], str | None]


class ClientConnection(asyncio.Protocol):
    """Protocol of an accepted socket, see the module; the server creates it."""

    __slots__ = (
        "_bytes_moved",
        "_closing",
        "_decoder",
        "_ended",
        "_fault",
        "_in_flight",
        "_is_tls",
        "_listener",
        "_muted",
        "_outgoing",
        "_owner",
        "_reading",
        "_response",
        "_silent",
        "_transport",
        "_waits_turn",
        "_writable",
        "connection_id",
        "is_of_broker",
        "memory_held_bytes",
        "memory_waits",
        "peer",
        "principal",
    )

    def __init__(
        self, owner: ConnectionOwner, connection_id: int, listener: Listener | None = None
    ) -> None:
        """`listener` None stands for PLAINTEXT."""
        self.connection_id = connection_id
        self.peer = "?"
        self.principal = ANONYMOUS
        """The principal that the peer's certificate names."""
        self.is_of_broker = False
        """True after it has sent a request that only another broker of the cluster sends."""
        self.memory_held_bytes = 0
        """Part of `buffered_bytes` that is counted in the host's `RequestMemory`."""
        self.memory_waits = False
        """True if it is not read from until there is memory for its frame."""
        self._owner = owner
        self._listener = DEFAULT_LISTENER if listener is None else listener.name
        self._is_tls = False
        logs_in = listener is not None and listener.protocol.uses_sasl
        self._decoder = FrameDecoder(
            owner.frame_bytes_max_before_login if logs_in else owner.frame_bytes_max
        )
        self._in_flight: int | None = None
        """Correlation id of the request that the broker has."""
        self._response: Outgoing | Respond | bytes | None = None
        self._outgoing: Outgoing | None = None
        self._writable = True
        self._reading = True
        self._closing = False
        self._ended = False
        """True if the peer has sent its last byte."""
        self._waits_turn = False
        """True if the received bytes are looked at after the next round."""
        self._muted: asyncio.TimerHandle | None = None
        """End of the time for which the client is not heard, because it is over a quota."""
        self._fault: FaultRule | None = None
        """Rule that the request in the broker has fired."""
        self._silent = False
        """True if no answer leaves any more, because a rule wants it so."""
        self._bytes_moved = 0
        self._transport: asyncio.Transport | None = None

    @property
    def is_idle(self) -> bool:
        """True if no request waits for its answer, and no answer for its reader."""
        return self._in_flight is None and self._outgoing is None and self._response is None

    @property
    def awaits_answer(self) -> bool:
        """True if the broker has a request of this connection."""
        return self._in_flight is not None

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were received and are not yet a request."""
        return self._decoder.buffered_bytes

    @property
    def bytes_moved(self) -> int:
        """Number that grows while bytes go in either direction; bytes that only wait to go do not
        count."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._bytes_moved - waiting

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with the accepted socket."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else "?"
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        if self._is_tls:
            self.principal = certified_principal(transport.get_extra_info("peercert"))
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # A peer that vanished without a word is found out by the kernel, as in Kafka.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, closed by either end."""
        del exc
        self._closing = True
        self._drop_answer()
        if self._muted is not None:
            self._muted.cancel()
        self._owner.forget_memory(self)
        self._owner.closed(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes that arrived."""
        if self._closing:
            return
        self._bytes_moved += len(data)
        self._decoder.append(data)
        self.go_on()

    def eof_received(self) -> bool:
        """Note that the peer sends no more, and may be gone; return True to keep the connection
        open for now.

        As in Kafka, its earlier requests are carried out: a producer without acks may leave while
        its last batches wait here. A long poll with nothing behind it is forgotten at once. TLS has
        no half that stays open in asyncio: its waiting requests are lost.
        """
        self._ended = True
        return not self._silent and self._has_work and not self._is_tls

    def pause_writing(self) -> None:
        """Stop sending and reading: the peer reads too slowly."""
        self._writable = False

    def resume_writing(self) -> None:
        """Go on: the peer caught up."""
        self._writable = True
        self.go_on()

    # ------------------------------------------------------------------ for the host

    def deliver(self, response: Outgoing | Respond | NoResponse | Close) -> None:
        """Carry out an effect of the core for this connection."""
        if self._closing:
            _close_response(response)
            return
        if isinstance(response, Close):
            self.close(response.reason)
            return
        if self._fault is not None and self._fails(response):
            return
        if response.correlation_id != self._in_flight:
            _log.error(
                "connection %d: no request waits for %d",
                self.connection_id,
                response.correlation_id,
            )
            _close_response(response)
            return
        self._in_flight = None
        if isinstance(response, Respond) and response.logged_in:
            self._decoder.frame_bytes_max = self._owner.frame_bytes_max
        if not isinstance(response, NoResponse):
            self._response = response
        if response.throttle_ms:
            self._muted = self._owner.loop.call_later(response.throttle_ms / 1000, self.unmute)
        self.go_on()

    def unmute(self) -> None:
        """Hear the client again, whose time to wait is over."""
        self._muted = None
        self.go_on()

    def go_on(self) -> None:
        """Do all that can be done now: send, take the next request, read or stop reading."""
        if self._closing or self._transport is None:
            return
        if self._send_answers(self._transport):
            self._take_request(self._transport)
        self._owner.account_memory(self)
        self.regulate()
        if self._ended and not self._has_work:
            self._transport.close()

    @property
    def _has_work(self) -> bool:
        """True if there is something to do before the peer sends more."""
        if self._response is not None or self._outgoing is not None:
            return True
        waits = self._in_flight is not None or self._waits_turn or self._muted is not None
        return (waits or not self._writable) and self._decoder.buffered_bytes > 0

    def regulate(self) -> None:
        """Read from the socket, or stop reading from it."""
        if self._closing or self._ended or self._transport is None:
            return
        wanted = (
            not self.memory_waits
            and self._muted is None
            and (self.is_idle or self._decoder.buffered_bytes < READ_AHEAD_BYTES)
        )
        if wanted and not self._reading:
            self._transport.resume_reading()
        elif self._reading and not wanted:
            self._transport.pause_reading()
        self._reading = wanted

    def close(self, reason: str, *, level: int = logging.WARNING) -> None:
        """Send the bytes that the socket has, then close; `level` is the log's for this reason."""
        if self._start_closing(reason, level) and self._transport is not None:
            self._transport.close()

    def abort(self, reason: str, *, level: int = logging.INFO) -> None:
        """Close at once, also a connection that is closing and whose peer does not read."""
        self._start_closing(reason, level)
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ details

    def _start_closing(self, reason: str, level: int) -> bool:
        if self._closing or self._transport is None:
            return False
        _log.log(level, "closing connection %d from %s: %s", self.connection_id, self.peer, reason)
        self._closing = True
        self._drop_answer()
        self._decoder = FrameDecoder(self._owner.frame_bytes_max)
        self._owner.forget_memory(self)
        return True

    def _drop_answer(self) -> None:
        _close_response(self._response)
        self._response = None
        if self._outgoing is not None:
            self._outgoing.close()
            self._outgoing = None

    def _send_answers(self, transport: asyncio.Transport) -> bool:
        """Hand over as much as the socket takes; return True if all is handed over and the peer
        keeps up."""
        sent_bytes = 0
        while self._writable and not self._closing:
            piece = self._next_piece()
            if piece is None:
                return not self._closing
            if sent_bytes > TURN_BYTES:
                self._owner.loop.call_soon(self.go_on)
                transport.write(piece)
                self._bytes_moved += len(piece)
                return False
            sent_bytes += len(piece)
            self._bytes_moved += len(piece)
            transport.write(piece)
        return False

    def _next_piece(self) -> bytes | memoryview | None:
        """Return the next bytes of the answer; None at its end, or if the connection was closed."""
        try:
            if self._outgoing is None:
                response, self._response = self._response, None
                if response is None or isinstance(response, bytes):
                    return response
                if isinstance(response, Respond):
                    response = self._owner.outgoing(response)
                self._outgoing = response
            piece = self._outgoing.read(PIECE_BYTES)
        except LookupError as error:
            self.close(f"records are gone: {error}")
            return None
        except Exception:  # noqa: BLE001 one connection pays for our bug, not all
            # The state is right, only this answer cannot be made: it costs one connection.
            _log.exception("connection %d: an answer cannot be encoded", self.connection_id)
            self.close("an answer cannot be encoded")
            return None
        if not piece:
            self._outgoing = None
            return None
        return piece

    def _take_request(self, transport: asyncio.Transport) -> None:
        self._waits_turn = False
        while self._writable and not self._closing and self.is_idle and self._muted is None:
            if self._decoder.buffered_bytes and self._owner.round_is_full():
                self._waits_turn = True
                self._owner.loop.call_soon(self.go_on)
                return
            try:
                frame = self._decoder.pop()
                if frame is None:
                    return
                self._on_frame(frame)
            except MalformedFrame as error:
                self.close(f"malformed request: {error}")
                return
            if self._response is not None and not self._send_answers(transport):
                return

    def _on_frame(self, frame: Frame) -> None:
        try:
            header, message = decode_request(frame)
        except UnsupportedVersion as error:
            if error.header.api_key is not ApiKey.API_VERSIONS:
                self.close(str(error))
                return
            self._response = encode_response(
                ApiKey.API_VERSIONS, 0, error.header.correlation_id, unsupported_version_response()
            )
            return
        self._in_flight = header.correlation_id
        self.is_of_broker = self.is_of_broker or only_brokers_ask(
            header.api_key, header.api_version, message
        )
        request = Request(
            connection_id=self.connection_id,
            correlation_id=header.correlation_id,
            api_key=header.api_key,
            api_version=header.api_version,
            client_id=header.client_id,
            client_host=self.peer,
            message=message,
            listener=self._listener,
            principal=self.principal,
            size_bytes=len(frame),
        )
        if self._owner.faults is None or not self._is_kept_by(self._owner.faults, request):
            self._owner.submit(request, len(frame))

    def _is_kept_by(self, rules: FaultRules, request: Request) -> bool:
        """Let a request fire a rule; return True if the core does not get it."""
        rule = rules.decide(
            request.api_key,
            request.client_id,
            request.message,
            self._owner.topic_name,
            of_broker=self.is_of_broker,
        )
        if rule is None:
            return False
        self._fault = rule
        fail_before(rule)
        if rule.disconnect and not rule.drop_response:
            self.close(f"rule {rule.id} of faults")
            return True
        if not rule.error:
            return False
        if request.api_key == ApiKey.PRODUCE and not request.message.acks:
            self.close(f"rule {rule.id} of faults: {rule.error}, and no client waits for an answer")
            return True
        answer = error_answer(request, rule.code)
        if answer is None:
            self.close(f"rule {rule.id} of faults: this answer has no place for {rule.error}")
            return True
        self.deliver(answer_to(request, answer))
        return True

    def _fails(self, response: Outgoing | Respond | NoResponse) -> bool:
        """Do with an answer what the rule wants; return True if it does not leave now."""
        rule, self._fault = self._fault, None
        if rule is None or not (rule.drop_response or rule.delay_ms):
            return False
        if not rule.drop_response:
            self._owner.loop.call_later(rule.delay_ms / 1000, partial(self.deliver, response))
            return True
        _close_response(response)
        fail_after(rule)
        if rule.disconnect:
            self.close(f"rule {rule.id} of faults")
        self._silent = True
        return True


def _close_response(response: object) -> None:
    """Release the files of an answer that is not sent."""
    if isinstance(response, Outgoing):
        response.close()
