"""A task attempt's side of staging: `append` record batches, then `finish`, or `discard`.

Small output stays in memory and travels inside the commit message. Larger output goes to an outlet:
the staging server, or a file in `stagingLocation`. An attempt counts only when the outlet has
stored all of it. An attempt that breaks off earlier is ignored, whether the task, its connection or
the disk failed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from txnlog_kafka.wire.records import record_count_of
from txnlog_spark.errors import StagingFailed
from txnlog_spark.staging.address import ServerAddress
from txnlog_spark.staging.channel import (
    Channel,
    ServerGone,
    ServerSilent,
    ServerUnreachable,
    commands_for,
    connect_local,
    connect_remote,
    silence,
)
from txnlog_spark.staging.chunks import ChunkList, IndexSummary
from txnlog_spark.staging.frames import DATA_BYTES_MAX, DATA_BYTES_WANTED, Kind, TaskAttempt
from txnlog_spark.staging.server_files import last_line

Bytes = bytes | bytearray | memoryview


class Outlet(Protocol):
    """Destination of an attempt's bytes that are too many for the commit message."""

    def write(self, data: Bytes) -> None:
        """Append bytes. Raises StagingFailed."""

    def finish(self, index: bytes) -> str:
        """Append the index and complete the attempt; return the path of its file."""

    def discard(self) -> None:
        """Drop the attempt, which has failed. Never raises: the caller raises the cause."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Facts about a finished attempt for its commit message, see `messages.StagedBatches`."""

    summary: IndexSummary
    inline: bytes | None = None
    index: bytes | None = None
    path: str | None = None


class StagingWriter:
    """Takes a task attempt's record batches; calls `open_outlet` when they are too large for
    memory."""

    def __init__(self, open_outlet: Callable[[], Outlet], *, inline_bytes_max: int) -> None:
        self._open_outlet = open_outlet
        self._inline_bytes_max = inline_bytes_max
        self._memory = bytearray()
        self._outlet: Outlet | None = None
        self._chunks = ChunkList()

    def append(self, topic: str, partition: int, batches: Iterable[Bytes]) -> None:
        """Append record batches of one partition."""
        for batch in batches:
            self._chunks.add(topic, partition, batch, record_count_of(batch))
            self._write_batch(batch)

    def finish(self) -> Staged:
        """Complete the attempt. Raises StagingFailed."""
        index, summary = self._chunks.index()
        if self._outlet is not None:
            return Staged(summary, path=self._outlet.finish(index))
        if not self._chunks:
            return Staged(summary)
        return Staged(summary, inline=bytes(self._memory), index=index)

    def discard(self) -> None:
        """Drop everything that was staged."""
        if self._outlet is not None:
            self._outlet.discard()

    def _write_batch(self, batch: Bytes) -> None:
        if self._outlet is None and self._chunks.size_bytes > self._inline_bytes_max:
            self._outlet = self._open_outlet()
            self._outlet.write(self._memory)
            self._memory = bytearray()
        if self._outlet is None:
            self._memory += batch
        else:
            self._outlet.write(batch)


class ServerOutlet:
    """Streams an attempt to the staging server of the driver."""

    def __init__(self, channel: Channel, where: str, directory: Path, attempt: TaskAttempt) -> None:
        """`directory` is the server's, on the driver's machine."""
        self._channel = channel
        self._where = where
        self._directory = directory
        self._pending = bytearray()
        with self._errors():
            self._channel.send(Kind.OPEN, attempt.encode())

    def write(self, data: Bytes) -> None:
        """Send the bytes in frames of about 256 KiB; block while the server does not read."""
        self._pending += data
        if len(self._pending) >= DATA_BYTES_WANTED:
            self._flush_pending()

    def finish(self, index: bytes) -> str:
        """Wait until the server has stored everything; return the path of its file on the driver's
        machine."""
        self._flush_pending()
        with self._errors():
            self._channel.send(Kind.CLOSE, index)
            kind, body = self._channel.receive()
        self._channel.close()
        if kind is not Kind.STORED:
            raise self._refused(body.decode(errors="replace"))
        return body.decode(errors="surrogateescape")

    def discard(self) -> None:
        """Close the connection: the server drops an unfinished attempt."""
        self._channel.close()

    def _flush_pending(self) -> None:
        if not self._pending:
            return
        with self._errors():
            refusal = self._channel.refusal()
            if refusal is not None:
                raise self._refused(refusal)
            for start in range(0, len(self._pending), DATA_BYTES_MAX):
                self._channel.send(Kind.DATA, self._pending[start : start + DATA_BYTES_MAX])
        self._pending = bytearray()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the end of the connection into StagingFailed."""
        try:
            yield
        except ServerSilent as error:
            raise _silent(self._where) from error
        except ServerGone as error:
            raise StagingFailed(
                f"the connection to the driver's staging server at {self._where} is lost "
                f"({error}{_log_in(self._directory)}): nothing was committed; the task is tried "
                "again"
            ) from error

    def _refused(self, reason: str) -> StagingFailed:
        return StagingFailed(
            f"the driver's staging server at {self._where} does not take this task's output: "
            f"{reason}. Nothing was committed"
        )


def _server_at(where: str) -> str:
    return f"the driver's staging server at {where}"


def _log_in(directory: Path) -> str:
    """Return the end of the server's log, in the words of an error; "" on another machine."""
    line = last_line(directory)
    return f"; its log ends with: {line}" if line else ""


def _silent(where: str) -> StagingFailed:
    return StagingFailed(
        f"{silence(_server_at(where))}. Nothing was committed; the task is tried again, and if all "
        f"tries fail, start the query again{commands_for(where)}"
    )


def open_server_outlet(
    address: ServerAddress, attempt: TaskAttempt, *, host: str | None, is_local: bool
) -> ServerOutlet:
    """Connect to the driver's staging server. Raises StagingFailed.

    `host` is the driver's host name; without it the task uses the name in `address`. `is_local` is
    true if the task runs on the driver's machine.
    """
    host = (host or address.host).strip("[]")  # Spark writes IPv6 addresses in brackets
    where = f"{host}:{address.port} (process {address.pid})"
    directory = Path(address.local_path).parent
    try:
        if is_local:
            channel = connect_local(address.local_path)
        else:
            channel = connect_remote(host, address.port, address.token, _server_at(where))
    except ServerUnreachable as error:
        raise StagingFailed(
            f"the driver's staging server at {where} cannot be reached ({error}): executors must "
            "reach that host and port as they reach spark.driver.host (stagingHost names another "
            "host, stagingPort fixes the port), or set stagingLocation to storage that executors "
            "and the driver share. Nothing was committed"
        ) from error
    except ServerSilent as error:
        raise _silent(where) from error
    except ServerGone as error:
        raise StagingFailed(
            f"the driver's staging server at {where} does not let the task in "
            f"({error}{_log_in(directory)}): it has too many connections, or has ended, or "
            "something else listens there. Nothing was committed; the task is tried again. If all "
            "tries fail, let fewer tasks write at once, or set stagingLocation to storage that "
            "executors and the driver share"
        ) from error
    return ServerOutlet(channel, where, directory, attempt)
