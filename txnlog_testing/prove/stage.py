"""Stage of one disturbance: runs the job as a supervisor does, and lets a run be broken."""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from txnlog_testing.prove.driver import Driver, Outcome, Run, Script
from txnlog_testing.prove.world import World

RESTARTS_MAX = 3


class NotReached(Exception):
    """The job never comes to what was to be disturbed; the text says to what."""


class Refused(Exception):
    """The job does not go on: each restart ended with this error."""


class Stuck(Exception):
    """The job did not end in time."""


@dataclass(slots=True)
class Drivers:
    """Processes of all stages: a driver that stays warm, a spare one that starts while another
    works, and scripts.

    Drivers stay for the next proof with the same configuration, and end with this process.
    """

    spark_config: Mapping[str, str]
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="drivers-")))
    _warm: Driver | None = None
    _spare: Driver | None = None
    _count: int = 0
    _all: list[Run] = field(default_factory=list)

    def warm(self) -> Driver:
        """Return the driver that runs what is not disturbed."""
        if self._warm is None:
            self._warm = self._spare or self._start()
            self._spare = None
        return self._warm

    def give_up(self, run: Run) -> None:
        """Kill the process of a run whose state nobody knows; the next run has another."""
        run.kill()
        self._all.remove(run)
        if run is self._warm:
            self._warm = None

    def script(self, folder: Path, command: Sequence[str], failpoint: str) -> Script:
        """Start a script."""
        script = Script(folder, command, failpoint)
        self._all.append(script)
        return script

    def victim(self) -> Driver:
        """Return a driver that may be killed."""
        driver, self._spare = self._spare or self._start(), None
        return driver

    def prepare(self) -> None:
        """Start a spare driver."""
        self._spare = self._spare or self._start()

    def _start(self) -> Driver:
        self._count += 1
        driver = Driver(self.folder / f"driver-{self._count}", self.spark_config)
        self._all.append(driver)
        return driver

    def close(self) -> None:
        """End all."""
        for run in self._all:
            run.kill()
        self._all.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


_kept: list[Drivers] = []


def kept_drivers(spark_config: Mapping[str, str]) -> Drivers:
    """Return this process's drivers with a configuration; drivers with another one end."""
    if _kept and _kept[0].spark_config != spark_config:
        end_kept()
    if not _kept:
        _kept.append(Drivers(dict(spark_config)))
    return _kept[0]


@atexit.register
def end_kept() -> None:
    """End the drivers that stay: with the process, and when they may be in the middle of a run."""
    while _kept:
        _kept.pop().close()


@dataclass(slots=True)
class Stage:
    """World, job and drivers of a disturbance; `job` is a pickled function or a script's words."""

    world: World
    job: Path | Sequence[str]
    drivers: Drivers
    random: random.Random
    seconds_max: float
    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests that the reference sent in that wave."""
    wave_seconds: float = 1.0
    """Time that the wave took."""
    _scripts: list[Script] = field(default_factory=list)

    def reached(self) -> frozenset[str]:
        """Return the steps that runs which were not to be killed have reached."""
        if isinstance(self.job, Path):
            return self.drivers.warm().reached()
        return frozenset[str]().union(*(each.reached() for each in self._scripts))

    def run(self) -> None:
        """Run the job until it has read its input; a run that fails or dies is started again.

        Raises Refused with the last error, and Stuck.
        """
        for _ in range(1 + RESTARTS_MAX):
            outcome = self.end(self.begin())
            if not outcome.error:
                return
        raise Refused(outcome.error)

    def begin(self, failpoint: str = "", *, victim: bool = False) -> Run:
        """Start a run; a `victim` has a process of its own, in which a failpoint may be armed."""
        if isinstance(self.job, Path):
            driver = self.drivers.victim() if victim else self.drivers.warm()
            driver.arm(failpoint)
            driver.tell(
                {
                    "do": "run",
                    "job": str(self.job),
                    "kafka": self.world.kafka,
                    "checkpoint": str(self.world.checkpoints.root),
                }
            )
            return driver
        folder = self.world.folder / f"script-{len(self._scripts)}"
        self._scripts.append(self.drivers.script(folder, self.world.words(self.job), failpoint))
        return self._scripts[-1]

    def end(self, run: Run) -> Outcome:
        """Wait for a run's end, and clean up after it. Raises Stuck."""
        outcome = run.wait(self.seconds_max) or Outcome()
        if outcome.is_late or outcome.died:
            self.drivers.give_up(run)
        if outcome.is_late:
            raise Stuck(outcome.error)
        return outcome

    def kill_at(self, failpoint: str) -> None:
        """Kill a run at a failpoint. Raises NotReached if it ends without, and Stuck."""
        run = self.begin(f"{failpoint}:kill-driver", victim=True)
        outcome = run.wait(self.seconds_max, lambda: bool(run.fired()))
        fired = bool(run.fired())
        self.drivers.give_up(run)
        if not fired:
            raise _not_reached(failpoint, outcome or Outcome())

    def begun(self, files: str, seconds: float = 0.0) -> Run:
        """Start a victim, and return it when such a file of a checkpoint has appeared, as in
        `offsets/*`, and `seconds` have passed.

        Raises NotReached if it ends before, and Stuck.
        """
        before = self.world.checkpoints.found(files)
        run = self.begin(victim=True)
        outcome = run.wait(
            self.seconds_max, lambda: bool(self.world.checkpoints.found(files) - before)
        )
        if outcome is None and seconds:
            outcome = run.wait(seconds)
            outcome = None if outcome is None or outcome.is_late else outcome
        if outcome is not None:
            self.drivers.give_up(run)
            raise _not_reached(f"{files} before the run ends", outcome)
        return run

    def while_running(self, then: Callable[[], bool], act: Callable[[], None]) -> None:
        """Run the job; as soon as `then()` is true, `act()`. The job is run again if it fails.

        Raises NotReached if it ends before.
        """
        run = self.begin()
        outcome = run.wait(self.seconds_max, then)
        if outcome is None:
            act()
            outcome = self.end(run)
        elif then():
            act()  # the run has failed by it, and was faster than this process
        else:
            if outcome.is_late:
                self.drivers.give_up(run)
            raise _not_reached("it in this wave", outcome)
        if outcome.error:
            self.run()


def _not_reached(what: str, outcome: Outcome) -> Exception:
    """Return the error of a run that ended, or does not end, without what was waited for."""
    if outcome.is_late:
        return Stuck(outcome.error)
    return NotReached(f"{what} ({outcome.error or 'it ended well'})")
