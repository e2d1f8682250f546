"""A broker host in this process, on real files, whose system calls fail where a test says."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.core.broker_build import SMALL

from broker_sim.core.broker import Broker
from broker_sim.core.config import BrokerConfig
from broker_sim.server.broker_server import BrokerServer
from broker_sim.server.client_connection import ClientConnection
from broker_sim.server.space import SpaceGuard
from broker_sim.server.storage import FileStorage
from broker_sim.server.system import System
from txnlog_kafka.wire.framing import FrameDecoder, decode_response, encode_request
from txnlog_kafka.wire.messages import api_of

PLENTY = 1 << 40


class Gone(Exception):
    """The broker closed the connection: the outcome is unknown."""


class FailingSystem(System):
    """Counts the calls that change something, and asks `fault` before each: None or an error.

    A fault for a write may also be a number: so many bytes are written, then there is no room.
    Flushes are counted and not done; what of each file they would have made safe is remembered.
    """

    def __init__(self, fault: Callable[[int, str], OSError | int | None]) -> None:
        self.calls = 0
        self.log: list[str] = []
        self.safe_bytes: dict[str, int] = {}
        self._fault = fault

    def _meet(self, call: str) -> int | None:
        number, self.calls = self.calls, self.calls + 1
        self.log.append(call)
        fault = self._fault(number, call)
        if isinstance(fault, OSError):
            raise fault
        return fault

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT:
            self._meet("create")
        return super().open(path, flags)

    def write(self, descriptor: int, data, position: int) -> int:
        allowed = self._meet("write")
        if allowed is None:
            return super().write(descriptor, data, position)
        if min(allowed, len(data)) == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(descriptor, bytes(data)[:allowed], position)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._meet("truncate")
        super().truncate(descriptor, size_bytes)

    def sync(self, descriptor: int) -> None:
        self._meet("sync")
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self.safe_bytes[path] = os.fstat(descriptor).st_size

    def sync_folder(self, path: Path) -> None:
        self._meet("sync folder")

    def make_folder(self, path: Path) -> None:
        self._meet("make folder")
        super().make_folder(path)

    def rename(self, path: Path, new_path: Path) -> None:
        self._meet("rename")
        super().rename(path, new_path)
        size = self.safe_bytes.pop(str(path), None)
        if size is not None:
            self.safe_bytes[str(new_path)] = size

    def remove(self, path: Path) -> None:
        self._meet("remove")
        super().remove(path)

    def lose_power(self, root: Path) -> None:
        """Keep of each file what was flushed."""
        for path in root.rglob("*"):
            if path.is_file() and path.name not in (".lock", ".space-reserve"):
                safe = self.safe_bytes.get(str(path), 0)
                os.truncate(path, min(safe, path.stat().st_size))


class _Transport:
    """The broker's side of a connection that stays in this process."""

    def __init__(self) -> None:
        self.frames = FrameDecoder()
        self.connection: ClientConnection | None = None
        self.closed = False

    def set_write_buffer_limits(self, high: int) -> None:
        del high

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.frames.append(bytes(data))

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
        if self.connection is not None:
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)
            self.connection = None

    abort = close


class HostOnFiles:
    """Life of a broker on `root`. Use it inside a running event loop."""

    def __init__(self, root: Path, system: System | None = None) -> None:
        self.free_bytes = PLENTY
        config = BrokerConfig(SMALL | {"connections.max.idle.ms": -1})
        self.storage = FileStorage(root, system)
        space = SpaceGuard(root, 1 << 20, lambda: self.free_bytes)
        rng = random.Random(1)
        self.host = BrokerServer(lambda: Broker(config, self.storage, rng), self.storage, config,
                               space)  # fmt: skip
        self.host.start()
        self._correlation_id = 0
        self._transport: _Transport | None = None

    async def ask(self, message: Any, version: int) -> Any:
        """The answer. Raises Gone when the connection is closed, or the broker failed, instead."""
        transport, connection = self._connected()
        self._correlation_id += 1
        connection.data_received(encode_request(message, version, self._correlation_id, "c"))
        for _ in range(10_000):
            frame = transport.frames.pop()
            if frame is not None:
                assert struct.unpack_from(">i", frame) == (self._correlation_id,)
                return decode_response(api_of(message), version, frame)
            if transport.closed or self.host.failed.done():
                self._transport = None
                raise Gone
            await asyncio.sleep(0)
        raise AssertionError("no answer")

    def _connected(self) -> tuple[_Transport, ClientConnection]:
        if self._transport is None or self._transport.connection is None:
            self._transport = _Transport()
            self._transport.connection = self.host.accept()
            self._transport.connection.connection_made(self._transport)
        connection = self._transport.connection
        assert connection is not None
        return self._transport, connection

    def die(self) -> None:
        """The process ends: nothing is flushed or closed in order."""
        self.host.failed.cancel()
        self.host._cancel_timers()
        self.storage._close_all()
