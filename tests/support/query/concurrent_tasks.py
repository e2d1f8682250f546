"""Run many tasks on the staging server at once, from one thread: each speaks its protocol by
hand."""

from __future__ import annotations

import asyncio
import os
from collections import Counter

from txnlog_spark.staging import frames
from txnlog_spark.staging.address import ServerAddress
from txnlog_spark.staging.certificates import task_context
from txnlog_spark.staging.frames import Kind, TaskAttempt

HOST = "127.0.0.1"
WAVE_SECONDS_MAX = 110.0
"""A task waits 120 s for the server before it gives up."""
_STEP_SECONDS = 0.05
"""Between the server's proof and the task's, as on a busy executor."""


async def _receive(reader: asyncio.StreamReader) -> tuple[Kind, bytes]:
    kind, size_bytes = frames.parse_header(await reader.readexactly(frames.HEADER_BYTES))
    return kind, await reader.readexactly(size_bytes)


async def _task(server: ServerAddress, name: str) -> str:
    """Stage a row; the kind of the server's answer, or of the error."""
    try:
        reader, writer = await asyncio.open_connection(
            HOST, server.port, ssl=task_context(), local_addr=(HOST, 0),
            ssl_handshake_timeout=WAVE_SECONDS_MAX,
        )  # fmt: skip
    except OSError as error:
        return type(error).__name__
    token = bytes.fromhex(server.token)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    nonce = os.urandom(frames.NONCE_BYTES)
    try:
        writer.write(frames.frame(Kind.NONCE, nonce))
        assert (await _receive(reader))[0] is Kind.PROOF
        await asyncio.sleep(_STEP_SECONDS)
        writer.write(frames.frame(Kind.PROOF, frames.proof(token, "task", certificate, nonce)))
        writer.write(frames.frame(Kind.OPEN, TaskAttempt("q", 3, "r", name).encode()))
        writer.write(frames.frame(Kind.DATA, b"a row"))
        writer.write(frames.frame(Kind.CLOSE, b"index"))
        return (await _receive(reader))[0].name
    except (OSError, asyncio.IncompleteReadError) as error:
        return type(error).__name__
    finally:
        writer.transport.abort()


class _Silent:
    """Connections of somebody who begins TLS, as anybody can, and then says nothing."""

    def __init__(self, server: ServerAddress, count: int, source: str, secured: int) -> None:
        self._server = server
        self._source = source
        self._left = secured
        self.has_secured = asyncio.Event()
        self._tasks = [asyncio.create_task(self._hold()) for _ in range(count)]

    async def _hold(self) -> None:
        reader, writer = await asyncio.open_connection(
            HOST, self._server.port, ssl=task_context(), local_addr=(self._source, 0),
            ssl_handshake_timeout=WAVE_SECONDS_MAX,
        )  # fmt: skip
        self._left -= 1
        if self._left <= 0:
            self.has_secured.set()
        try:
            await reader.read()
        finally:
            writer.transport.abort()

    async def end(self) -> None:
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def stage_in_many_tasks(
    server: ServerAddress, count: int, silent: tuple[int, str] = (0, "")
) -> Counter[str]:
    """Stage from `count` tasks at once; return how many tasks got which answer. `silent` is a
    number of connections that say nothing, and their address: most of them are open before. Raises
    TimeoutError."""

    async def run() -> Counter[str]:
        others = _Silent(server, *silent, secured=silent[0] * 2 // 3)
        async with asyncio.timeout(WAVE_SECONDS_MAX):
            if silent[0]:
                await others.has_secured.wait()
            tasks = (_task(server, f"task-{number}") for number in range(count))
            try:
                return Counter(await asyncio.gather(*tasks))
            finally:
                await others.end()

    return asyncio.run(run())
