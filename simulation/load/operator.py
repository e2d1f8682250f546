"""The person who runs a query: starts it again when it stops, and does what its errors advise.

A query may be started with a lost or shortened checkpoint, with an old checkpoint by mistake, with
one that was moved, with another transactional id or topic, while drivers that were thought dead go
on. A copy of a live checkpoint becomes a query of its own, and is once taken for the original.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from simulation.checkers.output_witness import OutputWitness, Record
from simulation.hosts import spark_driver as spark
from simulation.hosts.checkpoint import STORE_FAILED, Checkpoint, Files
from simulation.hosts.client import ClientProcess
from simulation.hosts.clock import CLOCK_JUMP_MS_MAX, MachineClock, drawn_rate
from simulation.hosts.scheduler import Scheduler
from simulation.hosts.scripted_faults import ScriptedFaults
from simulation.hosts.spark_tasks import Executors
from simulation.hosts.staging import Staging, StagingFiles, StagingServer, read_with_a_fault
from simulation.hosts.stateful import StateMissing
from simulation.load.mishaps import Mishaps
from simulation.load.running import (
    Running,
    copy_at,
    is_explained,
    is_left_behind,
    is_other_topic,
    is_purged,
    is_sink_behind,
)
from simulation.scenario import Chances, Fault, WorkerChances
from simulation.trace import Trace
from simulation.violation import violated
from txnlog_kafka.operations.effects import (
    FileAsk,
    FileFailed,
    FileOutcome,
    Milestone,
    ReadStaged,
    RemoveOtherRuns,
)
from txnlog_kafka.operations.producer import StagedPiece
from txnlog_kafka.operations.session import Session
from txnlog_spark.commit.plan import CommitOptions
from txnlog_spark.errors import ProducerFenced, ProgressError, TxnLogError

RESTART_MS = 300
DRIVER_BIAS = 4
"""Factor of the chance of a driver's fault while the transaction comes to another state."""
OLD_START_US = 40_000
"""An old deployment starts at most so long before or after the new one."""
PAUSE_MS_MIN = 10
FILE_DELAY_US_MIN = 20
JUMP_SHARE = 0.5
"""Share of the faults of a driver's clocks that are jumps; the rest is drift."""
SAME_APPLICATION = 0.5
"""Share of restarts after an error that keep the application: its session has other queries."""


@dataclass(slots=True)
class Operator:
    """Life of a query: its checkpoints, its drivers, and their outcomes."""

    name: str
    source: spark.Source
    options: CommitOptions
    chances: Chances
    scheduler: Scheduler
    trace: Trace
    planned: ScriptedFaults
    faults: random.Random
    workload: random.Random
    tasks: random.Random
    clocks: random.Random
    new_process: Callable[[str], ClientProcess]
    new_session: Callable[[MachineClock], Session]
    kill_broker: Callable[[Fault], None]
    isolate: Callable[[str, int], None]
    """Cut the coordinator of a group from all other brokers, for so many milliseconds."""
    files: Files
    on_copied: Callable[[Checkpoint], None] = lambda _: None
    """A copy of the checkpoint was made, to be a query of its own."""
    may_be_copied: bool = False
    """The checkpoint may."""
    original: Operator | None = None
    """Whose checkpoint this query's was copied from."""
    begins: spark.Offsets = field(default_factory=dict)
    """Start of a copy's query; other queries start at the first row."""
    history: spark.DriverHistory = field(default_factory=spark.DriverHistory)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    chaos: bool = True
    finished: Checkpoint | None = None
    """The checkpoint whose query came to the input's end."""
    zombies: list[Running] = field(default_factory=list)
    """Paused drivers that have not ended: a run waits to see what they do."""
    staging_files: dict[str, StagingFiles] = field(default_factory=dict)
    """By query id: all drivers of a query share them."""
    records: dict[str, Record] = field(default_factory=dict)
    """The run that has written what was begun, by path."""
    _current: Running | None = None
    _application: spark.Application | None = None
    """The one in which the query has stopped, and may be started again."""
    _driver_clocks: list[MachineClock] = field(default_factory=list)
    _driver_count: int = 0
    was_copied: bool = False
    _noted_by_original: int = -1  # a copy does not do it again
    _mishaps: Mishaps = field(init=False)

    def __post_init__(self) -> None:
        self._mishaps = Mishaps(self)
        if not self.checkpoints:
            self.new_checkpoint(starts_committed=False)
        elif self.original is not None:
            self._noted_by_original = max(self.checkpoints[0].batches("commits"), default=-1)
            self.begins = spark.ends_of(self.checkpoints[0], self._noted_by_original)

    @property
    def sinks(self) -> tuple[CommitOptions, ...]:
        """Sinks of the query. Of a function's two, only the last commits the group's offsets."""
        if self.source.settings.sinks == 1:
            return (self.options,)
        first = replace(self.options, sink_name="first", group_id=None, topic=self.second_topic)
        return first, replace(self.options, sink_name="last")

    @property
    def second_topic(self) -> str:
        """The topic of a second sink, or the one that the query changes to."""
        return f"{self.source.output_topic}-2"

    @property
    def lineages(self) -> list[list[str]]:
        """Topics that have each row once, together."""
        topics = [self.source.output_topic]
        if self.chances.operator.topic_change:
            return [[*topics, self.second_topic]]
        return [topics] if len(self.sinks) == 1 else [topics, [self.second_topic]]

    def progress_groups(self) -> dict[str, str]:
        """The group that holds progress, by query and sink."""
        return {
            spark.written_as(each.query_id, sink): self.progress_group_at(each, sink)
            for each in self.checkpoints
            for sink in self.sinks
        }

    @property
    def sharing(self) -> str | None:
        """Another query that may write to the same topic: a copy, and what it was copied from."""
        if self.original is not None:
            return self.original.name
        return f"copy-{self.name}" if self.was_copied else None

    def last_written(self, checkpoint: Checkpoint) -> int:
        """The last batch that it has to write itself, and its function leaves in; -1 for none."""
        own = (n for n in checkpoint.planned if n > self._noted_by_original)
        leaves_out = self.source.settings.leaves_out
        return max((n for n in own if not leaves_out or spark.rows_of(checkpoint, n)), default=-1)

    def progress_group_at(self, checkpoint: Checkpoint, sink: CommitOptions) -> str:
        """The group that holds the progress of what one sink of a query has written."""
        copy = "" if self.original is None else copy_at(checkpoint.location)
        return sink.progress_group_of(checkpoint.query_id, copy)

    def done_batches(self) -> dict[str, int]:
        """By group that holds progress: the batch after the last one that is reported as done."""
        done = self.history.done
        return {
            group: 0 if self.is_rolled_back(group) else done.get(query, 0)
            for query, group in self.progress_groups().items()
        }

    def is_rolled_back(self, group_id: str) -> bool:
        """True if the group has the progress of a checkpoint whose batch ids have begun again."""
        return any(
            each.is_rolled_back and self.progress_group_at(each, sink) == group_id
            for each in self.checkpoints
            for sink in self.sinks
        )

    def progress_group(self) -> str:
        """The group that holds the newest checkpoint's progress."""
        return self.progress_group_at(self.checkpoints[-1], self.sinks[-1])

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

    def new_checkpoint(self, *, starts_committed: bool) -> Checkpoint:
        """Begin another checkpoint: the newest from now on."""
        number = len(self.checkpoints) + 1
        made = Checkpoint(
            f"{self.name}-checkpoint-{number}",
            f"{self.name}-query-{number}",
            self.files,
            starts_committed=starts_committed,
        )
        self.checkpoints.append(made)
        return made

    # ------------------------------------------------------------------ starts

    def start(self, checkpoint: Checkpoint | None = None) -> None:
        """Start the query on a checkpoint, the newest one unless another is named."""
        self._current = self._launch(checkpoint or self.checkpoints[-1], self.sinks)

    def _launch(
        self, checkpoint: Checkpoint, sinks: Sequence[CommitOptions], *, is_refused: bool = False
    ) -> Running:
        self._driver_count += 1
        name = f"{self.name}-driver-{self._driver_count}"
        process = self.new_process(name)
        application = self._application_for(checkpoint)
        process.clock = application.clock
        driver = spark.Driver(
            run_id=f"{self.name}-run-{self._driver_count}",
            checkpoint=checkpoint,
            source=self.source,
            sinks=sinks,
            history=self.history,
            rng=self.workload,
            new_session=partial(self.new_session, application.clock),
            application=application,
            chances=self.chances.worker if self.chaos else WorkerChances(),
            notes_group=self._notes_group(checkpoint),
            on_worker_lost=lambda: self.trace.fault("worker lost"),
            on_worker_killed=lambda: self._on_worker_killed(process),
        )
        witness = OutputWitness(driver, self.records, self.original, is_refused=is_refused)
        running = Running(process, driver, witness)
        process.on_reached = lambda reached: self._on_reached(running, reached)
        witness.watch(process)
        process.serve_file = lambda ask: self._serve_file(running, ask)
        longest_us = self.chances.driver.store_ms * 1000
        process.file_delay_us = lambda: self.faults.randint(FILE_DELAY_US_MIN, longest_us)
        process.run(driver.query(), lambda _, error: self._on_end(running, error))
        return running

    def _notes_group(self, checkpoint: Checkpoint) -> bool:
        if self.source.settings.reads_without_group and not checkpoint.starts_committed:
            return False
        return not self.may_be_copied and self.original is None

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
        if self.source.settings.staging_files:
            files = self.staging_files.setdefault(write, StagingFiles())
        executors = Executors(
            chances=self.chances.tasks,
            inline_bytes=self.source.settings.inline_bytes,
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
            checkpoint = self._mishaps.happen()
        delay_us = self.faults.randint(OLD_START_US, 2 * RESTART_MS * 1000)
        self.scheduler.after(
            delay_us, lambda: self.start(checkpoint) if self._current is None else None
        )
        if self._mishaps.old_deployment is not None:
            old, self._mishaps.old_deployment = self._mishaps.old_deployment, None
            delay_us += self.faults.randint(-OLD_START_US, OLD_START_US)
            self.scheduler.after(
                delay_us, lambda: self.zombies.append(self._launch(*old)) if self.chaos else None
            )

    def _may_copy(self, running: Running) -> bool:
        may = self.chances.operator.copied > 0.0 and not self.was_copied
        return may and running is self._current and running.driver.checkpoint.is_begun

    def _copy(self, checkpoint: Checkpoint) -> None:
        """While it is written to: for a query of its own, and once as if it were the original."""
        self.was_copied = True
        self.trace.count("checkpoint copied")
        self.on_copied(checkpoint.copied_to(f"{checkpoint.location}-copy"))
        same = checkpoint.copied_to(f"{checkpoint.location}-mistake")
        self.zombies.append(self._launch(same, self.sinks, is_refused=True))

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
        running.check_end(error)
        self.trace.count(f"query stopped: {type(error).__name__}")
        if isinstance(error, ProducerFenced):
            self.trace.count("fenced")
        if is_current:
            if self.tasks.random() < SAME_APPLICATION:
                self._application = running.driver.application
            self._restart(self._advised(running.driver, error))

    def _advised(self, driver: spark.Driver, error: TxnLogError) -> Checkpoint | None:
        """The checkpoint to go on with, as the error's text says; None for the newest.

        A query that stops for a contradiction which nothing explains is a violation (41).
        """
        checkpoint = driver.checkpoint
        if is_left_behind(error, driver):
            return None
        if isinstance(error, StateMissing):
            return self._replace(checkpoint)
        if not isinstance(error, ProgressError) or STORE_FAILED.reason in str(error):
            return None
        if is_other_topic(error, str(self.options.topic)):
            self._mishaps.change_topic(checkpoint)
            return None
        if is_sink_behind(error, len(self.sinks)) or is_purged(error, driver):
            return None
        if not is_explained(error, driver, is_only=len(self.checkpoints) == 1):
            violated(41, "the query stopped for a contradiction", error=str(error))
        return self._replace(checkpoint)

    def _replace(self, checkpoint: Checkpoint) -> Checkpoint:
        """Restore what the query was refused without, or begin where the output ends."""
        if checkpoint is not self.checkpoints[-1]:
            return self.checkpoints[-1]
        if checkpoint.is_rolled_back:
            self.end_zombies(checkpoint)
            if checkpoint.restore_kept():
                self.trace.count("lost files restored on advice")
                return checkpoint
        self.trace.count("checkpoint replaced on advice")
        return self.new_checkpoint(starts_committed=True)

    # ------------------------------------------------------------------ faults

    def _on_reached(self, running: Running, reached: Milestone) -> None:
        running.check_skip(reached, self.trace)
        fault = self.planned.at_step(reached)
        if fault is not None:
            self._step_fault(running, fault)
        else:
            self._chance(running)
        self._chance_of_clock(running)

    def _chance_of_clock(self, running: Running, bias: int = 1) -> None:
        """A driver's machine: its clocks go at other rates from now on, or its wall clock jumps."""
        clock, chance = running.driver.application.clock, self.chances.driver.clock * bias
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
        else:
            found = running.witness.served(ask, lambda: self._perform(running, ask))
        self._chance(running)
        return found

    def _perform(self, running: Running, ask: FileAsk) -> FileOutcome:
        chance = self.chances.driver.store_failure
        if self.chaos and chance > 0.0 and self.faults.random() < chance:
            self.trace.fault("store failed")
            return running.driver.checkpoint.perform_in_vain(ask, self.faults)
        return running.driver.checkpoint.perform(ask)

    def _read_staged(self, running: Running, piece: StagedPiece) -> bytes | FileFailed:
        executors = running.driver.application.executors
        executors.advance()
        if not self.chaos or self.faults.random() >= self.chances.tasks.staged_read:
            return executors.staging.read(piece)

        def stall(duration_ms: int) -> None:
            running.process.pause(duration_ms * 1000)

        return read_with_a_fault(executors.staging, piece, self.faults, self.trace, stall)

    def _chance(self, running: Running, bias: int = 1) -> None:
        """Any driver may be killed; one that is not the current one is not paused again."""
        if not self.chaos or not running.process.alive or running.process.paused:
            return
        chances = self.chances.driver
        if self.faults.random() < chances.kill * bias:
            self._kill(running)
        elif running is self._current and self.faults.random() < chances.pause * bias:
            self._pause(running, self.faults.randint(PAUSE_MS_MIN, chances.pause_ms))
        elif self._may_copy(running) and self.faults.random() < self.chances.operator.copied:
            self._copy(running.driver.checkpoint)

    def _step_fault(self, running: Running, fault: Fault) -> None:
        if fault.action == "kill":
            self._kill(running)
        elif fault.action == "pause":
            self._pause(running, fault.pause_ms)
        elif fault.action == "isolate":
            self.isolate(self.progress_group(), fault.pause_ms)
        elif fault.action == "copy":
            self._copy(running.driver.checkpoint)
        else:
            self.kill_broker(fault)

    def _kill(self, running: Running) -> None:
        self.trace.fault("driver killed")
        running.process.kill()
        if running in self.zombies:
            self.zombies.remove(running)
        if self.chaos and self.faults.random() < self.chances.driver.power_loss:
            self.trace.fault("driver's machine lost power")
            takes_logs = self._takes_logs(running)
            for checkpoint in self.checkpoints:
                self.end_zombies(checkpoint)
                checkpoint.lose_power(self.faults, takes_logs=takes_logs)
        if running is self._current:
            self._restart()

    def _takes_logs(self, killed: Running) -> bool:
        """True if a loss of power takes files of Spark's: no driver lives that knows them."""
        share = self.chances.driver.unflushed_logs
        nobody_lives = killed is self._current and self.finished is None
        return share > 0.0 and nobody_lives and self.faults.random() < share

    def end_zombies(self, checkpoint: Checkpoint) -> None:
        """End the drivers that were left on a checkpoint whose machine is gone."""
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
