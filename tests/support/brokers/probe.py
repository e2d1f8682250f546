"""Is a broker up: one hand-written Metadata request, so that no client under test is involved."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Callable

PAUSE_S = 0.05
TIMEOUT_S = 600.0
PORT_MIN, PORT_END = 15_000, 32_000
_random = random.SystemRandom()
METADATA_V1_ALL_TOPICS = struct.pack(">hhihi", 3, 1, 1, -1, -1)
"""api key 3, version 1, correlation id 1, null client id, null topic array."""


class NotReady(AssertionError):
    """The thing waited for did not come in time."""


def pause(seconds: float = PAUSE_S) -> None:
    """Wait without `time.sleep`, which the tests do not use."""
    threading.Event().wait(seconds)


def wait_until(condition: Callable[[], bool], what: str, *, timeout_s: float = TIMEOUT_S) -> None:
    """Return when `condition()` is true; NotReady naming `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise NotReady(f"waited {timeout_s} s for {what}")
        pause()


def wait_for(read: Callable[[], object], expected: object, *, timeout_s: float = TIMEOUT_S) -> None:
    """Return when `read()` equals `expected`; NotReady showing the last value otherwise."""
    deadline = time.monotonic() + timeout_s
    while (value := read()) != expected:
        if time.monotonic() > deadline:
            raise NotReady(f"after {timeout_s} s: {value!r} is still not {expected!r}")
        pause()


def ports_of(bootstrap: str) -> list[int]:
    """The ports of these brokers, all on loopback."""
    return [int(address.rpartition(":")[2]) for address in bootstrap.split(",")]


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nothing listens on, all different.

    From below the range that the system takes the ports of connections and of "any port" from:
    there somebody else would now and then get one between this call and its use, or while a killed
    broker is down, and a client that goes on connecting to itself would be one of them.
    """
    chosen: list[int] = []
    while len(chosen) < count:
        port = _random.randrange(PORT_MIN, PORT_END)
        if port not in chosen and _is_free(port):
            chosen.append(port)
    return chosen


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def is_open(port: int) -> bool:
    """True if a process listens on this port of this machine."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def read_exactly(sock: socket.socket, count: int) -> bytes:
    """`count` bytes; EOFError when the peer closes before."""
    data = b""
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        if not chunk:
            raise EOFError(f"closed after {len(data)} of {count} bytes")
        data += chunk
    return data


def exchange(sock: socket.socket, request: bytes) -> bytes:
    """Send one frame, return the body of the answer's frame."""
    sock.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", read_exactly(sock, 4))
    return read_exactly(sock, size)


def live_brokers(port: int) -> int:
    """Return how many brokers the broker at `port` knows to be alive; 0 if it cannot be asked."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as sock:
            answer = exchange(sock, METADATA_V1_ALL_TOPICS)
    except (OSError, EOFError):
        return 0
    return int(struct.unpack_from(">i", answer, 4)[0])
