"""Open many raw connections to one broker from one thread, and read a process's memory."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import psutil

from txnlog_kafka.wire.framing import decode_response, encode_request
from txnlog_kafka.wire.messages import api_of

ANSWER_SECONDS_MAX = 600.0


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_id = 0

    def send(self, message: Any, version: int) -> int:
        """Send one request without waiting; its correlation id."""
        self._correlation_id += 1
        self.writer.write(bytes(encode_request(message, version, self._correlation_id, "swarm")))
        return self._correlation_id

    async def receive(self) -> bytes:
        """The next answer's frame without its length; EOFError when the broker has closed."""
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            try:
                (size,) = struct.unpack(">i", await self.reader.readexactly(4))
                return await self.reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError) as gone:
                raise EOFError("the broker closed the connection") from gone

    async def ask(self, message: Any, version: int) -> Any:
        correlation_id = self.send(message, version)
        frame = await self.receive()
        assert struct.unpack_from(">i", frame) == (correlation_id,)
        return decode_response(api_of(message), version, frame)

    async def is_closed(self) -> bool:
        """True if the broker closes the connection without having sent anything."""
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        self.writer.transport.abort()


async def connect(port: int, count: int) -> list[Peer]:
    """Open `count` connections, one after another in batches."""
    peers: list[Peer] = []
    while len(peers) < count:
        batch = min(100, count - len(peers))
        opened = [asyncio.open_connection("127.0.0.1", port) for _ in range(batch)]
        peers += [Peer(*pair) for pair in await asyncio.gather(*opened)]
    return peers


def resident_bytes(pid: int) -> int:
    return psutil.Process(pid).memory_info().rss


def open_descriptors(pid: int) -> int:
    return psutil.Process(pid).num_fds()
