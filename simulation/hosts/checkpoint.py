"""A query's checkpoint, on the driver's machine or in an object store; it outlives drivers.

Spark's own files are created once and never replaced; the sink's are replaced whole. What was
written without a flush may be the old one or torn after a loss of power. A tail that is lost is
what a copy of a checkpoint that lags behind looks like: the newest batches are missing. A store may
say that it failed, and have carried out a write all the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from txnlog_kafka.operations.effects import (
    FileAsk,
    FileFailed,
    FileOutcome,
    FlushFile,
    ListFolder,
    ReadFile,
    WriteFile,
)
from txnlog_spark.errors import TxnLogError

STORE_FAILED = FileFailed("the store says that it failed")


class ConcurrentQuery(TxnLogError):
    """Another run wrote this checkpoint file first (Spark's own check): this run must stop."""

    condition = "SIM_CONCURRENT_QUERY"


def names_in(folder: str, paths: Iterable[str]) -> tuple[str, ...]:
    """What ListFolder is resumed with, where the files of all folders have these paths."""
    inside = (path for path in paths if path.startswith(f"{folder}/"))
    return tuple(sorted(path.removeprefix(f"{folder}/") for path in inside))


@dataclass(slots=True)
class Files:
    """What all checkpoints hold, by path: one driver may look for the files of another's."""

    now: dict[str, bytes] = field(default_factory=dict)
    flushed: dict[str, bytes] = field(default_factory=dict)


class Checkpoint:
    """One query's files, by path."""

    def __init__(
        self, location: str, query_id: str, files: Files, *, starts_committed: bool
    ) -> None:
        self.location = location
        self.query_id = query_id
        self.starts_committed = starts_committed
        """Whether its query starts from the group's committed offsets, if there are any."""
        self.tail_losses = 0
        self._store = files
        self._files, self._flushed = files.now, files.flushed
        self._put(f"{location}/metadata", b'{"id":"%s"}' % query_id.encode())

    def copied_to(self, location: str) -> Checkpoint:
        """A copy of all files as they are now, in another place."""
        made = Checkpoint(
            location, self.query_id, self._store, starts_committed=self.starts_committed
        )
        made.tail_losses = self.tail_losses
        for path in self._own():
            made._put(location + path.removeprefix(self.location), self._files[path])
        return made

    def moved_to(self, location: str) -> Checkpoint:
        """The same in another place: here is nothing any more."""
        made = self.copied_to(location)
        for path in self._own():
            del self._files[path]
            self._flushed.pop(path, None)
        return made

    @property
    def is_begun(self) -> bool:
        """Whether a sink has recorded that it has begun a batch."""
        return any(path.endswith("/attempt.json") for path in self._own())

    def _own(self) -> list[str]:
        return [path for path in self._files if path.startswith(f"{self.location}/")]

    def _put(self, path: str, data: bytes) -> None:
        self._files[path] = self._flushed[path] = data

    def perform(self, ask: FileAsk) -> FileOutcome:
        """What a host does for an operation."""
        match ask:
            case ReadFile(path):
                return self._files.get(path)
            case ListFolder(path):
                return names_in(path, self._files)
            case WriteFile(path, data, durable):
                self._files[path] = data
                if durable:
                    self._flushed[path] = data
            case FlushFile(path) if path in self._files:
                self._flushed[path] = self._files[path]
        return None

    def perform_in_vain(self, ask: FileAsk, rng: random.Random) -> FileFailed:
        """What a host gets from a store that fails; every other write took place."""
        if isinstance(ask, WriteFile) and rng.random() < 0.5:
            self.perform(ask)
        return STORE_FAILED

    def create(self, log: str, batch_id: int, data: bytes) -> None:
        """`offsets/N` or `commits/N`, refused when another run was first."""
        path = self.path(log, batch_id)
        if path in self._files:
            raise ConcurrentQuery(f"{path} exists")
        self._put(path, data)

    def path(self, log: str, batch_id: int) -> str:
        """Where a batch's entry of a log is."""
        return f"{self.location}/{log}/{batch_id}"

    def batches(self, log: str) -> list[int]:
        """The batches that a log has, ascending."""
        prefix = f"{self.location}/{log}/"
        return sorted(int(p.removeprefix(prefix)) for p in self._files if p.startswith(prefix))

    def entry(self, log: str, batch_id: int) -> str | None:
        """The text of a log's entry."""
        data = self._files.get(self.path(log, batch_id))
        return None if data is None else data.decode()

    def lose_power(self, rng: random.Random) -> None:
        """What was not flushed is there, is the old one, or is torn."""
        for path in self._unflushed():
            fate = rng.randrange(3)
            if fate == 0 and path in self._flushed:
                self._files[path] = self._flushed[path]
            elif fate == 1:
                self._files[path] = self._files[path][: rng.randrange(len(self._files[path]))]
        self._flush()

    def _unflushed(self) -> Iterable[str]:
        return [p for p in self._own() if self._flushed.get(p) != self._files[p]]

    def _flush(self) -> None:
        for path in [p for p in self._flushed if p.startswith(f"{self.location}/")]:
            del self._flushed[path]
        self._flushed.update((path, self._files[path]) for path in self._own())

    def lose_tail(self, count: int, rng: random.Random) -> None:
        """The newest `count` batches are missing, the last of them perhaps as a commit only."""
        planned = self.batches("offsets")
        self.tail_losses += 1
        for batch_id in planned[len(planned) - count :]:
            self._files.pop(self.path("commits", batch_id), None)
            if batch_id != planned[-count] or rng.random() < 0.5:
                self._files.pop(self.path("offsets", batch_id), None)
        self._flush()
