"""One connection to the staging server, as the server reads and writes it.

What comes is taken in place, from a buffer that the connection has for itself. While it is full
nothing is read, so that TCP holds a task back that sends faster than the disk takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from txnlog_kafka.wire.invariants import present
from txnlog_spark.staging import frames
from txnlog_spark.staging.frames import Kind

BUFFER_BYTES = 128 * 1024
"""Read ahead of one connection: there may be a thousand."""
WHOLE_BYTES_MAX = 1024 * 1024
"""Of a frame that is read as a whole: Open, and what the driver asks."""


class Closed(Exception):
    """The other side has closed the connection between two frames."""


class Torn(Exception):
    """The other side has closed the connection inside a frame."""


class Peer(asyncio.BufferedProtocol):
    """A connection's protocol, and its frames for the one task that serves it.

    Reading raises Closed, Torn, and the OSError that has ended the connection.
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
        """The connection is there."""
        self._transport = transport  # type: ignore[assignment]  # TCP, TLS and Unix sockets'

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  asyncio's signature
        """Where the next bytes go."""
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many have come."""
        self._end += nbytes
        if self._end == BUFFER_BYTES:
            self._is_paused = True
            self._open_transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """No more will come."""
        self._is_over = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
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
        """The next frame's type and size. Raises NotAFrame as well."""
        if not await self._has_more():
            raise Closed
        return frames.parse_header(await self._whole(frames.HEADER_BYTES), body_bytes_max)

    async def body(self, size_bytes: int) -> AsyncIterator[memoryview]:
        """A frame's body as it comes; each part is gone when the next one is asked for."""
        while size_bytes:
            if not await self._has_more():
                raise Torn
            end = min(self._end, self._start + size_bytes)
            part = self._buffer[self._start : end]
            self._start = end
            size_bytes -= len(part)
            yield part

    async def receive(self, body_bytes_max: int = WHOLE_BYTES_MAX) -> tuple[Kind, bytes]:
        """The next frame. Raises NotAFrame as well."""
        kind, size_bytes = await self.header(body_bytes_max)
        return kind, await self._whole(size_bytes)

    def send(self, frame: bytes) -> None:
        """An answer, which is small."""
        self._open_transport.write(frame)

    def close(self) -> None:
        """Close the connection, when what was sent is on its way."""
        self._open_transport.close()

    async def _whole(self, size_bytes: int) -> bytes:
        return b"".join([bytes(part) async for part in self.body(size_bytes)])

    async def _has_more(self) -> bool:
        """Wait until something is in the buffer; False when nothing will be."""
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
