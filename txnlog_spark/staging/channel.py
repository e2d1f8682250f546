"""A blocking connection to the staging server, of a task or of the committer."""

from __future__ import annotations

import hmac
import json
import os
import select
import socket
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from txnlog_spark.staging import frames
from txnlog_spark.staging.frames import Kind, NotAFrame

if TYPE_CHECKING:
    import ssl

TIMEOUT_S = 120.0
"""How long the server may take nothing and give nothing: it may be writing for many tasks."""


BUSY_PAUSE_S = 0.05


class ServerGone(Exception):
    """The staging server does not answer, or is not one; the text says how that showed."""


class ServerUnreachable(ServerGone):
    """No connection to the staging server was made."""


class ServerAnswered(Exception):
    """The staging server answers otherwise than asked."""


class Channel:
    """Frames over one socket. Errors of the connection are ServerGone."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.settimeout(TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; an attempt that is not finished is none."""
        self._socket.close()

    def send(self, kind: Kind, body: bytes | bytearray | memoryview = b"") -> None:
        """Send one frame. Raises ServerGone."""
        try:
            self._socket.sendall(frames.frame(kind, body))
        except OSError as error:
            raise ServerGone(_reason(error)) from error

    def receive(self) -> tuple[Kind, bytearray]:
        """The next frame. Raises ServerGone."""
        try:
            kind, size_bytes = frames.parse_header(self._exactly(frames.HEADER_BYTES))
            return kind, self._exactly(size_bytes)
        except OSError as error:
            raise ServerGone(_reason(error)) from error
        except NotAFrame as error:
            raise ServerGone(str(error)) from error

    def ask(self, kind: Kind, value: Any, wanted: Kind) -> bytearray:
        """The body of the answer to a JSON request. Raises ServerGone and ServerAnswered."""
        self.send(kind, json.dumps(value).encode())
        answer, body = self.receive()
        if answer is not wanted:
            raise ServerAnswered(body.decode(errors="replace"))
        return body

    def refusal(self) -> str | None:
        """Why the server takes no more of an attempt, when it has said so. Raises ServerGone."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(0):
            return None
        kind, body = self.receive()
        return body.decode(errors="replace") if kind is Kind.REFUSED else f"it sent {kind.name}"

    def _exactly(self, size_bytes: int) -> bytearray:
        data = bytearray(size_bytes)
        view, position = memoryview(data), 0
        while position < size_bytes:
            count = self._socket.recv_into(view[position:])
            if count == 0:
                raise ConnectionResetError("the connection was closed")
            position += count
        return data


def connect_local(path: str) -> Channel:
    """Over the Unix socket of a server on this machine. Raises ServerGone."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(path)
        except BlockingIOError as error:  # its backlog is full
            connection.close()
            if time.monotonic() > deadline:
                raise ServerGone(_reason(error)) from error
            time.sleep(BUSY_PAUSE_S)
        except OSError as error:
            connection.close()
            raise ServerGone(_reason(error)) from error
        else:
            return Channel(connection)


def notice_dead_peers(connection: socket.socket) -> None:
    """Within two minutes, where the system's own default is hours."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def connect_remote(host: str, port: int, token: str) -> Channel:
    """Over TLS, each side proving the token to the other. Raises ServerGone."""
    # Here, because tasks and committers beside the server need no TLS.
    from txnlog_spark.staging.certificates import task_context

    try:
        plain = socket.create_connection((host, port), timeout=TIMEOUT_S)
    except OSError as error:
        raise ServerUnreachable(_reason(error)) from error
    try:
        notice_dead_peers(plain)
        secured = task_context().wrap_socket(plain)
    except OSError as error:
        plain.close()
        raise ServerGone(_reason(error)) from error
    channel = Channel(secured)
    try:
        _prove(channel, secured, bytes.fromhex(token))
    except ServerGone:
        channel.close()
        raise
    return channel


def _prove(channel: Channel, secured: ssl.SSLSocket, token: bytes) -> None:
    """The server proves it first: an impostor learns nothing that it could use."""
    certificate = secured.getpeercert(binary_form=True) or b""
    nonce = os.urandom(frames.NONCE_BYTES)
    channel.send(Kind.NONCE, nonce)
    kind, given = channel.receive()
    wanted = frames.proof(token, "server", certificate, nonce)
    if kind is not Kind.PROOF or not hmac.compare_digest(given, wanted):
        raise ServerGone("another server answers there")
    channel.send(Kind.PROOF, frames.proof(token, "task", certificate, nonce))


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
