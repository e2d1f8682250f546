"""Connection to the staging server, as the server reads and writes it.

Each connection has its own buffer and takes incoming bytes in place. While the buffer is full the
server does not read, so TCP slows down a task that sends faster than the disk writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from txnlog_kafka.wire.invariants import present
from txnlog_spark.staging import frames
from txnlog_spark.staging.frames import Kind

BUFFER_BYTES = 128 * 1024
"""Size of a connection's read buffer, in bytes; there may be a thousand connections."""
WHOLE_BYTES_MAX = 1024 * 1024
"""Largest body that is read as a whole, in bytes: Open, and the driver's requests."""


class Closed(Exception):
    """The other side has closed the connection between two frames."""


class Torn(Exception):
    """The other side has closed the connection inside a frame."""


class Peer(asyncio.BufferedProtocol):
    """Protocol of a connection, and its frames for the task that serves it.

    Reading raises Closed, Torn, or the OSError that ended the connection.
    """

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._start = self._end = 0
        self._transport: asyncio.Transport | None = None
        self._is_paused = self._is_over = False
        self._error: Exception | None = None
        self._more: asyncio.Future[None] | None = None

    # ------------------------------------------------------------------ what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the new connection."""
        self._transport = transport  # type: ignore[assignment]  # TCP, TLS and Unix sockets'

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  asyncio's signature
        """Return the free part of the buffer, for the next bytes."""
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Count the bytes that have arrived; stop reading if the buffer is full."""
        self._end += nbytes
        if self._end == BUFFER_BYTES:
            self._is_paused = True
            self._open_transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """Note that the other side sends no more."""
        self._is_over = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is closed, and its error."""
        self._is_over, self._error = True, exc
        self._wake()

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    @property
    def _open_transport(self) -> asyncio.Transport:
        return present(self._transport, "the connection is made first")

    # ------------------------------------------------------------------ what the server calls

    async def header(self, body_bytes_max: int = frames.BODY_BYTES_MAX) -> tuple[Kind, int]:
        """Return the next frame's type and size. Raises NotAFrame as well."""
        if not await self._has_more():
            raise Closed
        return frames.parse_header(await self._whole(frames.HEADER_BYTES), body_bytes_max)

    async def body(self, size_bytes: int) -> AsyncIterator[memoryview]:
        """Yield a frame's body as it arrives; each part is valid until the next part is asked
        for."""
        while size_bytes:
            if not await self._has_more():
                raise Torn
            end = min(self._end, self._start + size_bytes)
            part = self._buffer[self._start : end]
            self._start = end
            size_bytes -= len(part)
            yield part

    async def receive(self, body_bytes_max: int = WHOLE_BYTES_MAX) -> tuple[Kind, bytes]:
        """Return the next frame. Raises NotAFrame as well."""
        kind, size_bytes = await self.header(body_bytes_max)
        return kind, await self._whole(size_bytes)

    def send(self, frame: bytes) -> None:
        """Send an answer; answers are small."""
        self._open_transport.write(frame)

    def close(self) -> None:
        """Close the connection after the answers are sent."""
        self._open_transport.close()

    async def _whole(self, size_bytes: int) -> bytes:
        return b"".join([bytes(part) async for part in self.body(size_bytes)])

    async def _has_more(self) -> bool:
        """Wait until the buffer has bytes; return False if no more will come."""
        if self._start == self._end:
            self._start = self._end = 0
            if self._is_paused:
                self._is_paused = False
                self._open_transport.resume_reading()
        while self._start == self._end:
            if self._error is not None:
                raise self._error
            if self._is_over:
                return False
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        return True
