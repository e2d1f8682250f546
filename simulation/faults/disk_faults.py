"""Faults of the disks of simulated processes while they run, drawn from the seed.

A disk may be full for a while: nearly, so that the process sees it coming, or at once. A flush may
fail, which ends the process; the bytes of the file that were not flushed are then gone, or a part
of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from simulation.hosts.process_files import LOW_BYTES
from simulation.hosts.scheduler import Scheduler
from simulation.hosts.sim_broker import SimulatedBroker
from simulation.scenario import DiskChances
from simulation.trace import Trace

DISK_TICK_US = 500_000
FULL_US = (200_000, 12_000_000)
LITTLE_BYTES = 3_000
"""A few batches."""


class DiskFaults:
    """See the module. `may_lose` says whether a process may lose now what is not flushed."""

    def __init__(
        self,
        chances: DiskChances,
        scheduler: Scheduler,
        trace: Trace,
        rng: random.Random,
        may_lose: Callable[[SimulatedBroker], bool],
    ) -> None:
        self._chances = chances
        self._scheduler = scheduler
        self._trace = trace
        self._rng = rng
        self._may_lose = may_lose
        self._processes: Sequence[SimulatedBroker] = ()
        self._biased: tuple[SimulatedBroker, int] | None = None

    def begin(self, processes: Sequence[SimulatedBroker]) -> None:
        """Let faults happen to the disks of these processes from now on."""
        self._processes = processes
        if self._chances.full:
            self._scheduler.after(DISK_TICK_US, self._tick)

    def end(self) -> None:
        """End the faults: all disks work and have space."""
        for process in self._processes:
            process.disk.free_bytes = None
        self._processes = ()

    def at_moment(self, process: SimulatedBroker, bias: int) -> None:
        """Let the next flush of a process fail so many times as likely as other flushes.

        It flushes a record that says in which state a transaction is.
        """
        self._biased = process, bias

    def flush_fails(self, process: SimulatedBroker) -> bool:
        """Draw whether a flush of a process fails."""
        chance = self._chances.flush_failure
        if chance == 0.0 or process not in self._processes:
            return False
        if self._biased is not None and process is self._biased[0]:
            chance, self._biased = chance * self._biased[1], None
        return self._rng.random() < chance and self._may_lose(process)

    def _tick(self) -> None:
        if not self._processes:
            return
        self._scheduler.after(DISK_TICK_US, self._tick)
        self.happen()

    def happen(self) -> None:
        """Draw whether the disk of a process is full from now on."""
        if not self._processes or self._rng.random() >= self._chances.full:
            return
        process = self._rng.choice(self._processes)
        if process.disk.free_bytes is not None:
            return
        free_bytes = self._rng.choice((0, self._rng.randint(0, LITTLE_BYTES), LOW_BYTES // 2))
        for_us = self._rng.randint(*FULL_US)
        self._trace.line(process.name, "disk-full", {"free_bytes": free_bytes, "for_us": for_us})
        self._trace.fault("disk full", process.name)
        process.disk.free_bytes = free_bytes
        self._scheduler.after(for_us, partial(self._give_space, process))

    def _give_space(self, process: SimulatedBroker) -> None:
        self._trace.line(process.name, "disk-has-space")
        process.disk.free_bytes = None
