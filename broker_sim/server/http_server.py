"""Small HTTP server in the broker's event loop: one request a connection.

It is for a scraper or a test on the same machine: no TLS, no login, and no more of HTTP than that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_BYTES_MAX = 8_192
REQUEST_SECONDS_MAX = 5.0
"""Time after which a connection without a request is closed."""
CONNECTIONS_MAX = 16
_LENGTH = b"content-length:"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status line without the version, type and text of an answer."""

    status: str
    text: str = ""
    content_type: str = METRICS_TYPE


Answer = Callable[[str, str, bytes], HttpAnswer]
"""Function of a method, a path without its query, and a body."""


class HttpServer:
    """Server that answers with the result of `answer`; `listening` is a bound socket."""

    def __init__(self, listening: socket.socket, answer: Answer) -> None:
        self._listening = listening
        self._answer = answer
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
                    body = await reader.readexactly(min(_length(head), REQUEST_BYTES_MAX))
                    writer.write(self._answer_bytes(head, body))
                    await writer.drain()
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, TimeoutError):
            writer.transport.abort()  # a client that asks like this gets no answer
        finally:
            self._open -= 1
            writer.close()

    def _answer_bytes(self, head: bytes, body: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        answer = self._answer(method.decode("latin-1"), path.decode("latin-1"), body)
        text = answer.text.encode()
        said = (
            f"HTTP/1.1 {answer.status}\r\nContent-Type: {answer.content_type}\r\n"
            f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        )
        return said.encode() + (b"" if method == b"HEAD" else text)


def _length(head: bytes) -> int:
    """Return the length of the body. Raises ValueError."""
    for line in head.lower().split(b"\r\n"):
        if line.startswith(_LENGTH):
            return max(0, int(line.removeprefix(_LENGTH)))
    return 0


def metrics_answer(text: Callable[[], str]) -> Answer:
    """Return what answers `GET /metrics` with a text."""

    def answer(method: str, path: str, body: bytes) -> HttpAnswer:
        del body
        if method not in ("GET", "HEAD"):
            return HttpAnswer("405 Method Not Allowed")
        if path != "/metrics":
            return HttpAnswer("404 Not Found")
        return HttpAnswer("200 OK", text())

    return answer
