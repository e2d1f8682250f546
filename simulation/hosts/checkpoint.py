"""A query's checkpoint, on the driver's machine or in an object store; it outlives drivers.

Spark's own files are created once and never replaced; the sink's are replaced whole. What was
written without a flush may be the old one or torn after a loss of power: Spark flushes nothing, so
the newest entries of its logs and the newest versions of its state may be gone. A tail that is
lost is what a copy of a checkpoint that lags behind looks like: the newest batches are missing. A
backup is the whole folder as it was at any earlier moment, and may have been copied while it was
written to. A store may say that it failed, and have carried out a write all the same.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
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
from txnlog_spark.offsets import from_json_value

STORE_FAILED = FileFailed("the store says that it failed")
STATE = "state/0"
"""The folder of the state's versions, as of Spark's first stateful operator."""
LOGS = ("offsets", "commits", STATE)
"""Folders of files that Spark writes, each with a number for its name, and does not flush."""
FOLDERS = ("metadata", "offsets", "commits", "state", "txnlog")
"""Parts of a checkpoint that a backup copies one after the other."""
COPYING_WRITES_MAX = 8
"""A backup that is copied while it is written to has folders at most so many writes apart."""
KEEPS_A_COPY = 0.5
"""Probability per loss that the operator finds the lost files again."""


class ConcurrentQuery(TxnLogError):
    """Another run wrote this checkpoint file first (Spark's own check): this run must stop."""

    condition = "SIM_CONCURRENT_QUERY"


def names_in(folder: str, paths: Iterable[str], *, folders: bool = False) -> tuple[str, ...]:
    """Return what ListFolder is resumed with, where the files of all folders have these paths."""
    inside = (path.removeprefix(f"{folder}/") for path in paths if path.startswith(f"{folder}/"))
    parts = [name.partition("/") for name in inside]
    return tuple(sorted({name for name, slash, _ in parts if bool(slash) == folders}))


@dataclass(slots=True)
class Files:
    """Files of all checkpoints, by path: a driver may look for the files of another's."""

    now: dict[str, bytes] = field(default_factory=dict)
    flushed: dict[str, bytes] = field(default_factory=dict)


class Checkpoint:
    """Files of a query, by path."""

    def __init__(
        self, location: str, query_id: str, files: Files, *, starts_committed: bool
    ) -> None:
        self.location = location
        self.query_id = query_id
        self.starts_committed = starts_committed
        """True if its query starts from the group's committed offsets, if there are any."""
        self.tail_losses = 0
        self.is_rolled_back = False
        """True if any number of batches was lost: the ids of later batches begin again there."""
        self.is_whole = True
        """True if nothing of Spark's files was lost or purged but the tails of both logs."""
        self.written: dict[str, list[bytes]] = {}
        """Every content of Spark's files, by log and number: for checks, no driver sees it."""
        self._store = files
        self._files, self._flushed = files.now, files.flushed
        self._changes: list[tuple[str, bytes | None]] = []
        """Each change of a file, None for one that was deleted: any earlier moment is a prefix."""
        self._losses: list[tuple[int, int]] = []
        """The changes of each loss, by the first one and the one behind it: no backup is made
        then."""
        self._last_commit = 0
        self._kept: int | None = None
        """The moment of the full copy that the operator has, None without one."""
        self._put(f"{location}/metadata", b'{"id":"%s"}' % query_id.encode())

    def copied_to(self, location: str) -> Checkpoint:
        """A copy of all files as they are now, in another place."""
        made = Checkpoint(
            location, self.query_id, self._store, starts_committed=self.starts_committed
        )
        made.tail_losses, made.is_rolled_back = self.tail_losses, self.is_rolled_back
        made.is_whole = self.is_whole
        made.written = self.written
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
        """True if a sink has recorded the begin of a batch."""
        return any(path.endswith("/attempt.json") for path in self._own())

    def _own(self) -> list[str]:
        return [path for path in self._files if path.startswith(f"{self.location}/")]

    def _put(self, path: str, data: bytes) -> None:
        self._change(path, data)
        self._flushed[path] = data

    def _change(self, path: str, data: bytes | None) -> None:
        self._changes.append((path, data))
        if data is None:
            self._files.pop(path, None)
        else:
            self._files[path] = data

    def perform(self, ask: FileAsk) -> FileOutcome:
        """Perform an operation as a host does."""
        match ask:
            case ReadFile(path):
                return self._files.get(path)
            case ListFolder(path, folders):
                return names_in(path, self._files, folders=folders)
            case WriteFile(path, data, durable):
                self._change(path, data)
                if durable:
                    self._flushed[path] = data
            case FlushFile(path) if path in self._files:
                self._flushed[path] = self._files[path]
        return None

    def perform_in_vain(self, ask: FileAsk, rng: random.Random) -> FileFailed:
        """Return a host's answer from a store that fails; half of the writes take place."""
        if isinstance(ask, WriteFile) and rng.random() < 0.5:
            self.perform(ask)
        return STORE_FAILED

    # ------------------------------------------------------------------ Spark's files

    def create(self, log: str, batch_id: int, data: bytes) -> None:
        """`offsets/N` or `commits/N`, refused when another run was first."""
        path = self.path(log, batch_id)
        if path in self._files:
            raise ConcurrentQuery(f"{path} exists")
        self.replace(log, batch_id, data)
        if log == "commits":
            self._last_commit = len(self._changes)

    def replace(self, log: str, number: int, data: bytes) -> None:
        """Write one of Spark's files, as a version of the state when its batch is done again."""
        self.written.setdefault(f"{log}/{number}", []).append(data)
        self._change(self.path(log, number), data)

    def purge(self, first: int) -> None:
        """Delete all of Spark's files of the batches before `first`."""
        for log in LOGS:
            for number in self.batches(log):
                if number < first:
                    self._change(self.path(log, number), None)
                    self.is_whole = False

    def path(self, log: str, batch_id: int) -> str:
        """Return the path of a batch's entry in a log."""
        return f"{self.location}/{log}/{batch_id}"

    def batches(self, log: str) -> list[int]:
        """The batches that a log has, ascending."""
        prefix = f"{self.location}/{log}/"
        return sorted(int(p.removeprefix(prefix)) for p in self._files if p.startswith(prefix))

    def entry(self, log: str, batch_id: int) -> str | None:
        """The text of a log's entry."""
        data = self._files.get(self.path(log, batch_id))
        return None if data is None else data.decode()

    @property
    def planned(self) -> list[int]:
        """The batches of the offset log, and those before them that were purged, ascending."""
        there = self.batches("offsets")
        return [*range(there[0] if there else 0), *there]

    def recalled(self, log: str, batch_id: int) -> str | None:
        """The text of a log's entry, also of one that was purged: no driver sees it."""
        written = self.written.get(f"{log}/{batch_id}")
        text = self.entry(log, batch_id)
        return written[-1].decode() if text is None and written else text

    def starts(self) -> dict[int, int]:
        """Return where the query began in each partition, if at the group's committed offsets."""
        found: dict[int, int] = {}
        for data in self.written.get("offsets/0", []) if self.starts_committed else ():
            for place, at in from_json_value(json.loads(data.decode().splitlines()[2])).items():
                found[place.partition] = max(at, found.get(place.partition, 0))
        return found

    # ------------------------------------------------------------------ losses

    def lose_power(self, rng: random.Random, *, takes_logs: bool = False) -> None:
        """Lose what was not flushed: such a file is there, is the old one, or is torn.

        With `takes_logs` any number of the newest of Spark's unflushed files are gone, of each log
        by itself; a file of Spark's is never torn, as nobody but Spark reads such a one.
        """
        for log in LOGS:
            unflushed = self._unflushed_tail(log)
            kept = rng.randint(0, len(unflushed)) if takes_logs and unflushed else len(unflushed)
            for path in unflushed[kept:]:
                self._change(path, None)
                self.is_whole = False
            self._flushed.update((path, self._files[path]) for path in self._own_of(log))
        if takes_logs:
            self._delete_orphans()
        for path in self._unflushed():
            fate = rng.randrange(3)
            if fate == 0 and path in self._flushed:
                self._change(path, self._flushed[path])
            elif fate == 1:
                self._change(path, self._files[path][: rng.randrange(len(self._files[path]))])
        self._flush()

    def _own_of(self, log: str) -> list[str]:
        return [self.path(log, number) for number in self.batches(log)]

    def _unflushed_tail(self, log: str) -> list[str]:
        """The files of a log that are newer than the newest one that was flushed, ascending."""
        tail: list[str] = []
        for path in self._own_of(log):
            is_flushed = self._flushed.get(path) == self._files[path]
            tail = [] if is_flushed else [*tail, path]
        return tail

    def _unflushed(self) -> Iterable[str]:
        return [p for p in self._own() if self._flushed.get(p) != self._files[p]]

    def _flush(self) -> None:
        for path in [p for p in self._flushed if p.startswith(f"{self.location}/")]:
            del self._flushed[path]
        self._flushed.update((path, self._files[path]) for path in self._own())

    def lose_tail(self, count: int, rng: random.Random) -> None:
        """The newest `count` batches are missing, the last of them perhaps as a commit only."""
        planned, first = self.batches("offsets"), len(self._changes)
        self.tail_losses += 1
        self.is_rolled_back = True
        for batch_id in planned[len(planned) - count :]:
            self._change(self.path("commits", batch_id), None)
            if batch_id != planned[-count] or rng.random() < 0.5:
                self._change(self.path("offsets", batch_id), None)
        self._losses.append((first, len(self._changes)))
        self._flush()

    def lose_logs(self, rng: random.Random) -> None:
        """Any number of Spark's newest files are missing, of each log by itself."""
        self._keep_a_copy(rng)
        first = len(self._changes)
        for log in LOGS:
            paths = self._own_of(log)
            # Half of the logs lose nothing, and of others each loss is as likely.
            count = rng.randint(1, len(paths)) if paths and rng.random() < 0.5 else 0
            for path in paths[len(paths) - count :]:
                self._change(path, None)
        self._roll_back(first)

    def restore_backup(self, rng: random.Random) -> None:
        """The folder is as it was at an earlier moment, perhaps copied while it was written to."""
        self._keep_a_copy(rng)
        first = len(self._changes)
        moment = rng.randint(1, len(self._changes))
        moment = max((end for start, end in self._losses if start < moment < end), default=moment)
        spread = COPYING_WRITES_MAX if rng.random() < 0.5 else 0
        last = min([start for start, _ in self._losses if start >= moment] or [len(self._changes)])
        moments = {each: min(last, moment + rng.randint(0, spread)) for each in FOLDERS}
        # A version of the state that is older than its batch's commit may be of another attempt,
        # with other rows, and its file does not say so: such a copy is against condition 6.
        moments["state"] = max(moments["state"], moments["commits"])
        self._set_back(moments)
        self._roll_back(first)

    def restore_kept(self) -> bool:
        """The folder as it was before the last loss; False without such a copy."""
        kept, self._kept = self._kept, None
        if kept is None or self._last_commit > kept:
            return False
        first = len(self._changes)
        self._set_back(dict.fromkeys(FOLDERS, kept))
        self._losses.append((first, len(self._changes)))
        self._flush()
        return True

    def _keep_a_copy(self, rng: random.Random) -> None:
        """A copy is of use until another batch is done: an older one then lacks that batch."""
        is_kept = rng.random() < KEEPS_A_COPY
        if self._kept is None or self._last_commit > self._kept:
            self._kept = len(self._changes) if is_kept else None

    def _set_back(self, moments: Mapping[str, int]) -> None:
        wanted: dict[str, bytes | None] = {}
        for number, (path, data) in enumerate(self._changes):
            folder = path.removeprefix(f"{self.location}/").partition("/")[0]
            if number < moments[folder]:
                wanted[path] = data
        for path in sorted({*self._own(), *wanted}):
            if wanted.get(path) != self._files.get(path):
                self._change(path, wanted.get(path))

    def _roll_back(self, first: int) -> None:
        self._delete_orphans()
        self._losses.append((first, len(self._changes)))
        self.tail_losses += 1
        self.is_rolled_back, self.is_whole = True, False
        self._flush()

    def _delete_orphans(self) -> None:
        """Commits without a plan stop Spark (CONCURRENT_STREAM_LOG_UPDATE): a person deletes
        them."""
        last = max(self.batches("offsets"), default=-1)
        for number in self.batches("commits"):
            if number > last:
                self._change(self.path("commits", number), None)
