"""Server of `GET /metrics` over HTTP, in the broker's event loop: one request a connection.

It is for a scraper on the same machine: no TLS, no login, and no more of HTTP than that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_BYTES_MAX = 8_192
REQUEST_SECONDS_MAX = 5.0
"""Time after which a connection without a request is closed."""
CONNECTIONS_MAX = 16


class MetricsServer:
    """Server that answers with the result of `text`; `listening` is a bound socket."""

    def __init__(self, listening: socket.socket, text: Callable[[], str]) -> None:
        self._listening = listening
        self._text = text
        self._open = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Accept connections from now on."""
        self._server = await asyncio.start_server(
            self._serve, sock=self._listening, limit=REQUEST_BYTES_MAX
        )

    def close(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_SECONDS_MAX):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head))
                    await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError):
            writer.transport.abort()  # a client that asks like this gets no answer
        finally:
            self._open -= 1
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "")
        if path != b"/metrics":
            return _response("404 Not Found", "")
        return _response("200 OK", self._text(), with_body=method == b"GET")


def _response(status: str, text: str, *, with_body: bool = True) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
