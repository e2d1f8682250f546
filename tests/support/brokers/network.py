"""A network between processes of this machine that can be cut: each has a door to connect by.

Who connects says so itself, by the client id of its first request (`broker-2`). As on a real
network bytes that a cut holds up arrive when it is healed, and so does the end of a connection:
nobody learns of either before. Runs on a loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterable

_HEAD = struct.Struct(">ihhih")
"""Head of a request: size, api key, version, correlation id, length of the client id."""
_CHUNK_BYTES = 65_536
_SECONDS_MAX = 30.0

Way = tuple[int, int]
"""Way from one process to another, by their numbers."""


class Network:
    """See the module. Use `close` at the end."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._cut: set[Way] = set()
        self._changed = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._open: dict[asyncio.StreamWriter, Way] = {}
        """Both ends of each connection, with the way that the end's bytes take."""

    def door(self, number: int, target_port: Callable[[], int]) -> int:
        """A port by which others reach the process of this number."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._carry(number, target_port, reader, writer)

        async def open_door() -> asyncio.Server:
            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self._servers.append(server)
            return server

        return self._run(open_door()).sockets[0].getsockname()[1]

    @property
    def cut_ways(self) -> frozenset[Way]:
        return frozenset(self._cut)

    def cut(self, ways: Iterable[Way]) -> None:
        """Let nothing pass these ways any more."""

        async def change() -> None:
            self._cut.update(ways)

        self._run(change())

    def heal(self, ways: Iterable[Way] | None = None) -> None:
        """Open these ways again, or all ways; bytes that were held up arrive."""

        async def change() -> None:
            self._cut.difference_update(set(self._cut) if ways is None else ways)
            self._changed.set()
            self._changed = asyncio.Event()

        self._run(change())

    def reset(self, ways: Iterable[Way]) -> None:
        """Connections that carry anything by these ways end at once."""

        async def change() -> None:
            wanted = set(ways)
            for writer in [each for each, way in self._open.items() if way in wanted]:
                writer.transport.abort()

        self._run(change())

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            for writer in list(self._open):
                writer.transport.abort()

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SECONDS_MAX)

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_SECONDS_MAX)

    # ------------------------------------------------------------------ one connection

    async def _carry(
        self,
        number: int,
        target_port: Callable[[], int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            head = await reader.readexactly(_HEAD.size)
            name = await reader.readexactly(max(0, _HEAD.unpack(head)[4]))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        sender = int(name.rpartition(b"-")[2])
        there, back = (sender, number), (number, sender)
        self._open[writer] = back
        try:
            await self._passable(there)
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target_port())
        except OSError:
            await self._passable(back)
            self._forget(writer)
            return
        self._open[far_writer] = there
        far_writer.write(head + name)
        await asyncio.gather(
            self._pump(there, reader, far_writer), self._pump(back, far_reader, writer)
        )

    async def _pump(
        self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while data := await reader.read(_CHUNK_BYTES):
                await self._passable(way)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # the other pump's end is closed below, as if by its peer
        await self._passable(way)
        self._forget(writer)

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._open.pop(writer, None)
        writer.close()

    async def _passable(self, way: Way) -> None:
        while way in self._cut:
            await self._changed.wait()
