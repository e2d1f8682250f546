"""Use of the disk by a simulated process, like `server/storage.py` and `server/space.py`.

Flushes wait as `FlushOrder` says. After each operation on a file the process may die. Free space is
looked at as by `SpaceGuard`: a reserve is held. Writes are refused while it is not held, or while
less than `LOW_BYTES` is free. A write that fails all the same gives the reserve to recovery.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from types import TracebackType

from broker_sim.core.effects import Flush, StorageOperation
from broker_sim.core.flush_order import FlushOrder
from simulation.hosts.disk import SimDisk
from simulation.hosts.scheduler import Scheduler

FAILED_FLUSH = "failed flush"
NO_SPACE = "no space"
"""Why a process ends."""

RESERVE_BYTES = 16_384
LOW_BYTES = 32_768
RETRY_US = 1_000_000
"""The logs of a run are small, and so are these; the server has 1 MiB, and an option."""

FLUSH_US_MIN, FLUSH_US_MAX = 100, 5_000
"""Microseconds that the flushes of a round take."""
STALL_US_MAX = 300_000
STALL_SHARE = 0.02
"""Share of the flushes that take up to `STALL_US_MAX`: a busy disk, with a long queue behind."""


class ProcessDied(Exception):
    """The process died between two effects; the text says of what."""


class Mortal:
    """Around effects, between any two of which the process may die. One object does for all."""

    def __init__(self, die_of: Callable[[BaseException | None], bool]) -> None:
        self._die_of = die_of

    def __enter__(self) -> None:
        """Nothing has happened yet."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> bool:
        """True if the error was the end of the process, and not a failure of the code."""
        return kind is not None and self._die_of(error)


class ProcessFiles:
    """The way of one process to its disk."""

    def __init__(
        self,
        disk: SimDisk,
        flush_times: random.Random,
        watch: Callable[[StorageOperation], str | None],
    ) -> None:
        """`watch` is called after each operation; a text is the reason to die now."""
        self.flush_count = 0
        self._watch = watch
        self._disk = disk
        self._flush_times = flush_times
        self._order = FlushOrder()

    def perform(self, operations: Iterable[StorageOperation]) -> None:
        """Carry them out; flushes may wait for `barrier`. Raises ProcessDied, NoSpace, FlushFailed.

        Those before the one that it raises for were carried out.
        """
        for operation in operations:
            self._perform(self._order.admit(operation))

    def barrier(self) -> None:
        """Everything that was to be flushed is. Raises as `perform`."""
        self._perform(self._order.drain())

    def forget(self) -> None:
        """Forget the pending flushes: no client learned that they were done."""
        self._order.forget()

    def flush_us(self) -> int:
        """Return the microseconds that the flushes of a round take."""
        stalls = self._flush_times.random() < STALL_SHARE
        return self._flush_times.randint(FLUSH_US_MIN, STALL_US_MAX if stalls else FLUSH_US_MAX)

    def _perform(self, operations: Iterable[StorageOperation]) -> None:
        for operation in operations:
            self._disk.apply(operation)
            self.flush_count += isinstance(operation, Flush)
            reason = self._watch(operation)
            if reason is not None:
                raise ProcessDied(reason)


class SpaceWatch:
    """Watch over the space for writes, and the reserve."""

    def __init__(self, disk: SimDisk, scheduler: Scheduler) -> None:
        self.said_low = False
        """Value that the core heard last."""
        self._disk = disk
        self._scheduler = scheduler
        self._held = True
        self._next_try_us = 0

    def is_low(self) -> bool:
        """True if writes are to be refused now."""
        now_us, free_bytes = self._scheduler.now_us, self._disk.free_bytes
        if not self._held:
            if now_us < self._next_try_us:
                return True
            self._next_try_us = now_us + RETRY_US
            self._held = self._disk.reserve(RESERVE_BYTES)
            free_bytes = self._disk.free_bytes
        return not self._held or (free_bytes is not None and free_bytes < LOW_BYTES)

    def release(self) -> None:
        """A write has failed: recovery gets the reserve."""
        if self._held:
            self._disk.reserve(-RESERVE_BYTES)
        self._held = False
        self._next_try_us = self._scheduler.now_us + RETRY_US
