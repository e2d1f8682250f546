"""A task attempt's side of staging: `append` record batches, then `finish`, or `discard`.

They stay in memory while they are small and travel inside the commit message, and go to an outlet
when they are not: the staging server, or a file in `stagingLocation`. An attempt exists when its
outlet has all of it: one that breaks off before is none, whether the task, its connection or the
disk ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
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

Bytes = bytes | bytearray | memoryview


class Outlet(Protocol):
    """Where an attempt's bytes go that are too many for the commit message."""

    def write(self, data: Bytes) -> None:
        """More bytes. Raises StagingFailed."""

    def finish(self, index: bytes) -> str:
        """The index behind them, and the attempt is complete; the path of its file."""

    def discard(self) -> None:
        """The attempt has failed, and why is what its caller has to hear: raises nothing."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What the commit message says of a finished attempt, see `messages.StagedBatches`."""

    summary: IndexSummary
    inline: bytes | None = None
    index: bytes | None = None
    path: str | None = None


class StagingWriter:
    """Takes a task attempt's record batches. `open_outlet` is called when they get too many."""

    def __init__(self, open_outlet: Callable[[], Outlet], *, inline_bytes_max: int) -> None:
        self._open_outlet = open_outlet
        self._inline_bytes_max = inline_bytes_max
        self._memory = bytearray()
        self._outlet: Outlet | None = None
        self._chunks = ChunkList()

    def append(self, topic: str, partition: int, batches: Iterable[Bytes]) -> None:
        """Add record batches of one partition, behind all that were added before."""
        for batch in batches:
            self._chunks.add(topic, partition, batch, record_count_of(batch))
            self._write(batch)

    def finish(self) -> Staged:
        """Everything is staged. Raises StagingFailed."""
        index, summary = self._chunks.index()
        if self._outlet is not None:
            return Staged(summary, path=self._outlet.finish(index))
        if not self._chunks:
            return Staged(summary)
        return Staged(summary, inline=bytes(self._memory), index=index)

    def discard(self) -> None:
        """Forget what was staged."""
        if self._outlet is not None:
            self._outlet.discard()

    def _write(self, batch: Bytes) -> None:
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

    def __init__(self, channel: Channel, where: str, attempt: TaskAttempt) -> None:
        self._channel = channel
        self._where = where
        self._pending = bytearray()
        self._send(Kind.OPEN, attempt.encode())

    def write(self, data: Bytes) -> None:
        """Sent in frames of some 256 KiB; waits while the server takes nothing."""
        self._pending += data
        if len(self._pending) >= DATA_BYTES_WANTED:
            self._flush()

    def finish(self, index: bytes) -> str:
        """The path of the file on the driver's machine, when the server has all of it."""
        self._flush()
        self._send(Kind.CLOSE, index)
        try:
            kind, body = self._channel.receive()
        except ServerGone as error:
            raise self._gone(error) from error
        self._channel.close()
        if kind is not Kind.STORED:
            raise self._refused(body.decode(errors="replace"))
        return body.decode(errors="surrogateescape")

    def discard(self) -> None:
        """The server drops what breaks off."""
        self._channel.close()

    def _flush(self) -> None:
        if not self._pending:
            return
        try:
            refusal = self._channel.refusal()
        except ServerGone as error:
            raise self._gone(error) from error
        if refusal is not None:
            raise self._refused(refusal)
        for start in range(0, len(self._pending), DATA_BYTES_MAX):
            self._send(Kind.DATA, self._pending[start : start + DATA_BYTES_MAX])
        self._pending = bytearray()

    def _send(self, kind: Kind, body: Bytes) -> None:
        try:
            self._channel.send(kind, body)
        except ServerGone as error:
            raise self._gone(error) from error

    def _gone(self, error: ServerGone) -> StagingFailed:
        if isinstance(error, ServerSilent):
            return _silent(self._where)
        return StagingFailed(
            f"the connection to the driver's staging server at {self._where} is lost ({error}): "
            "nothing was committed; the task is tried again"
        )

    def _refused(self, reason: str) -> StagingFailed:
        return StagingFailed(
            f"the driver's staging server at {self._where} does not take this task's output: "
            f"{reason}. Nothing was committed"
        )


def _server_at(where: str) -> str:
    return f"the driver's staging server at {where}"


def _silent(where: str) -> StagingFailed:
    return StagingFailed(
        f"{silence(_server_at(where))}. Nothing was committed; the task is tried again, and if all "
        f"tries fail, start the query again{commands_for(where)}"
    )


def open_server_outlet(
    address: ServerAddress, attempt: TaskAttempt, *, host: str | None, is_local: bool
) -> ServerOutlet:
    """Connect to the driver's staging server. Raises StagingFailed.

    `host` is where the driver is to be reached, else the name that it gives itself; `is_local` says
    that the task runs on the driver's machine.
    """
    host = (host or address.host).strip("[]")  # Spark writes IPv6 addresses in brackets
    where = f"{host}:{address.port} (process {address.pid})"
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
            f"the driver's staging server at {where} does not let the task in ({error}): it has "
            "too many connections, or has ended, or something else listens there. Nothing was "
            "committed; the task is tried again. If all tries fail, let fewer tasks write at once, "
            "or set stagingLocation to storage that executors and the driver share"
        ) from error
    return ServerOutlet(channel, where, attempt)
