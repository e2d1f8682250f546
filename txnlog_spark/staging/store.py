"""Bookkeeping of the staging server: its attempts and their sizes.

This module has no I/O: the host keeps the bytes, in one file for each attempt. Correctness does not
depend on it. If an attempt's connection breaks, the attempt is dropped. If the server ends, all
attempts are lost: the commit fails and Spark replays the batch.
"""

from __future__ import annotations

from collections import deque

from txnlog_kafka.wire.invariants import check
from txnlog_spark.staging.frames import Forgotten, TaskAttempt

FINAL_MAX = 1000
"""Number of ended batches that the store remembers. A task that is later than that comes from a
batch of days ago."""


class StoreFull(Exception):
    """The attempt may not be staged here; the text says why, and what to do."""


class Store:
    """Attempts of one server: at most `bytes_max` bytes in total."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: dict[TaskAttempt, int] = {}
        self._final: deque[Forgotten] = deque(maxlen=FINAL_MAX)
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def open(self, attempt: TaskAttempt) -> None:
        """Add a new attempt; its name must be new.

        Raises StoreFull for a late attempt whose batch is over: no later order would remove it.
        """
        check(attempt not in self._kept, "attempts have names of their own", attempt=attempt)
        if any(final.covers(attempt) for final in self._final):
            raise StoreFull("its batch is committed, or has failed")
        self._kept[attempt] = 0

    def add(self, attempt: TaskAttempt, size_bytes: int) -> None:
        """Add `size_bytes` to the attempt. Raises StoreFull, and the attempt stays as it was."""
        if self.size_bytes + size_bytes > self._bytes_max:
            mine = sum(size for each, size in self._kept.items() if each.write == attempt.write)
            raise StoreFull(
                f"{self.size_bytes} bytes are staged on the driver, {mine} of them by this query, "
                f"and stagingDiskSpace={self._bytes_max} is the maximum: raise it, set "
                "stagingDirectory to a larger disk, make batches smaller (maxOffsetsPerTrigger), "
                "or set stagingLocation"
            )
        self._kept[attempt] += size_bytes
        self.size_bytes += size_bytes

    def is_kept(self, attempt: TaskAttempt) -> bool:
        """True if the attempt has not been dropped or forgotten."""
        return attempt in self._kept

    def drop(self, attempt: TaskAttempt) -> None:
        """Forget one attempt; a second call does nothing."""
        self.size_bytes -= self._kept.pop(attempt, 0)

    def forget(self, forgotten: Forgotten) -> list[TaskAttempt]:
        """Drop the attempts that `forgotten` covers, finished or not. Return them: the host removes
        their bytes."""
        if forgotten.is_final:
            self._final.append(forgotten)
        found = [attempt for attempt in self._kept if forgotten.covers(attempt)]
        for attempt in found:
            self.drop(attempt)
        return found
