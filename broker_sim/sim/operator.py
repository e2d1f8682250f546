"""The person who runs a query: starts it again when it stops, and does what its errors advise.

A query may be started with a lost or shortened checkpoint, with an old checkpoint by mistake, with
another transactional id, while drivers that were thought dead go on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from broker_sim.sim import spark_driver as spark
from broker_sim.sim.checkpoint import STORE_FAILED, Checkpoint
from broker_sim.sim.client import ClientProcess
from broker_sim.sim.clock import MachineClock, drawn_rate
from broker_sim.sim.one_broker import CLOCK_JUMP_MS_MAX
from broker_sim.sim.planned import PlannedFaults
from broker_sim.sim.scenario import Fault, Scenario
from broker_sim.sim.scheduler import Scheduler
from broker_sim.sim.spark_tasks import Executors
from broker_sim.sim.staging import Staging, StagingFiles, StagingServer, read_with_a_fault
from broker_sim.sim.trace import Trace
from broker_sim.sim.violation import violated
from txnlog_spark.commit.plan import CommitOptions
from txnlog_spark.errors import (
    BatchReplanned,
    CommittedOffsetsMoved,
    GroupHasOffsets,
    ProducerFenced,
    ProgressError,
    TxnLogError,
)
from txnlog_spark.protocol.effects import (
    FileAsk,
    FileFailed,
    FileOutcome,
    Reached,
    ReadStaged,
    RemoveOtherRuns,
)
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.values import StagedPiece

RESTART_MS = 300
DRIVER_BIAS = 4
"""So much likelier has a driver a fault while the transaction comes to another state."""
OLD_START_US = 40_000
"""An old deployment starts at most so long before or after the new one."""
PAUSE_MS = (10, 40_000)
FILE_DELAY_US = 20
"""At least."""
JUMP_SHARE = 0.5
"""Of what happens to a driver's clocks; the rest is drift."""
PRODUCE = "Produce"
SAME_APPLICATION = 0.5
"""Of the restarts of a query that has stopped with an error: its session has others, and lives."""


@dataclass(slots=True)
class Running:
    """A driver that was started, and what it had sent when its present batch began."""

    process: ClientProcess
    driver: spark.Driver
    produces_before: int = 0
    skips_before: int = 0


@dataclass(slots=True)
class Operator:
    """One query's life: its checkpoints, its drivers, and what became of them."""

    name: str
    source: spark.Source
    options: CommitOptions
    scenario: Scenario
    scheduler: Scheduler
    trace: Trace
    planned: PlannedFaults
    faults: random.Random
    workload: random.Random
    tasks: random.Random
    clocks: random.Random
    new_process: Callable[[str], ClientProcess]
    new_session: Callable[[MachineClock], Session]
    kill_broker: Callable[[Fault], None]
    isolate: Callable[[str, int], None]
    """Cut the coordinator of a group from all other brokers, for so many milliseconds."""
    history: spark.DriverHistory = field(default_factory=spark.DriverHistory)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    chaos: bool = True
    finished: Checkpoint | None = None
    """The checkpoint whose query came to the input's end."""
    zombies: list[Running] = field(default_factory=list)
    """Paused drivers that have not ended: a run waits to see what they do."""
    staging_files: dict[str, StagingFiles] = field(default_factory=dict)
    """By query id: all drivers of a query share them."""
    _current: Running | None = None
    _application: spark.Application | None = None
    """The one in which the query has stopped, and may be started again."""
    _driver_clocks: list[MachineClock] = field(default_factory=list)
    _driver_count: int = 0
    _id_count: int = 0
    _old_deployment: tuple[Checkpoint, CommitOptions] | None = None
    """What starts a driver of its own beside the next one."""

    def __post_init__(self) -> None:
        self._new_checkpoint(starts_committed=False)

    def progress_groups(self) -> dict[str, str]:
        """The group that holds progress, by query id."""
        return {c.query_id: self.options.progress_group_of(c.query_id) for c in self.checkpoints}

    def done_batches(self) -> dict[str, int]:
        """By group that holds progress: the batch after the last one that is reported as done."""
        done = self.history.done
        return {group: done.get(query, 0) for query, group in self.progress_groups().items()}

    def progress_group(self) -> str:
        """The group that holds the newest checkpoint's progress."""
        return self.options.progress_group_of(self.checkpoints[-1].query_id)

    def groups(self) -> tuple[str, ...]:
        """The source's group and those that hold progress."""
        return (str(self.options.group_id), *self.progress_groups().values())

    @property
    def is_over(self) -> bool:
        """The input is read to its end, and no driver is left that could do something."""
        return self.finished is not None and not self.zombies

    def calm_down(self) -> None:
        """Faults end; a query that shares another's transactional id gets its own."""
        self.chaos = False
        for clock in self._driver_clocks:
            clock.drift()
            clock.wall_skew_ms = 0
        if self.options.transactional_id is not None:
            self.options = replace(self.options, transactional_id=f"{self.name}-own")

    def _new_checkpoint(self, *, starts_committed: bool) -> Checkpoint:
        number = len(self.checkpoints) + 1
        made = Checkpoint(
            f"{self.name}-checkpoint-{number}",
            f"{self.name}-query-{number}",
            starts_committed=starts_committed,
        )
        self.checkpoints.append(made)
        return made

    # ------------------------------------------------------------------ starts

    def start(self, checkpoint: Checkpoint | None = None) -> None:
        """Start the query on a checkpoint, the newest one unless another is named."""
        self._current = self._launch(checkpoint or self.checkpoints[-1], self.options)

    def _launch(self, checkpoint: Checkpoint, options: CommitOptions) -> Running:
        self._driver_count += 1
        name = f"{self.name}-driver-{self._driver_count}"
        process = self.new_process(name)
        application = self._application_for(checkpoint)
        process.clock = application.clock
        driver = spark.Driver(
            run_id=f"{self.name}-run-{self._driver_count}",
            checkpoint=checkpoint,
            source=self.source,
            options=options,
            history=self.history,
            rng=self.workload,
            new_session=partial(self.new_session, application.clock),
            application=application,
            worker_loss=self.scenario.worker_loss if self.chaos else 0.0,
            worker_kill=self.scenario.worker_kill if self.chaos else 0.0,
            tries_again=self.scenario.tries_again,
            on_worker_lost=lambda: self.trace.fault("worker lost"),
            on_worker_killed=lambda: self._on_worker_killed(process),
        )
        running = Running(process, driver)
        process.on_reached = lambda reached: self._on_reached(running, reached)
        process.serve_file = lambda ask: self._serve_file(running, ask)
        process.file_delay_us = lambda: self.faults.randint(
            FILE_DELAY_US, self.scenario.store_ms * 1000
        )
        process.run(driver.query(), lambda _, error: self._on_end(running, error))
        return running

    def _on_worker_killed(self, process: ClientProcess) -> None:
        self.trace.fault("committing worker killed")
        process.close_unanswered()

    def _application_for(self, checkpoint: Checkpoint) -> spark.Application:
        """A new one, or the one that the query's last run has left."""
        left, self._application = self._application, None
        write = checkpoint.query_id
        if left is not None and left.executors.staging.write == write:
            return left
        files = None
        if self.scenario.staging_files:
            files = self.staging_files.setdefault(write, StagingFiles())
        executors = Executors(
            scenario=self.scenario,
            staging=Staging(write, StagingServer(), files),
            rng=self.tasks,
            trace=self.trace,
            now_ms=lambda: self.scheduler.monotonic_ms,
            faults_are_on=lambda: self.chaos,
        )
        clock = MachineClock(self.scheduler)
        self._driver_clocks.append(clock)
        return spark.Application(executors, clock)

    def _restart(self, checkpoint: Checkpoint | None = None) -> None:
        """Start again in a moment, as the checkpoint then is."""
        self._current = None
        self.trace.count("driver restarts")
        if self.chaos and checkpoint is None:
            checkpoint = self._mishap()
        delay_us = self.faults.randint(OLD_START_US, 2 * RESTART_MS * 1000)
        self.scheduler.after(
            delay_us, lambda: self.start(checkpoint) if self._current is None else None
        )
        if self._old_deployment is not None:
            old, self._old_deployment = self._old_deployment, None
            delay_us += self.faults.randint(-OLD_START_US, OLD_START_US)
            self.scheduler.after(
                delay_us, lambda: self.zombies.append(self._launch(*old)) if self.chaos else None
            )

    def _mishap(self) -> Checkpoint | None:
        """What a restart may do to the checkpoint and the options, by the scenario's chances."""
        newest, chance = self.checkpoints[-1], self.faults.random()
        limits = (
            (self.scenario.checkpoint_lost, self._lose_checkpoint),
            (self.scenario.tail_lost, self._lose_tail),
            (self.scenario.old_checkpoint, self._old_checkpoint),
            (self.scenario.id_change, self._change_id),
        )
        for limit, happen in limits:
            if chance < limit:
                return happen(newest)
            chance -= limit
        return None

    def _lose_checkpoint(self, _: Checkpoint) -> Checkpoint:
        self.trace.count("checkpoint lost")
        return self._new_checkpoint(starts_committed=True)

    def _lose_tail(self, newest: Checkpoint) -> None:
        """With the machine that wrote it: a driver that lives does not lose its plan."""
        batches = len(newest.batches("offsets"))
        if batches > 1:
            self.trace.count("checkpoint tail lost")
            self._end_zombies(newest)
            newest.lose_tail(min(self.faults.randint(1, 2), batches - 1), self.faults)

    def _old_checkpoint(self, _: Checkpoint) -> Checkpoint:
        found = self.faults.choice(self.checkpoints)
        if found is not self.checkpoints[-1]:
            self.trace.count("old checkpoint started")
        return found

    def _change_id(self, newest: Checkpoint) -> None:
        """Perhaps while the old deployment starts a driver once more, with the old id."""
        self.trace.count("transactional id changed")
        self._id_count += 1
        if self.faults.random() < 0.7:
            self._old_deployment = (newest, self.options)
        name = f"{self.name}-id-{self._id_count}"
        self.options = replace(self.options, transactional_id=name)

    # ------------------------------------------------------------------ ends

    def _on_end(self, running: Running, error: TxnLogError | None) -> None:
        is_current = running is self._current
        if running in self.zombies:
            self.zombies.remove(running)
        checkpoint = running.driver.checkpoint
        if error is None:
            if is_current:
                self.finished = checkpoint
            return
        self.trace.count(f"query stopped: {type(error).__name__}")
        if isinstance(error, ProducerFenced):
            self.trace.count("fenced")
        if is_current:
            if self.tasks.random() < SAME_APPLICATION:
                self._application = running.driver.application
            self._restart(self._advised(checkpoint, error))

    def _advised(self, checkpoint: Checkpoint, error: TxnLogError) -> Checkpoint | None:
        """The checkpoint to go on with, as the error's text says; None for the newest.

        A query that stops for a contradiction which nothing explains is a violation (41).
        """
        if not isinstance(error, ProgressError) or STORE_FAILED.reason in str(error):
            return None
        explained = False
        if isinstance(error, CommittedOffsetsMoved | GroupHasOffsets):
            explained = len(self.checkpoints) > 1 or checkpoint.tail_losses > 0
        elif isinstance(error, BatchReplanned):
            explained = checkpoint.tail_losses > 0
        if not explained:
            violated(41, "the query stopped for a contradiction", error=str(error))
        newest = self.checkpoints[-1]
        return self._replaced() if checkpoint is newest else newest

    def _replaced(self) -> Checkpoint:
        self.trace.count("checkpoint replaced on advice")
        return self._new_checkpoint(starts_committed=True)

    # ------------------------------------------------------------------ faults

    def _on_reached(self, running: Running, reached: Reached) -> None:
        self._check_skip(running, reached)
        fault = self.planned.at_step(reached)
        if fault is not None:
            self._step_fault(running, fault)
        else:
            self._chance(running)
        self._chance_of_clock(running)

    def _chance_of_clock(self, running: Running, bias: int = 1) -> None:
        """A driver's machine: its clocks go at other rates from now on, or its wall clock jumps."""
        clock, chance = running.driver.application.clock, self.scenario.driver_clock * bias
        if not self.chaos or chance == 0.0 or self.clocks.random() >= chance:
            return
        if self.clocks.random() < JUMP_SHARE:
            self.trace.fault("driver's clock jumped")
            clock.wall_skew_ms = self.clocks.randint(-CLOCK_JUMP_MS_MAX, CLOCK_JUMP_MS_MAX)
        else:
            self.trace.fault("driver's clock drifted")
            clock.drift(monotonic=drawn_rate(self.clocks), wall=drawn_rate(self.clocks))

    def at_moment(self) -> None:
        """The transaction has just come to another state, which the driver may not know of; one
        that has done all does not go on."""
        if self._current is not None and self.finished is None:
            self._chance_of_clock(self._current, DRIVER_BIAS)
            self._chance(self._current, DRIVER_BIAS)

    def _serve_file(self, running: Running, ask: FileAsk) -> FileOutcome:
        if isinstance(ask, ReadStaged):
            found: FileOutcome = self._read_staged(running, ask.piece)
        elif isinstance(ask, RemoveOtherRuns):
            found = None
            running.driver.remove_other_runs()
        elif self._store_fails():
            self.trace.fault("store failed")
            found = running.driver.checkpoint.perform_in_vain(ask, self.faults)
        else:
            found = running.driver.checkpoint.perform(ask)
        self._chance(running)
        return found

    def _store_fails(self) -> bool:
        chance = self.scenario.store_failure if self.chaos else 0.0
        return chance > 0.0 and self.faults.random() < chance

    def _read_staged(self, running: Running, piece: StagedPiece) -> bytes | FileFailed:
        executors = running.driver.application.executors
        executors.advance()
        if not self.chaos or self.faults.random() >= self.scenario.staging_fault:
            return executors.staging.read(piece)

        def stall(duration_ms: int) -> None:
            running.process.pause(duration_ms * 1000)

        return read_with_a_fault(executors.staging, piece, self.faults, self.trace, stall)

    def _chance(self, running: Running, bias: int = 1) -> None:
        """Any driver may be killed; one that is not the current one is not paused again."""
        if not self.chaos or not running.process.alive or running.process.paused:
            return
        if self.faults.random() < self.scenario.driver_kill * bias:
            self._kill(running)
        elif running is self._current and self.faults.random() < self.scenario.driver_pause * bias:
            self._pause(running, self.faults.randint(*PAUSE_MS))

    def _check_skip(self, running: Running, reached: Reached) -> None:
        """A batch that was skipped must not have sent a Produce (38)."""
        if reached.step != "commit_log":
            return
        sent = running.process.sent_counts.get(PRODUCE, 0)
        skips = self.history.skipped[running.skips_before :]
        if reached.when == "before" and (running.driver.run_id, reached.batch_id) in skips:
            self.trace.count("batch skipped")
            if sent > running.produces_before:
                violated(38, "a skipped batch sent Produce", batch_id=reached.batch_id)
        running.produces_before, running.skips_before = sent, len(self.history.skipped)

    def _step_fault(self, running: Running, fault: Fault) -> None:
        if fault.action == "kill":
            self._kill(running)
        elif fault.action == "pause":
            self._pause(running, fault.pause_ms)
        elif fault.action == "isolate":
            self.isolate(self.progress_group(), fault.pause_ms)
        else:
            self.kill_broker(fault)

    def _kill(self, running: Running) -> None:
        self.trace.fault("driver killed")
        running.process.kill()
        if running in self.zombies:
            self.zombies.remove(running)
        if self.chaos and self.faults.random() < self.scenario.driver_power_loss:
            self.trace.fault("driver's machine lost power")
            for checkpoint in self.checkpoints:
                self._end_zombies(checkpoint)
                checkpoint.lose_power(self.faults)
        if running is self._current:
            self._restart()

    def _end_zombies(self, checkpoint: Checkpoint) -> None:
        for zombie in [z for z in self.zombies if z.driver.checkpoint is checkpoint]:
            zombie.process.kill()
            self.zombies.remove(zombie)

    def _pause(self, running: Running, pause_ms: int) -> None:
        self.trace.fault("driver paused")
        running.process.pause(pause_ms * 1000)
        if running not in self.zombies:
            self.zombies.append(running)
        if running is self._current:
            self._restart()
