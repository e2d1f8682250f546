"""The staging server: a process beside Spark's driver that takes what tasks stage.

`python -m txnlog_spark.staging.server` gets its listening sockets from the process that starts it
(`address`): a Unix socket in a directory that only this user may enter, for the committer and for
tasks on this machine, and a TCP socket for executors elsewhere. TCP is TLS with a certificate made
at the start, and both sides prove the token (`frames.proof`).

Nothing is flushed: the bytes are of a batch whose transaction is not decided, and until it is,
Spark replays the batch from its sources. What a crash of the machine takes, the crash takes from a
batch that is replayed anyway.

A task that sends faster than the disk takes is held back by TCP, as its connection is not read
from meanwhile. The server ends with the application, its files with it; those of one that was
killed go when the next one starts on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import json
import logging
import os
import resource
import shutil
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from txnlog_kafka.host.processes import has_ended, remove_directory
from txnlog_spark.staging import frames
from txnlog_spark.staging.certificates import server_context
from txnlog_spark.staging.channel import notice_dead_peers
from txnlog_spark.staging.frames import Forgotten, Kind, NotAFrame, TaskAttempt
from txnlog_spark.staging.server_files import ALIVE_FILE, BACKLOG, START_FILE
from txnlog_spark.staging.store import Medium, Store, StoreFull
from txnlog_spark.staging.unproved import PROVING_BYTES, PROVING_MAX, UNPROVED_MAX, Unproved

Bytes = bytes | bytearray | memoryview

logger = logging.getLogger(__name__)

PROOF_TIMEOUT_S = 15.0
"""A connection that has had its turn so long and has proved nothing is closed."""
SHUTDOWN_TIMEOUT_S = 1.0
"""Of TLS: a peer that does not answer to it keeps its connection no longer."""
ACCEPT_RETRY_S = 1.0
"""While there is no descriptor for one more connection."""
TOUCH_POLLS = 3600
STREAM_BYTES_MAX = 64 * 1024
"""Read ahead of one connection, twice at most: there may be a thousand."""
APPLICATION_POLL_S = 1.0
MEMORY_PART = 4
"""Under a memory limit (RLIMIT_AS) one part in so many is for staged rows, and one for connections
that are being proved."""
FREE_SHARE = 0.9
"""Without `stagingDiskSpace`: of what is free where the files are, when the server starts."""


class _Closed(Exception):
    """The other side has closed the connection between two frames."""


@dataclass(slots=True)
class _Bytes:
    """An attempt's bytes: in memory, or in its file."""

    memory: bytearray = field(default_factory=bytearray)
    path: Path | None = None


class Spool:
    """The bytes of a store's attempts; does what the store decides."""

    def __init__(self, store: Store, directory: Path) -> None:
        self.store = store
        self._directory = directory
        self._held: dict[TaskAttempt, _Bytes] = {}
        self._file_count = 0

    def open(self, attempt: TaskAttempt) -> None:
        """A task begins to stage."""
        self.store.open(attempt)
        self._held[attempt] = _Bytes()

    def add(self, attempt: TaskAttempt, data: bytes) -> None:
        """Raises StoreFull, and OSError when the file cannot be written."""
        held = self._held[attempt]
        if self.store.add(attempt, len(data)) is Medium.MEMORY:
            try:
                held.memory += data
            except MemoryError:
                self.store.move_to_file(attempt)
            else:
                return
        if held.path is None:
            self._file_count += 1
            held.path = self._directory / f"{self._file_count}.staged"
            _append(held.path, held.memory)
            held.memory = bytearray()
        _append(held.path, data)

    def finish(self, attempt: TaskAttempt, index: bytes) -> None:
        """All bytes are there; the index is kept behind them. Raises as `add` does."""
        self.add(attempt, index)
        self.store.finish(attempt)

    def read(self, attempt: TaskAttempt, position: int, size_bytes: int) -> Bytes | None:
        """Some bytes of a finished attempt, None without it. Raises OSError."""
        if self.store.finished(attempt) is None:
            return None
        held = self._held[attempt]
        if held.path is None:
            return memoryview(held.memory)[position : position + size_bytes]
        with held.path.open("rb") as file:
            file.seek(position)
            return file.read(size_bytes)

    def index(self, attempt: TaskAttempt, data_bytes: int) -> Bytes | None:
        """What is behind the attempt's first `data_bytes`: its index. Raises OSError."""
        kept = self.store.finished(attempt)
        if kept is None:
            return None
        return self.read(attempt, data_bytes, kept.size_bytes - data_bytes)

    def drop(self, attempt: TaskAttempt) -> None:
        """Forget an attempt and its bytes."""
        self.store.drop(attempt)
        self._remove(attempt)

    def forget(self, forgotten: Forgotten) -> None:
        """Forget attempts and their bytes."""
        for attempt in self.store.forget(forgotten):
            self._remove(attempt)

    def _remove(self, attempt: TaskAttempt) -> None:
        held = self._held.pop(attempt, None)
        if held is None:
            return
        if held.path is not None:
            with contextlib.suppress(OSError):  # it goes with the directory
                held.path.unlink()


def _append(path: Path, data: bytes | bytearray) -> None:
    """No file stays open between two frames: there may be more tasks than descriptors."""
    left = memoryview(data)
    with path.open("ab", buffering=0) as file:
        while left:
            left = left[file.write(left) :]


class _Peer:
    """One connection's frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self, body_bytes_max: int = frames.BODY_BYTES_MAX) -> tuple[Kind, bytes]:
        """The next frame. Raises _Closed, NotAFrame, and IncompleteReadError for a torn one."""
        try:
            header = await self._reader.readexactly(frames.HEADER_BYTES)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            raise _Closed from None
        kind, size_bytes = frames.parse_header(header, body_bytes_max)
        return kind, await self._reader.readexactly(size_bytes)

    async def send(self, *parts: Bytes) -> None:
        for part in parts:
            self._writer.write(part)
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


@contextlib.contextmanager
def _logged_end() -> Iterator[None]:
    """A connection ends with its peer's close, or with its peer's error, which is nobody else's."""
    try:
        yield
    except _Closed:
        pass
    except (NotAFrame, OSError, asyncio.IncompleteReadError) as error:
        logger.debug("a connection was closed: %s", error)
    except MemoryError:
        logger.warning("a connection was closed, as there was no memory for it")


class StagingServer:
    """Serves tasks and committers from one `Spool`."""

    def __init__(
        self,
        spool: Spool,
        token: bytes,
        address: dict[str, object],
        secured: tuple[ssl.SSLContext, bytes],
        unproved: Unproved,
    ) -> None:
        """`secured` is TLS for the TCP listener, and the certificate (DER) that it shows."""
        self._spool = spool
        self._token = token
        self._address = address
        self._context, self._certificate = secured
        self._unproved = unproved

    async def serve_local(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The Unix socket: only this user can open it."""
        try:
            with _logged_end():
                await self._serve(_Peer(reader, writer), is_driver=True)
        finally:
            writer.close()

    async def accept_remote(self, listener: socket.socket) -> None:
        """TCP: tasks on any machine."""
        loop, serving = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        listener.setblocking(False)
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except (OSError, MemoryError) as error:
                logger.warning("no connection is accepted: %s", error or "no memory")
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            task = loop.create_task(self._serve_remote(connection, address[0]))
            serving.add(task)
            task.add_done_callback(serving.discard)
            await asyncio.sleep(0)  # `sock_accept` does not wait while connections come

    async def _serve_remote(self, connection: socket.socket, address: str) -> None:
        """A task, once it has proved the token.

        One whose machine is gone is noticed by the system, and its attempt dropped.
        """
        with contextlib.ExitStack() as closing, _logged_end():
            closing.callback(connection.close)
            notice_dead_peers(connection)
            async with self._unproved.turn(address), asyncio.timeout(PROOF_TIMEOUT_S):
                peer = await self._secure(connection)
                closing.pop_all()  # the connection is its transport's now
                closing.callback(peer.close)
                await self._prove(peer)
            await self._serve(peer, is_driver=False)

    async def _secure(self, connection: socket.socket) -> _Peer:
        """Begin TLS."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=STREAM_BYTES_MAX)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=self._context,
            ssl_handshake_timeout=PROOF_TIMEOUT_S,
            ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        )
        return _Peer(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def _prove(self, peer: _Peer) -> None:
        kind, nonce = await peer.receive(frames.NONCE_BYTES)
        if kind is not Kind.NONCE or len(nonce) != frames.NONCE_BYTES:
            raise NotAFrame("a task begins with a nonce")
        own = frames.proof(self._token, "server", self._certificate, nonce)
        await peer.send(frames.frame(Kind.PROOF, own))
        kind, given = await peer.receive(frames.PROOF_BYTES)
        wanted = frames.proof(self._token, "task", self._certificate, nonce)
        if kind is not Kind.PROOF or not hmac.compare_digest(given, wanted):
            raise NotAFrame("a client without this server's token")

    async def _serve(self, peer: _Peer, *, is_driver: bool) -> None:
        while True:
            kind, body = await peer.receive()
            if kind is Kind.OPEN:
                await self._take(peer, frames.parse_attempt(body))
            elif is_driver:
                await peer.send(*self._answer(kind, body))
            else:
                raise NotAFrame(f"a task does not send {kind.name}")

    # ------------------------------------------------------------------ a task

    async def _take(self, peer: _Peer, attempt: TaskAttempt) -> None:
        """One attempt, to its end; one that breaks off is dropped.

        After a refusal the rest is read and forgotten, or the refusal might not reach the task.
        """
        if self._spool.store.is_kept(attempt):
            raise NotAFrame(f"the attempt {attempt.name} is staged twice")
        kind, refusal, stored = Kind.OPEN, None, False
        try:
            self._spool.open(attempt)
        except StoreFull as error:
            refusal = str(error)
            await peer.send(frames.frame(Kind.REFUSED, refusal.encode()))
        try:
            while kind is not Kind.CLOSE:
                kind, body = await peer.receive()
                if refusal is None:
                    refusal = self._put(attempt, kind, body)
                    if refusal is not None:
                        self._spool.drop(attempt)
                        await peer.send(frames.frame(Kind.REFUSED, refusal.encode()))
            stored = refusal is None
        finally:
            if not stored:
                self._spool.drop(attempt)
        if stored:
            await peer.send(frames.frame(Kind.STORED))

    def _put(self, attempt: TaskAttempt, kind: Kind, body: bytes) -> str | None:
        """Keep what a task sent; why not, when it is refused."""
        if not self._spool.store.is_kept(attempt):
            return "its batch is committed, or its run has ended"
        try:
            if kind is Kind.DATA:
                self._spool.add(attempt, body)
            elif kind is Kind.CLOSE:
                self._spool.finish(attempt, body)
            else:
                raise NotAFrame(f"{kind.name} inside an attempt")
        except StoreFull as error:
            return str(error)
        except OSError as error:
            return f"the driver's directory for staged batches cannot be written: {error}"
        return None

    # ------------------------------------------------------------------ the committer

    def _answer(self, kind: Kind, body: bytes) -> list[Bytes]:
        """The answer to one request of the driver: the parts of a frame."""
        if kind is Kind.WHERE:
            return [frames.json_frame(Kind.ADDRESS, self._address)]
        value = frames.parse_json(body)
        if kind is Kind.FORGET:
            for each in value:
                self._spool.forget(Forgotten(*each))
            return [frames.frame(Kind.DONE)]
        if kind is Kind.GET_INDEX:
            attempt, data_bytes = frames.attempt_of(value[0]), int(value[1])
            return self._data(lambda: self._spool.index(attempt, data_bytes))
        if kind is Kind.READ:
            attempt, position, size = frames.attempt_of(value[0]), int(value[1]), int(value[2])
            return self._data(lambda: self._spool.read(attempt, position, size))
        raise NotAFrame(f"the driver does not send {kind.name}")

    def _data(self, read: Callable[[], Bytes | None]) -> list[Bytes]:
        try:
            data = read()
        except OSError as error:
            return [frames.frame(Kind.MISSING, str(error).encode())]
        if data is None:
            return [frames.frame(Kind.MISSING, b"it is not kept there")]
        return [frames.header(Kind.DATA, len(data)), data]


# ---------------------------------------------------------------------- the process


@dataclass(frozen=True, slots=True)
class Start:
    """What the starting process gives, as JSON on standard input: no argument shows the token."""

    token: str
    directory: str
    spool_directory: str
    memory_bytes_max: int
    spool_bytes_max: int | None
    application_pid: int
    application_start: str | None
    unix_descriptor: int
    tcp_descriptor: int
    address: dict[str, object]


async def serve(start: Start) -> None:
    """Serve until the application has ended, or SIGTERM."""
    spool_directory = Path(start.spool_directory)
    bound = start.spool_bytes_max
    if bound is None:
        bound = int(shutil.disk_usage(spool_directory).free * FREE_SHARE)
    store = Store(start.memory_bytes_max, bound)
    proving_max = PROVING_MAX
    memory, _ = resource.getrlimit(resource.RLIMIT_AS)
    if memory != resource.RLIM_INFINITY:
        store.limit_memory(memory // MEMORY_PART)
        proving_max = min(proving_max, max(1, memory // MEMORY_PART // PROVING_BYTES))
    spool = Spool(store, spool_directory)
    secured = server_context(Path(start.directory))
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Half of them are for those who have proved the token, and for files.
    unproved = Unproved(min(UNPROVED_MAX, descriptors // 2), proving_max)
    server = StagingServer(spool, bytes.fromhex(start.token), start.address, secured, unproved)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    local = await asyncio.start_unix_server(
        server.serve_local,
        sock=socket.socket(fileno=start.unix_descriptor),
        limit=STREAM_BYTES_MAX,
        backlog=BACKLOG,
    )
    with socket.socket(fileno=start.tcp_descriptor) as listener:
        tasks = [server.accept_remote(listener), _watch(start, ended)]
        running = [asyncio.create_task(each) for each in tasks]
        await ended.wait()
        for task in running:
            task.cancel()
    local.close()


async def _watch(start: Start, ended: asyncio.Event) -> None:
    """Set `ended` when the application has ended; keep what cleaners of old files look at young."""
    files = [Path(start.directory) / name for name in (START_FILE, ALIVE_FILE)]
    for count in itertools.count():
        if has_ended(start.application_pid, start.application_start):
            break
        if count % TOUCH_POLLS == 0:
            for file in files:
                with contextlib.suppress(OSError):
                    os.utime(file)
        await asyncio.sleep(APPLICATION_POLL_S)
    ended.set()


def main() -> int:
    """The process; ends with 0 when its application has ended."""
    start = Start(**json.loads(sys.stdin.readline()))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS):
        _, most = resource.getrlimit(each)
        resource.setrlimit(each, (most, most))
    asyncio.run(serve(start))  # what it fails with is in the log, which stays then
    for directory in {start.spool_directory, start.directory}:
        remove_directory(Path(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
