"""Mishaps of one query: their chances, and the generators that decide which of them happen.

A mishap is a value. The operator asks at each step of a driver and at each restart, and carries
out the mishap that it gets.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, replace

from simulation.hosts.clock import CLOCK_JUMP_MS_MAX, MachineClock, drawn_rate
from simulation.hosts.scripted_faults import ScriptedFaults
from simulation.scenario import Chances, Fault, WorkerChances
from simulation.trace import Trace

PAUSE_MS_MIN = 10
FILE_DELAY_US_MIN = 20
JUMP_SHARE = 0.5
"""Share of the faults of a driver's clocks that are jumps; the rest is drift."""
SAME_APPLICATION = 0.5
"""Probability per restart after an error that the query keeps its application.

The session of such an application has other queries.
"""
_KILL = Fault("step", action="kill")
_COPY = Fault("step", action="copy")


class Mishap(enum.Enum):
    """A mishap before a restart, by the name of its chance in `OperatorChances`.

    One number decides which of them happens, so their order is part of what a seed means.
    """

    CHECKPOINT_LOST = "checkpoint_lost"
    TAIL_LOST = "tail_lost"
    OLD_CHECKPOINT = "old_checkpoint"
    ID_CHANGE = "id_change"
    TOPIC_CHANGE = "topic_change"
    MOVED = "moved"
    LOGS_LOST = "logs_lost"
    BACKUP_RESTORED = "backup_restored"


@dataclass(frozen=True, slots=True)
class Mishaps:
    """Chances of all that may happen to one query, with a generator for each part of its life."""

    chances: Chances
    planned: ScriptedFaults
    faults: random.Random
    """Generator of the faults of drivers, of their files, and of restarts."""
    workload: random.Random
    """Generator of the driver's own choices: rows per batch, workers, and their deaths."""
    tasks: random.Random
    """Generator of the faults of tasks, and of the choice of an application at a restart."""
    clocks: random.Random
    """Generator of the faults of the clocks of drivers' machines."""
    are_on: bool = True
    """True while faults happen."""

    def ended(self) -> Mishaps:
        """Return the mishaps of a query when faults have ended."""
        return replace(self, are_on=False)

    # ------------------------------------------------------------------ at a step of a driver

    def at_step(self, *, is_current: bool, may_copy: bool, bias: int = 1) -> Fault | None:
        """Draw the fault of a driver that runs; only the current driver is paused."""
        if not self.are_on:
            return None
        chances, copied = self.chances.driver, self.chances.operator.copied
        if self.faults.random() < chances.kill * bias:
            return _KILL
        if is_current and self.faults.random() < chances.pause * bias:
            pause_ms = self.faults.randint(PAUSE_MS_MIN, chances.pause_ms)
            return Fault("step", action="pause", pause_ms=pause_ms)
        if may_copy and copied > 0.0 and self.faults.random() < copied:
            return _COPY
        return None

    def lose_power(self) -> bool:
        """Draw whether the machine of a killed driver loses power."""
        return self.are_on and self.faults.random() < self.chances.driver.power_loss

    def lose_unflushed_logs(self, *, nobody_lives: bool) -> bool:
        """Draw whether a loss of power takes files of Spark's: no driver may live that knows them.

        This draws nothing where a driver lives.
        """
        share = self.chances.driver.unflushed_logs
        return share > 0.0 and nobody_lives and self.faults.random() < share

    def disturb(self, clock: MachineClock, trace: Trace, bias: int = 1) -> None:
        """Draw whether a driver's machine gets clocks of other rates, or a jump of its wall clock.

        Other rates last until faults end.
        """
        chance = self.chances.driver.clock * bias
        if not self.are_on or chance == 0.0 or self.clocks.random() >= chance:
            return
        if self.clocks.random() < JUMP_SHARE:
            trace.fault("driver's clock jumped")
            clock.wall_skew_ms = self.clocks.randint(-CLOCK_JUMP_MS_MAX, CLOCK_JUMP_MS_MAX)
        else:
            trace.fault("driver's clock drifted")
            clock.drift(monotonic=drawn_rate(self.clocks), wall=drawn_rate(self.clocks))

    # ------------------------------------------------------------------ at a file

    def fail_store(self) -> bool:
        """Draw whether the store of the checkpoint fails at this file."""
        chance = self.chances.driver.store_failure
        return self.are_on and chance > 0.0 and self.faults.random() < chance

    def fail_staged_read(self) -> bool:
        """Draw whether the staging server fails at this read of a staged piece."""
        return self.are_on and self.faults.random() < self.chances.tasks.staged_read

    def file_delay_us(self) -> int:
        """Draw the microseconds that a file operation takes."""
        return self.faults.randint(FILE_DELAY_US_MIN, self.chances.driver.store_ms * 1000)

    # ------------------------------------------------------------------ at a restart

    @property
    def of_workers(self) -> WorkerChances:
        """Chances of a driver's Python workers."""
        return self.chances.worker if self.are_on else WorkerChances()

    def keep_application(self) -> bool:
        """Draw whether the query is started again in the application in which it has stopped."""
        return self.tasks.random() < SAME_APPLICATION

    def at_restart(self) -> Mishap | None:
        """Draw the mishap that happens before a restart; None for none."""
        if not self.are_on:
            return None
        drawn = self.faults.random()
        for mishap in Mishap:
            chance: float = getattr(self.chances.operator, mishap.value)
            if drawn < chance:
                return mishap
            drawn -= chance
        return None
