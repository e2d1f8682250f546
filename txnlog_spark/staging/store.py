"""What the staging server keeps: attempts, in memory up to a bound, beyond it in files up to
another.

Plain bookkeeping without I/O: `add` says where the next bytes of an attempt belong, and the host
puts them there. Nothing that correctness needs is here. An attempt that is not finished cannot be
read, one whose connection breaks is dropped, and when the server ends all are lost: the commit
fails then and Spark replays the batch.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from txnlog_kafka.wire.invariants import check
from txnlog_spark.staging.frames import Forgotten, TaskAttempt

FINAL_MAX = 1000
"""So many batches are remembered as over. A task that is later than that is a task of days ago."""


class StoreFull(Exception):
    """This may not be staged here; the text says why, and what to do."""


class Medium(enum.Enum):
    """Where the bytes of an attempt are."""

    MEMORY = "memory"
    FILE = "file"


@dataclass(slots=True)
class Kept:
    """One attempt's bytes, as far as the bounds are concerned."""

    medium: Medium = Medium.MEMORY
    size_bytes: int = 0
    finished: bool = False


class Store:
    """All attempts of one server.

    `memory_bytes_max` and `file_bytes_max` bound what is kept, over all attempts.
    """

    def __init__(self, memory_bytes_max: int, file_bytes_max: int) -> None:
        self._memory_bytes_max = memory_bytes_max
        self._memory_bytes_there = memory_bytes_max
        self._file_bytes_max = file_bytes_max
        self._kept: dict[TaskAttempt, Kept] = {}
        self._final: deque[Forgotten] = deque(maxlen=FINAL_MAX)
        self.memory_bytes = 0
        self.file_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def open(self, attempt: TaskAttempt) -> None:
        """A task begins to stage; its name is new.

        Raises StoreFull for a late one, whose batch is over: nobody would forget it.
        """
        check(attempt not in self._kept, "attempts have names of their own", attempt=attempt)
        if any(final.covers(attempt) for final in self._final):
            raise StoreFull("its batch is committed, or has failed")
        self._kept[attempt] = Kept()

    def limit_memory(self, size_bytes: int) -> None:
        """Keep no more in memory, whatever the bound is: the process does not have more."""
        self._memory_bytes_there = min(self._memory_bytes_there, size_bytes)

    def add(self, attempt: TaskAttempt, size_bytes: int) -> Medium:
        """Where the attempt belongs with so many more bytes: with FILE, what it has in memory too.

        Raises StoreFull when neither bound leaves space. The attempt stays as it was then.
        """
        kept = self._kept[attempt]
        if (
            kept.medium is Medium.MEMORY
            and self.memory_bytes + size_bytes <= self._memory_bytes_there
        ):
            self.memory_bytes += size_bytes
            kept.size_bytes += size_bytes
            return Medium.MEMORY
        self._add_to_file(attempt, kept, size_bytes)
        return Medium.FILE

    def move_to_file(self, attempt: TaskAttempt) -> None:
        """There was no memory for what `add` has counted there. Raises StoreFull.

        Nor is there for as much of other attempts.
        """
        kept = self._kept[attempt]
        self.limit_memory(self.memory_bytes - kept.size_bytes)
        self._add_to_file(attempt, kept, 0)

    def _add_to_file(self, attempt: TaskAttempt, kept: Kept, size_bytes: int) -> None:
        moved = kept.size_bytes if kept.medium is Medium.MEMORY else 0
        if self.file_bytes + moved + size_bytes > self._file_bytes_max:
            raise StoreFull(
                f"{self.memory_bytes + self.file_bytes} bytes are staged on the driver, "
                f"{self._of(attempt.write)} of them by this query: at most "
                f"stagingMemory={self._memory_bytes_max} are kept in memory and "
                f"stagingDiskSpace={self._file_bytes_max} in files; raise these, make batches "
                "smaller (maxOffsetsPerTrigger), or set stagingLocation"
            )
        self.memory_bytes -= moved
        self.file_bytes += moved + size_bytes
        kept.medium = Medium.FILE
        kept.size_bytes += size_bytes

    def _of(self, write: str) -> int:
        return sum(kept.size_bytes for each, kept in self._kept.items() if each.write == write)

    def finish(self, attempt: TaskAttempt) -> None:
        """All of the attempt is there: it may be read from now on."""
        self._kept[attempt].finished = True

    def finished(self, attempt: TaskAttempt) -> Kept | None:
        """An attempt that may be read."""
        kept = self._kept.get(attempt)
        return kept if kept is not None and kept.finished else None

    def is_kept(self, attempt: TaskAttempt) -> bool:
        """Whether the attempt has not been dropped or forgotten."""
        return attempt in self._kept

    def drop(self, attempt: TaskAttempt) -> None:
        """Forget one attempt; nothing happens when it is forgotten already."""
        kept = self._kept.pop(attempt, None)
        if kept is None:
            return
        if kept.medium is Medium.MEMORY:
            self.memory_bytes -= kept.size_bytes
        else:
            self.file_bytes -= kept.size_bytes

    def forget(self, forgotten: Forgotten) -> list[TaskAttempt]:
        """Drop what is meant, finished or not; returns it, for the host to remove its bytes."""
        if forgotten.is_final:
            self._final.append(forgotten)
        found = [attempt for attempt in self._kept if forgotten.covers(attempt)]
        for attempt in found:
            self.drop(attempt)
        return found
