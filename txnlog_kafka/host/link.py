"""Byte stream to one address: looked up, connected, and under TLS, without ever blocking.

Theory of operation. `waits_on` and `wants_write` tell the client which socket event to wait for,
and `advance` goes on from there until the link `is_open`: the host name is looked up in a thread,
its addresses are tried in turn, then the two sides of TLS exchange the bytes of `tls.Tls`. After
that `send` takes bytes and `receive` returns bytes. Sent bytes may wait here for the socket.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from txnlog_kafka.host.background_calls import BackgroundCall
from txnlog_kafka.host.failures import ConnectionFailed, LinkBroken, TlsFailed

if TYPE_CHECKING:
    from txnlog_kafka.host.tls import Tls

RECEIVE_BYTES = 64 * 1024
"""Bytes received at a time; the rest of a large frame goes into its own space (`framing`)."""
RECEIVE_SEALED_BYTES = 1024 * 1024
SEAL_BYTES = 256 * 1024
"""Bytes of a request that are encrypted at a time."""
_CONNECTED = (0, errno.EISCONN)
_CONNECTING = (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK)
_AddressInfo = tuple[Any, ...]
T = TypeVar("T")


class Link:
    """Socket that does not block, to `address`, with or without TLS."""

    def __init__(self, address: tuple[str, int], tls: Tls | None = None) -> None:
        """Prepare the link; the first `advance` opens it."""
        self.name = f"{address[0]}:{address[1]}"
        self.is_connected = False
        self._tls = tls
        self._lookup: BackgroundCall[list[_AddressInfo]] | None = None
        self._candidates: list[_AddressInfo] = []
        self._socket: socket.socket | None = None
        self._socket_address: Any = None
        self._unsent = memoryview(b"")
        try:
            self._candidates = _resolve_address(address, socket.AI_NUMERICHOST)
        except (OSError, ValueError):
            # Not an address in numbers.
            self._lookup = BackgroundCall(lambda: _resolve_address(address, 0))

    @property
    def is_open(self) -> bool:
        """True if requests may go out."""
        return self.is_connected and (self._tls is None or self._tls.is_open)

    @property
    def waits_on(self) -> socket.socket:
        """Socket to wait for."""
        if self._lookup is not None:
            return self._lookup.socket
        return self._open_socket

    @property
    def wants_write(self) -> bool:
        """True if the link waits until the socket takes bytes."""
        return self._lookup is None and (bool(self._unsent) or not self.is_connected)

    @property
    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise LinkBroken(" is closed")
        return self._socket

    def advance(self) -> None:
        """Go on opening, or write the bytes that wait. Raises ConnectionFailed, LinkBroken."""
        if self.is_connected:
            self._flush()
            return
        if self._lookup is not None:
            if not self._lookup.is_done:
                return
            try:
                self._candidates = self._lookup.result()
            except (OSError, ValueError) as error:
                raise self._cannot_connect(error) from error
            finally:
                self._lookup.close()
            self._lookup = None
        self._connect()

    def try_next_address(self) -> bool:
        """Give up the address that does not answer; return False if the host has no other address.

        Raises as `advance`.
        """
        if self.is_connected or self._lookup is not None or not self._candidates:
            return False
        self.close()
        self._connect()
        return True

    def _connect(self) -> None:
        """Try the addresses of the host in turn, each until it is known to have failed."""
        failed: Exception = OSError("the host has no address")
        while True:
            if self._socket is None:
                if not self._candidates:
                    raise self._cannot_connect(failed) from failed
                family, kind, protocol, _, self._socket_address = self._candidates.pop(0)
                try:
                    self._socket = socket.socket(family, kind, protocol)
                except OSError as error:
                    # Such as an IPv6 address on a machine without IPv6: the next may be another.
                    failed = error
                    continue
                self._socket.setblocking(False)
            try:
                code = self._socket.connect_ex(self._socket_address)
            except (OSError, ValueError, OverflowError) as error:
                # The last two: a host or a port that a broker reported, and that cannot be one.
                failed, code = error, errno.EINVAL
            else:
                if code in _CONNECTED:
                    break
                if code in _CONNECTING:
                    return
                failed = OSError(code, os.strerror(code))
            self._socket.close()
            self._socket = None
        self._on_connected(self._socket)

    def _on_connected(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A network that forgets a quiet connection in silence is found out by the kernel.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.is_connected = True
        if self._tls is not None:
            with self._tls_failures():
                self._tls.start()
            self._flush()

    def _cannot_connect(self, error: Exception) -> ConnectionFailed:
        return ConnectionFailed(f"cannot connect to {self.name}: {error}")

    def send(self, pieces: Sequence[memoryview]) -> int:
        """Send bytes, and return how many were taken, from the first on; 0 if none can go now.

        Under TLS they may wait here, for `advance`. Raises ConnectionFailed, LinkBroken: then none
        was taken.
        """
        self._flush()
        if self._unsent:
            return 0
        if self._tls is None:
            return self._write(pieces)
        taken = pieces[0][:SEAL_BYTES]
        with self._tls_failures():
            self._tls.seal(taken)
        self._unsent = memoryview(self._tls.take())
        return len(taken)

    def _flush(self) -> None:
        """Write the bytes that TLS has for the peer, as far as the socket takes them."""
        while True:
            if not self._unsent and self._tls is not None:
                self._unsent = memoryview(self._tls.take())
            if not self._unsent:
                return
            written = self._write([self._unsent])
            if not written:
                return
            self._unsent = self._unsent[written:]

    def _write(self, pieces: Sequence[memoryview]) -> int:
        try:
            return self._open_socket.sendmsg(pieces)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broken(f": {error}") from error

    def receive(self) -> bytes:
        """Return the bytes that have arrived, b"" for none. Raises ConnectionFailed, LinkBroken."""
        size = RECEIVE_BYTES if self._tls is None else RECEIVE_SEALED_BYTES
        data = self._read_socket(lambda: self._open_socket.recv(size)) or b""
        if self._tls is None or not data:
            return data
        with self._tls_failures():
            received = self._tls.receive(data)
        self._flush()
        if self._tls.has_ended and not received:
            raise LinkBroken(" closed the connection")
        return received

    @property
    def is_sealed(self) -> bool:
        """True if the bytes that arrive are encrypted."""
        return self._tls is not None

    def receive_into(self, space: memoryview) -> int:
        """Receive into this space; return the number of bytes, 0 for none. Raises as `receive`."""
        return self._read_socket(lambda: self._open_socket.recv_into(space)) or 0

    def _read_socket(self, receive: Callable[[], T]) -> T | None:
        """Return the bytes or their number; None if nothing has arrived."""
        try:
            received = receive()
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._broken(f": {error}") from error
        if not received:
            raise self._broken(" closed the connection")
        return received

    @contextlib.contextmanager
    def _tls_failures(self) -> Iterator[None]:
        try:
            yield
        except TlsFailed as error:
            # The peer learns it by the alert that TLS has left to be sent.
            with contextlib.suppress(LinkBroken, ConnectionFailed):
                self._flush()
            raise ConnectionFailed(
                f"{self.name}: {error}", final=error.final, is_security=error.final
            ) from error

    def _broken(self, what: str) -> LinkBroken | ConnectionFailed:
        """Return the error: an end within the TLS handshake says more than a broken connection."""
        if self._tls is None or self._tls.is_open:
            return LinkBroken(what)
        return ConnectionFailed(f"{self.name}{what}{self._tls.ended_early}")

    def close(self) -> None:
        """Close the lookup and the socket."""
        if self._lookup is not None:
            self._lookup.close()
        if self._socket is not None:
            # The network may have failed before. `close` frees the socket even if it says so now.
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None


def _resolve_address(address: tuple[str, int], flags: int) -> list[_AddressInfo]:
    host, port = address
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))
