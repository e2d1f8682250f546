"""A blocking connection to the staging server, of a task or of the committer."""

from __future__ import annotations

import hmac
import json
import logging
import os
import re
import select
import socket
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from txnlog_spark.errors import do_this
from txnlog_spark.staging import frames
from txnlog_spark.staging.frames import Kind, NotAFrame

if TYPE_CHECKING:
    import ssl

logger = logging.getLogger(__name__)

TIMEOUT_S = 55.0
"""Longest time that the server may neither read nor answer: it may be writing for many tasks. An
error names a hanging server within a minute."""
TURN_TIMEOUT_S = 120.0
"""Longest wait of a task for its turn to prove the token (`unproved`). A log line names the server
after TIMEOUT_S."""
STOOD_STILL_S = 10.0
"""If a connection breaks after more than this time during the proof, the task connects once more: a
server that was suspended finds, when it runs again, that the time for the proof is over."""
BUSY_PAUSE_S = 0.05


WHAT_TO_DO = (
    "look at that process on the driver's machine. If it is stopped, kill -CONT lets it go on; if "
    "it hangs (stagingDirectory may be on a disk that does), end it with kill -9"
)

_PROCESS = re.compile(r"\(process (\d+)")
"""Process id in the name of a server."""


class ServerGone(Exception):
    """The staging server is gone, or another program answers there; the text is the symptom."""


class ServerSilent(ServerGone):
    """The connection to the staging server is open, but the server neither reads nor answers."""


class ServerUnreachable(ServerGone):
    """The connection to the staging server could not be made."""


class ServerAnswered(Exception):
    """The staging server sent an answer of another kind than was asked for."""


class Channel:
    """Frames over one socket. Errors of the connection are raised as ServerGone."""

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
        """Close the connection; the server drops an attempt that is not finished."""
        self._socket.close()

    def send(self, kind: Kind, body: bytes | bytearray | memoryview = b"") -> None:
        """Send one frame. Raises ServerGone.

        TIMEOUT_S starts again whenever the server reads a part: a slow server is not silent.
        """
        left = memoryview(frames.frame(kind, body))
        try:
            while left:
                left = left[self._socket.send(left) :]
        except OSError as error:
            raise _gone(error) from error

    def receive(self) -> tuple[Kind, bytearray]:
        """Return the next frame. Raises ServerGone."""
        try:
            kind, size_bytes = frames.parse_header(self._exactly(frames.HEADER_BYTES))
            return kind, self._exactly(size_bytes)
        except OSError as error:
            raise _gone(error) from error
        except NotAFrame as error:
            raise ServerGone(str(error)) from error

    def ask(self, kind: Kind, value: Any, wanted: Kind) -> bytearray:
        """Send a JSON request; return the answer's body. Raises ServerGone and ServerAnswered."""
        self.send(kind, json.dumps(value).encode())
        answer, body = self.receive()
        if answer is not wanted:
            raise ServerAnswered(body.decode(errors="replace"))
        return body

    def refusal(self) -> str | None:
        """Return the reason if the server has refused the attempt, else None. Raises ServerGone."""
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
    """Connect over the Unix socket of a server on this machine. Raises ServerGone."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(path)
        except BlockingIOError as error:  # its backlog is full
            connection.close()
            if time.monotonic() > deadline:
                raise ServerSilent(_reason(error)) from error
            time.sleep(BUSY_PAUSE_S)
        except OSError as error:
            connection.close()
            raise _gone(error) from error
        else:
            return Channel(connection)


def notice_dead_peers(connection: socket.socket) -> None:
    """Let the system notice a dead peer within two minutes; its own default is hours."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def connect_remote(host: str, port: int, token: str, who: str = "") -> Channel:
    """Connect over TLS; each side proves the token to the other. Raises ServerGone.

    `who` names the server in the log line of a task that waits long for its turn.
    """
    began = time.monotonic()
    waiting = threading.Timer(TIMEOUT_S, _say_waiting, (who or f"{host}:{port}",))
    waiting.daemon = True
    waiting.start()
    try:
        return _connect_proved(host, port, token)
    except (ServerUnreachable, ServerSilent):
        raise
    except ServerGone:
        if time.monotonic() - began < STOOD_STILL_S:
            raise
        return _connect_proved(host, port, token)
    finally:
        waiting.cancel()


def _say_waiting(who: str) -> None:
    logger.warning(
        "%s has not let this task in for %g s, the task waits %g s in all: %s. If it runs, too "
        "many connections wait for their turn",
        who,
        TIMEOUT_S,
        TURN_TIMEOUT_S,
        WHAT_TO_DO,
    )


def _connect_proved(host: str, port: int, token: str) -> Channel:
    # Imported here, because tasks and committers on the server's machine need no TLS.
    from txnlog_spark.staging.certificates import task_context

    try:
        plain = socket.create_connection((host, port), timeout=TIMEOUT_S)
    except OSError as error:
        raise ServerUnreachable(_reason(error)) from error
    try:
        notice_dead_peers(plain)
        plain.settimeout(TURN_TIMEOUT_S)
        secured = task_context().wrap_socket(plain)
    except OSError as error:
        plain.close()
        raise _gone(error) from error
    channel = Channel(secured)
    try:
        _prove_token(channel, secured, bytes.fromhex(token))
    except ServerGone:
        channel.close()
        raise
    return channel


def _prove_token(channel: Channel, secured: ssl.SSLSocket, token: bytes) -> None:
    """Exchange proofs of the token. The server proves first: an impostor learns nothing."""
    certificate = secured.getpeercert(binary_form=True) or b""
    nonce = os.urandom(frames.NONCE_BYTES)
    channel.send(Kind.NONCE, nonce)
    kind, given = channel.receive()
    wanted = frames.proof(token, "server", certificate, nonce)
    if kind is not Kind.PROOF or not hmac.compare_digest(given, wanted):
        raise ServerGone("another server answers there")
    channel.send(Kind.PROOF, frames.proof(token, "task", certificate, nonce))


def silence(who: str) -> str:
    """Say that a server is silent, and what to do."""
    return f"{who} has taken nothing and answered nothing for {TIMEOUT_S:g} s: {WHAT_TO_DO}"


def commands_for(who: str) -> str:
    """Return the commands for a silent server, for an error; "" if its name has no process."""
    named = _PROCESS.search(who)
    if named is None:
        return ""
    pid, there = named[1], f"process {named[1]} on the driver's machine"
    stopped = do_this(f"kill -CONT {pid}", f"if {there} is stopped")
    return stopped + do_this(f"kill -9 {pid}", f"if {there} hangs")


def _gone(error: OSError) -> ServerGone:
    """Return ServerSilent for a timeout of Python's socket, else ServerGone.

    Python's own timeout has no errno. A timeout with an errno comes from the system and means that
    the machine is gone.
    """
    is_silent = isinstance(error, TimeoutError) and error.errno is None
    return (ServerSilent if is_silent else ServerGone)(_reason(error))


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
