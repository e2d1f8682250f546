"""Staging server: a process beside Spark's driver that stores what tasks stage.

`python -m txnlog_spark.staging.server` inherits its listening sockets from the process that starts
it (`address`): a Unix socket in a directory that only this user may enter, for the driver and for
tasks on this machine, and a TCP socket for executors on other machines. TCP is TLS with a
certificate made at the start, and both sides prove the token (`frames.proof`).

An attempt is a file. When the file is complete, the server sends its path to the task. The
committer is on this machine and reads the file directly, mostly from the system's page cache. The
server never flushes a file: until the batch's transaction is decided, Spark can replay the batch
from its sources. A crash of the machine loses only the files of a batch that is replayed anyway.

If a task sends faster than the disk writes, the server stops reading from its connection, and TCP
slows the task down. The server ends with the application and removes its files. The files of a
server that was killed are removed when the next server starts on this machine.
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
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path

from txnlog_kafka.processes import has_ended, remove_directory
from txnlog_spark.errors import StagingFailed
from txnlog_spark.staging import frames
from txnlog_spark.staging.certificates import server_context
from txnlog_spark.staging.channel import notice_dead_peers
from txnlog_spark.staging.frames import Forgotten, Kind, NotAFrame, TaskAttempt
from txnlog_spark.staging.peer import Closed, Peer, Torn
from txnlog_spark.staging.server_files import (
    ALIVE_FILE,
    BACKLOG,
    STAGED_SUFFIX,
    START_FILE,
    make_private,
)
from txnlog_spark.staging.store import Store, StoreFull
from txnlog_spark.staging.unproved import PROVING_BYTES, PROVING_MAX, UNPROVED_MAX, Unproved

Bytes = bytes | bytearray | memoryview

logger = logging.getLogger(__name__)

PROOF_TIMEOUT_S = 15.0
"""Longest time for the proof of the token, in seconds; after it the server closes the
connection."""
SHUTDOWN_TIMEOUT_S = 1.0
"""Longest wait for the peer's TLS close message, in seconds; then the connection is closed."""
ACCEPT_RETRY_S = 1.0
"""Pause before the next accept when the process has no free descriptor, in seconds."""
TOUCH_POLLS = 3600
APPLICATION_POLL_S = 1.0
MEMORY_PART = 4
"""Divisor of the memory limit (RLIMIT_AS): a quarter of it may hold connections that are being
proved."""
NOT_WRITTEN = "the driver's directory for staged batches cannot be written"
FREE_SHARE = 0.9
"""Share of the free disk space that staged files may fill without `stagingDiskSpace`; the free
space is measured at the start."""


class Spool:
    """Files of a store's attempts."""

    def __init__(self, store: Store, directory: Path, own: Path) -> None:
        """Remove the files that a killed server of this application left in the directory. `own` is
        the server's directory, which stays when Spark's are gone."""
        self.store = store
        self._directory = directory
        self._own = own
        self._paths: dict[TaskAttempt, Path] = {}
        self._file_count = 0
        for file in directory.glob(f"*{STAGED_SUFFIX}"):
            file.unlink(missing_ok=True)

    def open(self, attempt: TaskAttempt) -> None:
        """Add a new attempt. Raises StoreFull, and StagingFailed or OSError if the folder is
        unusable.

        A cleaner of old files may have removed the empty folder, so it is created if needed. In a
        shared place another user may have created it first: `make_private` refuses that. When a
        SparkContext stops, Spark removes the directory where it spilled, and the next context of
        the same JVM finds this server.
        """
        if not self._directory.parent.parent.exists():
            self._directory = self._own
        make_private(self._directory.parent, self._directory)
        self.store.open(attempt)
        self._file_count += 1
        name = f"{os.getpid()}-{self._file_count}{STAGED_SUFFIX}"
        self._paths[attempt] = self._directory / name

    def add(self, attempt: TaskAttempt, data: Bytes) -> None:
        """Append bytes to an attempt. Raises StoreFull, and OSError if the file cannot be
        written."""
        self.store.add(attempt, len(data))
        _append_to_file(self._paths[attempt], data)

    def path(self, attempt: TaskAttempt) -> Path:
        """Return the file of an attempt that is kept."""
        return self._paths[attempt]

    def drop(self, attempt: TaskAttempt) -> None:
        """Forget an attempt and its bytes."""
        self.store.drop(attempt)
        self._remove_attempt(attempt)

    def forget(self, forgotten: Forgotten) -> None:
        """Forget attempts and their bytes."""
        for attempt in self.store.forget(forgotten):
            self._remove_attempt(attempt)

    def _remove_attempt(self, attempt: TaskAttempt) -> None:
        path = self._paths.pop(attempt, None)
        if path is not None:
            with contextlib.suppress(OSError):  # the file is removed with the directory
                path.unlink()


def _append_to_file(path: Path, data: Bytes) -> None:
    """Append to a file. It is closed after each frame: there may be more tasks than descriptors."""
    left = memoryview(data)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _logged_end() -> Iterator[None]:
    """End a connection quietly when its peer closes it or fails: other connections go on."""
    try:
        yield
    except Closed:
        pass
    except (NotAFrame, OSError, Torn) as error:
        logger.debug("a connection was closed: %s", str(error) or "inside a frame")
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
        """`secured` is TLS for the TCP listener, and the certificate (DER) that the listener
        shows."""
        self._spool = spool
        self._token = token
        self._address = address
        self._context, self._certificate = secured
        self._unproved = unproved
        self._serving: set[asyncio.Task[None]] = set()

    def accept_local(self) -> Peer:
        """Serve a connection of the Unix socket, which only this user can open."""
        peer = Peer()
        self._start_task(self._serve_local(peer))
        return peer

    async def _serve_local(self, peer: Peer) -> None:
        try:
            with _logged_end():
                await self._serve(peer, is_driver=True)
        finally:
            peer.close()

    def _start_task(self, serving: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(serving)
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def accept_remote(self, listener: socket.socket) -> None:
        """Accept TCP connections: tasks on any machine."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except (OSError, MemoryError) as error:
                logger.warning("no connection is accepted: %s", error or "no memory")
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            self._start_task(self._serve_remote(connection, address[0]))
            await asyncio.sleep(0)  # `sock_accept` never yields while connections arrive

    async def _serve_remote(self, connection: socket.socket, address: str) -> None:
        """Serve a task after it has proved the token.

        If the task's machine is gone, the system notices it (keepalive) and the attempt is dropped.
        """
        with contextlib.ExitStack() as closing, _logged_end():
            closing.callback(connection.close)
            notice_dead_peers(connection)
            async with self._unproved.turn(address), asyncio.timeout(PROOF_TIMEOUT_S):
                peer = await self._secure(connection)
                closing.pop_all()  # the transport owns the connection now
                closing.callback(peer.close)
                await self._prove(peer)
            await self._serve(peer, is_driver=False)

    async def _secure(self, connection: socket.socket) -> Peer:
        """Begin TLS."""
        _, peer = await asyncio.get_running_loop().connect_accepted_socket(
            Peer,
            connection,
            ssl=self._context,
            ssl_handshake_timeout=PROOF_TIMEOUT_S,
            ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        )
        return peer

    async def _prove(self, peer: Peer) -> None:
        kind, nonce = await peer.receive(frames.NONCE_BYTES)
        if kind is not Kind.NONCE or len(nonce) != frames.NONCE_BYTES:
            raise NotAFrame("a task begins with a nonce")
        own = frames.proof(self._token, "server", self._certificate, nonce)
        peer.send(frames.frame(Kind.PROOF, own))
        kind, given = await peer.receive(frames.PROOF_BYTES)
        wanted = frames.proof(self._token, "task", self._certificate, nonce)
        if kind is not Kind.PROOF or not hmac.compare_digest(given, wanted):
            raise NotAFrame("a client without this server's token")

    async def _serve(self, peer: Peer, *, is_driver: bool) -> None:
        while True:
            kind, body = await peer.receive()
            if kind is Kind.OPEN:
                await self._receive_attempt(peer, frames.parse_attempt(body))
            elif is_driver:
                peer.send(self._answer_driver(kind, body))
            else:
                raise NotAFrame(f"a task does not send {kind.name}")

    # ------------------------------------------------------------------ a task

    async def _receive_attempt(self, peer: Peer, attempt: TaskAttempt) -> None:
        """Receive one attempt until its end; drop it if the connection breaks off.

        After a refusal the server reads the rest and ignores it. If it closed the connection at
        once, the refusal might not reach the task.
        """
        if self._spool.store.is_kept(attempt):
            raise NotAFrame(f"the attempt {attempt.name} is staged twice")
        kind, stored = Kind.OPEN, False
        refusal = self._open_attempt(attempt)
        try:
            if refusal is not None:
                peer.send(frames.frame(Kind.REFUSED, refusal.encode()))
            while kind is not Kind.CLOSE:
                kind, size_bytes = await peer.header()
                if kind not in (Kind.DATA, Kind.CLOSE):
                    raise NotAFrame(f"{kind.name} inside an attempt")
                if kind is Kind.CLOSE and not size_bytes:
                    raise NotAFrame("an attempt without an index")
                async for part in peer.body(size_bytes):
                    if refusal is None and (refusal := self._put_data(attempt, part)) is not None:
                        self._spool.drop(attempt)
                        peer.send(frames.frame(Kind.REFUSED, refusal.encode()))
            stored = refusal is None
        finally:
            if not stored:
                self._spool.drop(attempt)
        if stored:
            path = str(self._spool.path(attempt))
            peer.send(frames.frame(Kind.STORED, path.encode(errors="surrogateescape")))

    def _open_attempt(self, attempt: TaskAttempt) -> str | None:
        """Add the attempt; return the reason if it is refused, else None."""
        try:
            self._spool.open(attempt)
        except StoreFull as error:
            return str(error)
        except StagingFailed as error:
            return error.text
        except OSError as error:
            return f"{NOT_WRITTEN}: {error}"
        return None

    def _put_data(self, attempt: TaskAttempt, data: Bytes) -> str | None:
        """Append the task's bytes; return the reason if they are refused, else None."""
        if not self._spool.store.is_kept(attempt):
            return "its batch is committed, or its run has ended"
        try:
            self._spool.add(attempt, data)
        except StoreFull as error:
            return str(error)
        except OSError as error:
            return f"{NOT_WRITTEN}: {error}"
        return None

    # ------------------------------------------------------------------ the driver

    def _answer_driver(self, kind: Kind, body: bytes) -> bytes:
        """Answer one request of the driver."""
        if kind is Kind.WHERE:
            return frames.frame(Kind.ADDRESS, json.dumps(self._address).encode())
        if kind is Kind.FORGET:
            for each in frames.parse_json(body):
                self._spool.forget(Forgotten(*each))
            return frames.frame(Kind.DONE)
        raise NotAFrame(f"the driver does not send {kind.name}")


# ---------------------------------------------------------------------- the process


@dataclass(frozen=True, slots=True)
class Start:
    """Parameters from the starting process, as JSON on standard input: arguments would show the
    token."""

    token: str
    directory: str
    spool_directory: str
    spool_bytes_max: int | None
    application_pid: int
    application_start: str | None
    unix_descriptor: int
    tcp_descriptor: int
    address: dict[str, object]


async def serve(start: Start) -> None:
    """Serve until the application has ended, or until SIGTERM or SIGINT."""
    # Bounds: disk for staged files, memory and descriptors for connections.
    spool_directory = Path(start.spool_directory)
    bound = start.spool_bytes_max
    if bound is None:
        bound = int(shutil.disk_usage(spool_directory).free * FREE_SHARE)
    proving_max = PROVING_MAX
    memory, _ = resource.getrlimit(resource.RLIMIT_AS)
    if memory != resource.RLIM_INFINITY:
        proving_max = min(proving_max, max(1, memory // MEMORY_PART // PROVING_BYTES))
    spool = Spool(Store(bound), spool_directory, Path(start.directory))
    secured = server_context(Path(start.directory))
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Half of the descriptors are for connections that have proved the token, and for files.
    unproved = Unproved(min(UNPROVED_MAX, descriptors // 2), proving_max)
    address = {**start.address, "pid": os.getpid()}
    server = StagingServer(spool, bytes.fromhex(start.token), address, secured, unproved)
    # Serve until the application ends or a signal comes.
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    local = await loop.create_unix_server(
        server.accept_local, sock=socket.socket(fileno=start.unix_descriptor), backlog=BACKLOG
    )
    with socket.socket(fileno=start.tcp_descriptor) as listener:
        tasks = [server.accept_remote(listener), _watch(start, ended)]
        running = [asyncio.create_task(each) for each in tasks]
        await ended.wait()
        for task in running:
            task.cancel()
    local.close()


async def _watch(start: Start, ended: asyncio.Event) -> None:
    """Set `ended` when the application has ended.

    Meanwhile keep the modification times of the lock files and the spool directory fresh, so that
    cleaners of old files leave them.
    """
    files = [Path(start.directory) / name for name in (START_FILE, ALIVE_FILE)]
    files.append(Path(start.spool_directory))
    for count in itertools.count():
        if has_ended(start.application_pid, start.application_start):
            break
        if count % TOUCH_POLLS == 0:
            for file in files:
                # A cleaner may have deleted the file already. The server goes on: its socket shows
                # others that it runs.
                with contextlib.suppress(OSError):
                    os.utime(file)
        await asyncio.sleep(APPLICATION_POLL_S)
    ended.set()


def main() -> int:
    """Run the server process; return 0 when the application has ended."""
    start = Start(**json.loads(sys.stdin.readline()))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS):
        _, most = resource.getrlimit(each)
        resource.setrlimit(each, (most, most))
    asyncio.run(serve(start))  # an error goes to the log, and then the directory stays
    for directory in {start.spool_directory, start.directory}:
        remove_directory(Path(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
