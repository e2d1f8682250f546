"""The person who runs a query: starts it again when it stops, and does what its errors advise.

A query may be started with a lost or shortened checkpoint, with an old checkpoint by mistake, with
one that was moved, with another transactional id or topic, while drivers that were thought dead go
on. A copy of a live checkpoint becomes a query of its own, and is once taken for the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from simulation.checkers.output_witness import OutputWitness, Record
from simulation.hosts import spark_driver as spark
from simulation.hosts.checkpoint import STORE_FAILED, Checkpoint
from simulation.hosts.client import ClientProcess
from simulation.hosts.clock import MachineClock
from simulation.hosts.deployment import Deployment
from simulation.hosts.scheduler import Scheduler
from simulation.hosts.spark_tasks import Executors
from simulation.hosts.staging import Staging, StagingFiles, StagingServer
from simulation.hosts.stateful import StateMissing
from simulation.load.mishaps import Mishap, Mishaps
from simulation.load.running import (
    Running,
    is_explained,
    is_left_behind,
    is_other_topic,
    is_purged,
    is_sink_behind,
)
from simulation.scenario import Fault
from simulation.trace import Trace
from simulation.violation import violated
from txnlog_kafka.operations.effects import Failpoint
from txnlog_kafka.operations.session import Session
from txnlog_spark.commit.plan import CommitOptions
from txnlog_spark.errors import ProducerFenced, ProgressError, TxnLogError

RESTART_MS = 300
DRIVER_BIAS = 4
"""Factor of the chance of a driver's fault while the transaction comes to another state."""
OLD_START_US = 40_000
"""An old deployment starts at most so long before or after the new one."""
STARTED_BY_THE_OLD = 0.7
"""Share of the new transactional ids that an old deployment meets with the old id."""


class Host(Protocol):
    """The world in which an operator starts drivers."""

    scheduler: Scheduler
    trace: Trace

    def driver_process(self, name: str, clock: MachineClock) -> ClientProcess:
        """Return a new process on the machine with this clock."""

    def session_of(self, clock: MachineClock) -> Session:
        """Return a client that measures its timeouts by this clock."""

    def kill_broker(self, fault: Fault) -> None:
        """Kill a broker, as a planned fault says."""

    def isolate(self, group_id: str, for_ms: int) -> None:
        """Cut the coordinator of a group from all other brokers, for so many milliseconds."""

    def start_copy(self, checkpoint: Checkpoint) -> None:
        """Start a query of its own on a copy of the checkpoint."""


@dataclass(slots=True)
class Operator:
    """Life of a deployed query: its drivers, and their outcomes."""

    deployment: Deployment
    mishaps: Mishaps
    """Mishaps of the query; other ones, which do not happen, when faults have ended."""
    host: Host
    zombies: list[Running] = field(default_factory=list)
    """Paused drivers that have not ended: a run waits to see what they do."""
    _current: Running | None = None
    _driver_count: int = 0
    _application: spark.Application | None = None
    """Application in which the query has stopped, and may be started again."""
    _driver_clocks: list[MachineClock] = field(default_factory=list)
    """Clocks of the machines of all drivers so far."""
    _old_start: tuple[Checkpoint, Sequence[CommitOptions]] | None = None
    """Checkpoint and sinks of an old deployment that starts a driver beside the next one."""
    _staging_files: dict[str, StagingFiles] = field(default_factory=dict)
    """Staging files by query id: all drivers of a query share them."""
    _records: dict[str, Record] = field(default_factory=dict)
    """Run that has written the record of a begun batch, by path."""

    @property
    def is_over(self) -> bool:
        """True if the input is read to its end, and no driver is left that could do something."""
        return self.deployment.finished is not None and not self.zombies

    def calm_down(self) -> None:
        """End the faults; a query that shares another's transactional id gets its own."""
        self.mishaps = self.mishaps.ended()
        for clock in self._driver_clocks:
            clock.drift()
            clock.wall_skew_ms = 0
        self.deployment.take_own_id()

    # ------------------------------------------------------------------ starts

    def start(self, checkpoint: Checkpoint | None = None) -> None:
        """Start the query on a checkpoint, the newest one unless another is named."""
        deployment = self.deployment
        self._current = self._launch(checkpoint or deployment.newest, deployment.sinks)

    def _launch(
        self, checkpoint: Checkpoint, sinks: Sequence[CommitOptions], *, is_refused: bool = False
    ) -> Running:
        """Start a driver. With `is_refused`, the driver has to stop before it writes anything."""
        self._driver_count += 1
        deployment, trace, number = self.deployment, self.host.trace, self._driver_count
        application = self._application_for(checkpoint)
        process = self.host.driver_process(f"{deployment.name}-driver-{number}", application.clock)
        driver = spark.Driver(
            run_id=f"{deployment.name}-run-{number}",
            checkpoint=checkpoint,
            source=deployment.source,
            sinks=sinks,
            history=deployment.history,
            rng=self.mishaps.workload,
            new_session=partial(self.host.session_of, application.clock),
            application=application,
            chances=self.mishaps.of_workers,
            notes_group=self._notes_group(checkpoint),
            on_worker_lost=lambda: trace.fault("worker lost"),
            on_worker_killed=lambda: self._on_worker_killed(process),
        )
        original = deployment.original
        witness = OutputWitness(driver, self._records, original, is_refused=is_refused)
        running = Running(
            process, driver, witness, trace, lambda: self.mishaps, self.on_step, self.on_file
        )
        process.run(driver.query(), lambda _, error: self._on_end(running, error), running)
        return running

    def _notes_group(self, checkpoint: Checkpoint) -> bool:
        deployment = self.deployment
        if deployment.source.settings.reads_without_group and not checkpoint.starts_committed:
            return False
        return not deployment.may_be_copied and deployment.original is None

    def _on_worker_killed(self, process: ClientProcess) -> None:
        self.host.trace.fault("committing worker killed")
        process.close_unanswered()

    def _application_for(self, checkpoint: Checkpoint) -> spark.Application:
        """Return a new application, or the one that the query's last run has left."""
        left, self._application = self._application, None
        write, settings = checkpoint.query_id, self.deployment.source.settings
        if left is not None and left.executors.staging.write == write:
            return left
        files = None
        if settings.staging_files:
            files = self._staging_files.setdefault(write, StagingFiles())
        scheduler = self.host.scheduler
        executors = Executors(
            chances=self.mishaps.chances.tasks,
            inline_bytes=settings.inline_bytes,
            staging=Staging(write, StagingServer(), files),
            rng=self.mishaps.tasks,
            trace=self.host.trace,
            now_ms=lambda: scheduler.monotonic_ms,
            faults_are_on=lambda: self.mishaps.are_on,
        )
        clock = MachineClock(scheduler)
        self._driver_clocks.append(clock)
        return spark.Application(executors, clock)

    def _restart(self, checkpoint: Checkpoint | None = None) -> None:
        """Start again in a moment, on the checkpoint as it is then.

        A mishap comes in between, unless a checkpoint is named.
        """
        self._current = None
        self.host.trace.count("driver restarts")
        mishap = self.mishaps.at_restart() if checkpoint is None else None
        if mishap is not None:
            checkpoint = self._suffer(mishap)
        faults, after = self.mishaps.faults, self.host.scheduler.after
        delay_us = faults.randint(OLD_START_US, 2 * RESTART_MS * 1000)
        after(delay_us, lambda: self.start(checkpoint) if self._current is None else None)
        old, self._old_start = self._old_start, None
        if old is not None:
            after(delay_us + faults.randint(-OLD_START_US, OLD_START_US),
                  lambda: self._launch_zombie(*old))  # fmt: skip

    def _launch_zombie(self, checkpoint: Checkpoint, sinks: Sequence[CommitOptions]) -> None:
        if self.mishaps.are_on:
            self.zombies.append(self._launch(checkpoint, sinks))

    # ------------------------------------------------------------------ ends

    def _on_end(self, running: Running, error: TxnLogError | None) -> None:
        is_current = running is self._current
        if running in self.zombies:
            self.zombies.remove(running)
        if error is None:
            if is_current:
                self.deployment.finished = running.driver.checkpoint
            return
        running.check_end(error)
        self.host.trace.count(f"query stopped: {type(error).__name__}")
        if isinstance(error, ProducerFenced):
            self.host.trace.count("fenced")
        if is_current:
            if self.mishaps.keep_application():
                self._application = running.driver.application
            self._restart(self._advised(running.driver, error))

    def _advised(self, driver: spark.Driver, error: TxnLogError) -> Checkpoint | None:
        """Return the checkpoint to go on with, as the error's text says; None for the newest.

        A query that stops for a contradiction which nothing explains is a violation (41).
        """
        checkpoint, deployment = driver.checkpoint, self.deployment
        if is_left_behind(error, driver):
            return None
        if isinstance(error, StateMissing):
            return self._replace(checkpoint)
        if not isinstance(error, ProgressError) or STORE_FAILED.reason in str(error):
            return None
        if is_other_topic(error, str(deployment.options.topic)):
            self._change_topic(checkpoint)
            return None
        if is_sink_behind(error, len(deployment.sinks)) or is_purged(error, driver):
            return None
        if not is_explained(error, driver, is_only=len(deployment.checkpoints) == 1):
            violated(41, "the query stopped for a contradiction", error=str(error))
        return self._replace(checkpoint)

    def _replace(self, checkpoint: Checkpoint) -> Checkpoint:
        """Restore what the query was refused without, or begin where the output ends."""
        if checkpoint is not self.deployment.newest:
            return self.deployment.newest
        if checkpoint.is_rolled_back:
            self._end_zombies(checkpoint)
            if checkpoint.restore_kept():
                self.host.trace.count("lost files restored on advice")
                return checkpoint
        self.host.trace.count("checkpoint replaced on advice")
        return self.deployment.new_checkpoint(starts_committed=True)

    # ------------------------------------------------------------------ faults of a driver

    def on_step(self, running: Running, reached: Failpoint) -> None:
        """Let the planned fault of this step happen, or one by chance."""
        fault = self.mishaps.planned.at_step(reached)
        if fault is not None:
            self._strike(running, fault)
        else:
            self._chance(running)
        self.mishaps.disturb(running.driver.application.clock, self.host.trace)

    def on_file(self, running: Running) -> None:
        """Let a fault happen by chance."""
        self._chance(running)

    def at_moment(self) -> None:
        """Let a fault happen by chance: the transaction has just come to another state.

        The driver may not know of the state. A driver that has done all its work is left alone.
        """
        running = self._current
        if running is not None and self.deployment.finished is None:
            clock = running.driver.application.clock
            self.mishaps.disturb(clock, self.host.trace, DRIVER_BIAS)
            self._chance(running, DRIVER_BIAS)

    def _chance(self, running: Running, bias: int = 1) -> None:
        if not running.process.alive or running.process.paused:
            return
        is_current, deployment = running is self._current, self.deployment
        may_copy = is_current and deployment.may_be_copied and not deployment.was_copied
        may_copy = may_copy and running.driver.checkpoint.is_begun
        fault = self.mishaps.at_step(is_current=is_current, may_copy=may_copy, bias=bias)
        if fault is not None:
            self._strike(running, fault)

    def _strike(self, running: Running, fault: Fault) -> None:
        """Let a fault happen to a driver, or to a broker at a step of the driver."""
        if fault.action == "kill":
            self._kill(running)
        elif fault.action == "pause":
            self._pause(running, fault.pause_ms)
        elif fault.action == "isolate":
            self.host.isolate(self.deployment.progress_group(), fault.pause_ms)
        elif fault.action == "copy":
            self._copy(running.driver.checkpoint)
        else:
            self.host.kill_broker(fault)

    def _kill(self, running: Running) -> None:
        self.host.trace.fault("driver killed")
        running.process.kill()
        if running in self.zombies:
            self.zombies.remove(running)
        is_current, mishaps = running is self._current, self.mishaps
        if mishaps.lose_power():
            self.host.trace.fault("driver's machine lost power")
            nobody_lives = is_current and self.deployment.finished is None
            takes_logs = mishaps.lose_unflushed_logs(nobody_lives=nobody_lives)
            for checkpoint in self.deployment.checkpoints:
                self._end_zombies(checkpoint)
                checkpoint.lose_power(mishaps.faults, takes_logs=takes_logs)
        if is_current:
            self._restart()

    def _pause(self, running: Running, pause_ms: int) -> None:
        self.host.trace.fault("driver paused")
        running.process.pause(pause_ms * 1000)
        if running not in self.zombies:
            self.zombies.append(running)
        if running is self._current:
            self._restart()

    def _copy(self, checkpoint: Checkpoint) -> None:
        """Copy a checkpoint while it is written to.

        One copy becomes a query of its own, another is started as if it were the original.
        """
        deployment = self.deployment
        deployment.was_copied = True
        self.host.trace.count("checkpoint copied")
        self.host.start_copy(checkpoint.copied_to(f"{checkpoint.location}-copy"))
        same = checkpoint.copied_to(f"{checkpoint.location}-mistake")
        self.zombies.append(self._launch(same, deployment.sinks, is_refused=True))

    def _end_zombies(self, checkpoint: Checkpoint) -> None:
        """End the drivers that were left on a checkpoint whose machine is gone."""
        for zombie in [z for z in self.zombies if z.driver.checkpoint is checkpoint]:
            zombie.process.kill()
            self.zombies.remove(zombie)

    # ------------------------------------------------------------------ mishaps of a restart

    def _suffer(self, mishap: Mishap) -> Checkpoint | None:
        """Let a mishap happen; return the checkpoint to start with, None for the newest."""
        happen = {
            Mishap.CHECKPOINT_LOST: self._lose_checkpoint,
            Mishap.TAIL_LOST: self._lose_tail,
            Mishap.OLD_CHECKPOINT: self._choose_checkpoint,
            Mishap.ID_CHANGE: self._change_id,
            Mishap.TOPIC_CHANGE: self._change_topic,
            Mishap.MOVED: self._move,
            Mishap.LOGS_LOST: self._lose_logs,
            Mishap.BACKUP_RESTORED: self._restore_backup,
        }
        return happen[mishap](self.deployment.newest)

    def _lose_checkpoint(self, _: Checkpoint) -> Checkpoint:
        self.host.trace.count("checkpoint lost")
        return self.deployment.new_checkpoint(starts_committed=True)

    def _lose_tail(self, newest: Checkpoint) -> None:
        """Lose the newest batches with the machine that wrote them: no driver keeps its plan."""
        faults, batches = self.mishaps.faults, len(newest.batches("offsets"))
        if batches > 1:
            self.host.trace.count("checkpoint tail lost")
            self._end_zombies(newest)
            newest.lose_tail(min(faults.randint(1, 2), batches - 1), faults)

    def _lose_logs(self, newest: Checkpoint) -> None:
        self.host.trace.count("logs lost")
        self._end_zombies(newest)
        newest.lose_logs(self.mishaps.faults)

    def _restore_backup(self, newest: Checkpoint) -> None:
        """Restore a backup while no driver lives: that is a condition of the guarantee."""
        self.host.trace.count("backup restored")
        self._end_zombies(newest)
        newest.restore_backup(self.mishaps.faults)

    def _choose_checkpoint(self, newest: Checkpoint) -> Checkpoint:
        found = self.mishaps.faults.choice(self.deployment.checkpoints)
        if found is not newest:
            self.host.trace.count("old checkpoint started")
        return found

    def _change_id(self, newest: Checkpoint) -> None:
        """Change the id; the old deployment may start a driver once more, with the old id."""
        self.host.trace.count("transactional id changed")
        if self.mishaps.faults.random() < STARTED_BY_THE_OLD:
            self._old_start = (newest, self.deployment.sinks)
        self.deployment.change_id()

    def _change_topic(self, checkpoint: Checkpoint) -> None:
        """Change the topic once a record says in which topic the begun batch is."""
        if checkpoint.is_begun:
            self.host.trace.count("topic changed")
            self.deployment.change_topic()

    def _move(self, newest: Checkpoint) -> None:
        """Move a checkpoint that has no copy: a driver could not tell a copy from the original."""
        if newest.is_begun and not self.deployment.was_copied:
            self.host.trace.count("checkpoint moved")
            self._end_zombies(newest)
            self.deployment.move()
