"""One client connection: bytes to requests, and answers back in the order of the requests.

Rules for this file: whatever the bytes are, they become requests or close this connection, and
nothing else. Memory is bounded: by the frame limit for what is being received, by
`REQUESTS_IN_FLIGHT_MAX` for what waits for an answer, and by the transport's high-water mark for
what the peer does not read: beyond it neither answers are encoded nor requests read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Protocol, cast

from broker_sim.core.effects import Close, Disconnected, NoResponse, Request, Respond
from broker_sim.core.handlers.api_versions import unsupported_version_response
from txnlog_spark.wire.framing import (
    FrameDecoder,
    MalformedFrame,
    UnsupportedVersion,
    decode_request,
    encode_response,
)
from txnlog_spark.wire.messages import ApiKey

REQUESTS_IN_FLIGHT_MAX = 256
WRITE_BUFFER_HIGH_BYTES = 4 * 1024 * 1024

_log = logging.getLogger(__name__)


class Owner(Protocol):
    """What a connection needs from the host."""

    frame_bytes_max: int

    def opened(self, connection: Connection) -> None:
        """A connection was accepted."""

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""

    def submit(self, request: Request | Disconnected) -> None:
        """Hand an input to the core, in the order of the calls."""

    def encode(self, response: Respond) -> bytes:
        """The frame, with record bytes filled in. Raises LookupError when they are gone."""

    def now_seconds(self) -> float:
        """The host's monotonic clock."""


@dataclass(slots=True)
class _Slot:
    """One request's place in the order of answers."""

    correlation_id: int
    response: Respond | bytes | None = None
    done: bool = False


class Connection(asyncio.Protocol):
    """See the module. Created by the server for each accepted socket."""

    def __init__(self, owner: Owner, connection_id: int) -> None:
        self.connection_id = connection_id
        self.peer = "?"
        self.last_active = owner.now_seconds()
        self._owner = owner
        self._decoder = FrameDecoder(owner.frame_bytes_max)
        self._slots: deque[_Slot] = deque()
        self._writable = True
        self._reading = True
        self._closing = False
        self._transport: asyncio.Transport | None = None

    @property
    def is_idle(self) -> bool:
        """No request waits for its answer."""
        return not self._slots

    @property
    def is_closing(self) -> bool:
        """Closed, by either side."""
        return self._closing

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accepted."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else "?"
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone, whoever closed it."""
        del exc
        self._closing = True
        self._slots.clear()
        self._owner.closed(self)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        if self._closing:
            return
        self.last_active = self._owner.now_seconds()
        try:
            for frame in self._decoder.feed(data):
                self._on_frame(frame)
                if self.is_closing:
                    return
        except MalformedFrame as error:
            self.close(f"malformed request: {error}")
            return
        self._regulate()

    def pause_writing(self) -> None:
        """The peer reads too slowly: stop encoding answers and reading requests."""
        self._writable = False
        self._regulate()

    def resume_writing(self) -> None:
        """The peer caught up."""
        self._writable = True
        self._send_ready()

    # ------------------------------------------------------------------ for the host

    def deliver(self, response: Respond | NoResponse | Close) -> None:
        """An effect of the core for this connection."""
        if self._closing:
            return
        match response:
            case Close(_, reason):
                self.close(reason)
            case NoResponse(_, correlation_id):
                self._fill(correlation_id, None)
            case Respond():
                self._fill(response.correlation_id, response)
        self._send_ready()

    def close(self, reason: str, *, level: int = logging.WARNING) -> None:
        """Send what was written, then close; `level` is the log's for this reason."""
        if self._closing or self._transport is None:
            return
        _log.log(level, "closing connection %d from %s: %s", self.connection_id, self.peer, reason)
        self._closing = True
        self._transport.close()

    # ------------------------------------------------------------------ details

    def _on_frame(self, frame: bytes) -> None:
        try:
            header, message = decode_request(frame)
        except UnsupportedVersion as error:
            if error.header.api_key is not ApiKey.API_VERSIONS:
                self.close(str(error))
                return
            answer = encode_response(
                ApiKey.API_VERSIONS, 0, error.header.correlation_id, unsupported_version_response()
            )
            self._slots.append(_Slot(error.header.correlation_id, answer, done=True))
            self._send_ready()
            return
        self._slots.append(_Slot(header.correlation_id))
        self._owner.submit(
            Request(
                connection_id=self.connection_id,
                correlation_id=header.correlation_id,
                api_key=header.api_key,
                api_version=header.api_version,
                client_id=header.client_id,
                client_host=self.peer,
                message=message,
            )
        )

    def _fill(self, correlation_id: int, response: Respond | None) -> None:
        for slot in self._slots:
            if slot.correlation_id == correlation_id and not slot.done:
                slot.response = response
                slot.done = True
                return
        _log.error("connection %d: no request waits for %d", self.connection_id, correlation_id)

    def _send_ready(self) -> None:
        transport = self._transport
        while self._slots and self._slots[0].done and self._writable and not self._closing:
            response = self._slots.popleft().response
            if response is None or transport is None:
                continue
            try:
                frame = response if isinstance(response, bytes) else self._owner.encode(response)
            except LookupError as error:
                self.close(f"records are gone: {error}")
                return
            except Exception:  # noqa: BLE001 one connection pays for our bug, not all
                # The state is right, only this answer cannot be made: it costs one connection.
                _log.exception("connection %d: an answer cannot be encoded", self.connection_id)
                self.close("an answer cannot be encoded")
                return
            self.last_active = self._owner.now_seconds()
            transport.write(frame)
        self._regulate()

    def _regulate(self) -> None:
        if self._closing or self._transport is None:
            return
        wanted = self._writable and len(self._slots) < REQUESTS_IN_FLIGHT_MAX
        if wanted and not self._reading:
            self._transport.resume_reading()
        elif self._reading and not wanted:
            self._transport.pause_reading()
        self._reading = wanted
