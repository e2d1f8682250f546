"""A model of where tasks stage: beside the driver in the staging server, or in shared files.

What is kept and what is refused is decided by the product (`txnlog_spark.staging.store`), and so is
what the driver makes of messages and what it has removed (`staging.output`). What a task has staged
is known by its commit message alone, so the driver checks what it is given (`StagedChunk.check`).
When the server ends, all that it had is gone, and the next batch finds a new one; when an executor
is lost whose files nobody else has, they are gone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from simulation.trace import Trace
from txnlog_kafka.operations.producer import Bytes, StagedChunk
from txnlog_kafka.wire.records import iter_batches
from txnlog_spark.errors import StagedBatchesInvalid
from txnlog_spark.staging.chunks import IndexDamaged, decode_index
from txnlog_spark.staging.frames import Forgotten, TaskAttempt
from txnlog_spark.staging.staged_output import StagedOutput, over_after_commit, over_after_failure
from txnlog_spark.staging.store import Store

STALL_MS = (10, 20_000)
SERVER_BYTES_MAX = 2**30


def _new_store() -> Store:
    return Store(SERVER_BYTES_MAX)


@dataclass(slots=True)
class StagingServer:
    """Server of an application, and its later servers: its bookkeeping and the bytes."""

    _store: Store = field(default_factory=_new_store)
    _bytes: dict[TaskAttempt, tuple[bytes, bytes]] = field(default_factory=dict)
    """Staged bytes of each attempt, and their index."""

    def put(self, attempt: TaskAttempt, data: bytes, index: bytes) -> None:
        """A task stages all of its output. Raises StoreFull when its batch is over."""
        self._store.open(attempt)
        self._store.add(attempt, len(data) + len(index))
        self._bytes[attempt] = data, index

    def read(self, attempt: TaskAttempt) -> bytes | None:
        """Return all bytes that the attempt has staged, with its index behind them."""
        return b"".join(self._bytes[attempt]) if self._store.is_kept(attempt) else None

    def forget(self, forgotten: Iterable[Forgotten]) -> None:
        """Drop the output that the driver no longer needs."""
        for each in forgotten:
            for attempt in self._store.forget(each):
                self._bytes.pop(attempt, None)

    def end(self) -> None:
        """The process dies, and another one takes its place."""
        self._store = _new_store()
        self._bytes.clear()

    @property
    def kept(self) -> list[bytes]:
        """Staged bytes of each attempt, without the index."""
        return [data for data, _ in self._bytes.values()]


class _File(NamedTuple):
    """File of an attempt, and the executor that has its bytes."""

    attempt: TaskAttempt
    host: str
    data: bytes


@dataclass(slots=True)
class StagingFiles:
    """The files of a `stagingLocation`, which all drivers of a query share."""

    files: dict[str, _File] = field(default_factory=dict)
    """By path."""

    def put(self, attempt: TaskAttempt, host: str, data: bytes) -> str:
        """A task stages all of its output; its path, which no other attempt has."""
        path = "/".join((attempt.write, str(attempt.batch_id), attempt.run_id, attempt.name))
        self.files[path] = _File(attempt, host, data)
        return path

    def remove(self, is_over: Callable[[TaskAttempt], bool]) -> None:
        """Remove the files of these attempts."""
        self.files = {path: f for path, f in self.files.items() if not is_over(f.attempt)}

    def lose(self, host: str) -> None:
        """The executor is gone, and it alone had the bytes of these."""
        self.files = {path: f for path, f in self.files.items() if f.host != host}


@dataclass(slots=True)
class Staging:
    """Staging of an application's tasks, as its driver sees it (`staging.reader`)."""

    write: str
    server: StagingServer
    files: StagingFiles | None = None
    """With a stagingLocation."""

    def index_of(self, message: StagedOutput) -> Sequence[StagedChunk]:
        """The chunks of a task's output. Raises StagedBatchesInvalid when they are gone."""
        index = message.index
        if index is None:
            found = self._kept(message)
            if found is None:
                raise StagedBatchesInvalid(f"{message.attempt.name} staged what is gone")
            index = found[message.summary.size_bytes :]
        try:
            return decode_index(index, message.summary, partial(self._read, message))
        except IndexDamaged as error:
            raise StagedBatchesInvalid(str(error)) from error

    def _read(self, message: StagedOutput, position: int, size: int) -> bytes:
        """Return staged bytes. Raises OSError if they are gone."""
        found = message.inline if message.inline is not None else self._kept(message)
        if found is None:
            raise OSError("what the task staged is gone")
        return found[position : position + size]

    def _kept(self, message: StagedOutput) -> bytes | None:
        if message.path is None:
            return self.server.read(message.attempt)
        found = None if self.files is None else self.files.files.get(message.path)
        return None if found is None else found.data

    # ------------------------------------------------------------------ removing

    def remove_batches(self, batch_id: int, run_id: str) -> None:
        """The batch is committed (`StagedReader.remove_batches`)."""
        if self.files is None:
            over = over_after_commit(self.write, batch_id, run_id)
            self.server.forget(over)
        else:
            self.files.remove(lambda a: a.write == self.write and a.batch_id <= batch_id)

    def remove_other_runs(self, batch_id: int, run_id: str) -> None:
        """The run has fenced all others (`StagedReader.remove_other_runs`)."""
        if self.files is None:
            self.server.forget([Forgotten(self.write, but_run=run_id)])
        else:
            others = Forgotten(self.write, batch_id=batch_id, but_run=run_id)
            self.files.remove(others.covers)

    def abandon(self, messages: Iterable[StagedOutput | None]) -> None:
        """The batch has failed (`StagedReader.abandon`)."""
        given = [message for message in messages if message is not None]
        if self.files is None:
            self.server.forget(over_after_failure(given))
        else:
            paths = {message.path for message in given}
            self.files.files = {p: f for p, f in self.files.files.items() if p not in paths}


def read_with_a_fault(
    staging: Staging,
    piece: StagedChunk,
    faults: random.Random,
    trace: Trace,
    stall: Callable[[int], None],
) -> Bytes:
    """Return the answer of a server that fails now. `stall` lets the driver wait for so many ms.

    Raises OSError if the bytes are gone.
    """
    kind = faults.choice(("ends", "stalls", "tears", "lies", "mistakes"))
    trace.fault("staging fault")
    trace.count(f"staging server {kind}")
    if kind == "ends":
        staging.server.end()
    if kind == "stalls":
        stall(faults.randint(*STALL_MS))
    data = piece.read()
    if kind == "tears":
        return data[: faults.randrange(len(data))]
    if kind == "lies":
        changed = bytearray(data)
        changed[faults.randrange(len(data))] ^= 1 << faults.randrange(8)
        return bytes(changed)
    if kind == "mistakes":
        return faults.choice([data, *_alike(staging.server.kept, len(data))])
    return data


def _alike(kept: Iterable[bytes], size_bytes: int) -> list[bytes]:
    """Whole record batches of this size in all, in what attempts have staged."""
    found = []
    for data in kept:
        cuts = [*(at for _, at in iter_batches(data)), len(data)]
        found += [data[a:b] for a in cuts for b in cuts if b - a == size_bytes]
    return found
