"""Addresses of this machine behind which brokers are further away: all that passes comes later.

Each chunk of bytes is handed on a fixed time after it came, both ways, whatever is still on its
way: requests that were sent one after the other arrive one after the other, and wait for each
other no longer than they did before. Runs on a loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
SECONDS_MAX = 30.0
HOST = "127.0.0.1"


class DelayLine:
    """See the module. `round_trip_ms` is what a request and its answer lose together."""

    def __init__(self, round_trip_ms: float) -> None:
        self._one_way_s = round_trip_ms / 2000
        # The default one, epoll, rounds each wait up to a millisecond.
        self._loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def open(self, target_port: int) -> int:
        """A port that leads to that one."""

        def accept() -> asyncio.Protocol:
            return _Near(self._loop, self._one_way_s, target_port)

        server = self._run(self._loop.create_server(accept, HOST, 0))
        return int(server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop delaying: open connections are dropped."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS_MAX)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS_MAX)


class _End(asyncio.Protocol):
    """End of a connection: `other` sends later what this end receives."""

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: float) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._on_way: deque[bytes] = deque()
        """Data on its way, in order; b"" is the end."""
        self.other: _End | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._on_way.append(data)
        self._loop.call_later(self._delay_s, self._arrive)

    def connection_lost(self, exc: Exception | None) -> None:
        self.data_received(b"")

    def _arrive(self) -> None:
        data = self._on_way.popleft()
        other = None if self.other is None else self.other.transport
        if other is None or other.is_closing():
            return
        if data:
            other.write(data)
        else:
            other.close()


class _Near(_End):
    """The client's end; what comes before the broker's is there is part of the delay."""

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: float, target_port: int) -> None:
        super().__init__(loop, delay_s)
        self._target_port = target_port
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()
        self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        far = _End(self._loop, self._delay_s)
        try:
            await self._loop.create_connection(lambda: far, HOST, self._target_port)
        except OSError:
            self.transport.close()
            return
        self.other, far.other = far, self
        self.transport.resume_reading()
