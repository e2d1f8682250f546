"""A model of Spark's micro-batch engine around the connector's own planning and commit of batches.

A driver does what Spark does: it has the source plan a batch (`plan_batch`) and writes `offsets/N`,
lets the batch's tasks stage (`spark_tasks`), has the sink commit (`commit_query_batch`) in one of
the session's Python workers, and writes `commits/N`. In some scenarios the batch is written in
foreachBatch, by a function that catches errors, and writes it again. The checkpoint outlives
drivers; each driver is a query run with an id of its own. A row carries the run and the task
attempt that wrote it.
"""

from __future__ import annotations

import contextlib
import json
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from simulation.hosts.checkpoint import Checkpoint
from simulation.hosts.clock import MachineClock
from simulation.hosts.query_rows import DriverHistory, Source, rows_of, written_as
from simulation.hosts.spark_tasks import Executors, Job, Row, TasksFailed
from simulation.hosts.staging import Staging
from simulation.hosts.stateful import StatefulQuery, StateMissing
from simulation.scenario import WorkerChances
from txnlog_kafka.operations.effects import Failpoint, Operation, Sleep
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.records import Record
from txnlog_spark.commit.plan import CommitOptions, CommitOutcome
from txnlog_spark.commit.query import QueryBatch, commit_query_batch
from txnlog_spark.errors import TxnLogError
from txnlog_spark.offsets import from_json_value
from txnlog_spark.source.available import JsonOffset, SourceState
from txnlog_spark.source.log_queries import LogQueries
from txnlog_spark.source.plan_batch import batch_tasks, initial_offset, latest_offset
from txnlog_spark.source.planning import OffsetRange
from txnlog_spark.source.selection import PlanSettings, PositionRequest, Selection
from txnlog_spark.staging.frames import query_write
from txnlog_spark.staging.staged_output import (
    StagedOutput,
    check_one_batch,
    complete_messages,
    merge_counts,
    plan_chunks,
)

TRIGGER_MS = 100
WORKERS = 2
WITHOUT_DATA = 0.5
"""Share of a stateful query's triggers that find no new input, where it can do without."""
TRIES_MAX = 4
"""Times that a function that tries again writes a batch in a run, at most."""


class FunctionFailed(TxnLogError):
    """The function given to foreachBatch has failed between two of its sinks."""

    condition = "SIM_FUNCTION_FAILED"


class WorkerKilled(TxnLogError):
    """The Python worker was killed that committed: Spark says that the write has failed."""

    condition = "SIM_WORKER_KILLED"


@dataclass(slots=True)
class Application:
    """Processes of a SparkSession, which several runs of a query may use one after another."""

    executors: Executors
    clock: MachineClock
    workers: list[Session] = field(default_factory=list)
    """Clients of the session's worker processes, one for each."""


@dataclass(slots=True)
class Driver:
    """A query run. `new_session` gives a client."""

    run_id: str
    checkpoint: Checkpoint
    source: Source
    sinks: Sequence[CommitOptions]
    """Sinks of the query: one, or those that a function for foreachBatch writes to in turn."""
    history: DriverHistory
    rng: random.Random
    new_session: Callable[[], Session]
    application: Application
    chances: WorkerChances
    """While faults happen those of the scenario."""
    notes_group: bool = True
    """Its reader has the group as well; a batch that it has planned cannot get another group."""
    on_worker_lost: Callable[[], None] = lambda: None
    on_worker_killed: Callable[[], None] = lambda: None
    """Its connections close."""
    batch_id: int = -1
    """The batch that it is about to commit."""
    _state: SourceState = field(default_factory=SourceState)
    """State that its reader remembers."""
    _tasks: Sequence[Sequence[OffsetRange]] = ()
    """Tasks of the batch that was planned last."""
    _plannings: int = 0
    """Count of the plannings of a batch's tasks."""
    _sink_number: int = 0
    _stateful: StatefulQuery | None = None

    @property
    def options(self) -> CommitOptions:
        """Options of the sink that it writes to now."""
        return self.sinks[self._sink_number]

    @property
    def staging(self) -> Staging:
        """Staging of this sink's tasks."""
        staging = self.application.executors.staging
        at = self.checkpoint
        write = query_write(at.location, at.query_id, self.options.sink_name)
        return replace(staging, write=write)

    def query(self) -> Operation[None]:
        """Run micro-batches until the source is at its end. Raises what stops a query."""
        session = self.new_session()
        yield from refresh_metadata(session, ())
        while len(self.application.workers) < WORKERS:
            self.application.workers.append(self.new_session())
        brokers = LogQueries(session, self._read_settings)
        self._state = SourceState(source_id=f"source-of-{self.run_id}")
        batch_id, start, planned = self._begin()
        settings = self.source.settings
        if settings.state:
            partitions = settings.source_partitions
            self._stateful = StatefulQuery(settings.state, self.checkpoint, partitions)
            self._stateful.begin(batch_id)
        while True:
            end = yield from self._plan(brokers, batch_id, start, planned)
            if end is None:
                return
            if self._tasks or not settings.leaves_out:
                yield from self._run_function(batch_id)
            yield Failpoint("commit_log", "before", batch_id)
            done = b"v1\n{}" if self._stateful is None else self._stateful.committed()
            self.checkpoint.create("commits", batch_id, done)
            if settings.retained_batches:
                self.checkpoint.purge(batch_id + 1 - settings.retained_batches)
            yield Failpoint("commit_log", "after", batch_id)
            yield Sleep(TRIGGER_MS)
            batch_id, start, planned = batch_id + 1, end, None

    def _run_function(self, batch_id: int) -> Operation[None]:
        """Run the batch for all sinks, in their order. Raises FunctionFailed."""
        for number in range(len(self.sinks)):
            if number and self.rng.random() < self.chances.function_failure:
                raise FunctionFailed(f"before sink {number} of batch {batch_id}")
            self._sink_number = number
            yield from self._run_batch(batch_id)

    def _run_batch(self, batch_id: int) -> Operation[None]:
        """The batch, as often as the function writes it."""
        tries_again = self.source.settings.tries_again
        for number in range(TRIES_MAX):
            may_try_again = number + 1 < TRIES_MAX and tries_again > 0.0
            try:
                yield from self._write_batch(batch_id, is_again=number > 0)
            except TxnLogError:
                if not may_try_again or self.rng.random() >= tries_again:
                    raise
            else:
                if not may_try_again or self.rng.random() >= tries_again / 2:
                    return

    def _write_batch(self, batch_id: int, *, is_again: bool) -> Operation[None]:
        """Its tasks and its commit; where either fails, Spark has the writer abort the batch."""
        executors = self.application.executors
        self.batch_id = batch_id
        messages: Sequence[StagedOutput | None] = ()
        try:
            messages = yield from self._stage(batch_id, is_again=is_again)
            outcome = yield from self._commit(batch_id, messages)
        except TxnLogError as error:
            executors.advance()
            self.staging.abandon(error.messages if isinstance(error, TasksFailed) else messages)
            raise
        executors.advance()
        if messages:
            self.staging.remove_batches(batch_id, self._plan_id)
        self._note_outcome(batch_id, outcome, is_again=is_again)

    def remove_other_runs(self) -> None:
        """This run has fenced all others: what they have staged is of no use."""
        self.application.executors.advance()
        self.staging.remove_other_runs(self.batch_id, self._plan_id)

    def _commit(
        self, batch_id: int, messages: Sequence[StagedOutput | None]
    ) -> Operation[CommitOutcome]:
        """Commit the tasks' messages as the sink does (`txnlog_spark.sink.committer`)."""
        index = self._pick_worker()
        session = self.application.workers[index]
        staged = complete_messages(messages)
        check_one_batch(staged, batch_id)
        merge_counts(message.partition_counts for message in staged)
        first = staged[0] if staged else None
        batch = QueryBatch(
            checkpoint=self.checkpoint.location,
            location=self.checkpoint.location,
            batch_id=batch_id,
            options=self.options,
            staged=plan_chunks(staged, self.staging.index_of),
            run_id=self.run_id,
            query_id=self.checkpoint.query_id if first is None else first.query_id,
            is_function=self.source.settings.has_function,
        )
        commit = commit_query_batch(session, batch)
        if self.chances.kill == 0.0:
            return (yield from commit)
        return (yield from self._until_killed(commit, index))

    def _until_killed(
        self, commit: Operation[CommitOutcome], index: int
    ) -> Operation[CommitOutcome]:
        """Run the commit until its worker is killed. Raises WorkerKilled then."""
        outcome: Any = None
        while True:
            try:
                ask = commit.send(outcome)
            except StopIteration as stop:
                done: CommitOutcome = stop.value
                return done
            if isinstance(ask, Failpoint) and self.rng.random() < self.chances.kill:
                break
            outcome = yield ask
        with contextlib.suppress(RuntimeError, TxnLogError):
            commit.close()  # as `ClientProcess.discard`: nothing of it runs any more
        self.on_worker_killed()
        self.application.workers[index] = self.new_session()
        raise WorkerKilled(f"the worker that committed was killed at {ask.step} {ask.when}")

    @property
    def _plan_id(self) -> str:
        """Id of the planning whose tasks were run last."""
        return f"{self.run_id}.{self._plannings}"

    def _pick_worker(self) -> int:
        """Any of the pool, and one that vanished in between is a new one."""
        index = self.rng.randrange(WORKERS)
        if self.rng.random() < self.chances.loss:
            self.on_worker_lost()
            self.application.workers[index] = self.new_session()
        return index

    # ------------------------------------------------------------------ the plan of a batch

    @property
    def _read_settings(self) -> PlanSettings:
        word = "committedOrEarliest" if self.checkpoint.starts_committed else "earliest"
        return PlanSettings(
            selection=Selection(topics=(self.source.topic,)),
            starting=PositionRequest(word=word),
            group_id=self.sinks[-1].group_id if self.notes_group else None,
            fail_on_data_loss=True,
            min_partitions=self.source.settings.tasks,
            max_records_per_partition=None,
            isolation_level="read_committed",
            metadata_max_age_ms=300_000,
            partition_cache_ms=-1,
            min_offsets_per_trigger=None,
            trigger_delay_ms_max=0,
            offset_attempts=1,
            offset_retry_ms=0,
        )

    def _begin(self) -> tuple[int, JsonOffset | None, JsonOffset | None]:
        """Return the first batch: its id, its start, and its end if an earlier run has planned it.

        A run looks into the checkpoint once, as Spark does. If another run goes on with the same
        checkpoint later, this run does not follow, but finds the next entry written. Raises
        StateMissing where the batch before has no entry, as Spark does then ("batch N doesn't
        exist").
        """
        last = max(self.checkpoint.batches("offsets"), default=-1)
        is_done = last < 0 or self.checkpoint.entry("commits", last) is not None
        batch_id = last + 1 if is_done else last
        start = self._logged(batch_id - 1)
        if start is None and batch_id > 0:
            raise StateMissing(f"batch {batch_id - 1} of {self.checkpoint.location} doesn't exist")
        return batch_id, start, self._logged(batch_id)

    def _plan(
        self,
        brokers: LogQueries,
        batch_id: int,
        start: JsonOffset | None,
        end: JsonOffset | None,
    ) -> Operation[JsonOffset | None]:
        """The batch's end, which is in the offset log; None at the end of the input.

        `end` is that of a batch which an earlier run has planned.
        """
        if start is None:
            start, self._state = yield from initial_offset(brokers, self._state)
        if end is None:
            rows_max = self._rows_max()
            end, self._state = yield from latest_offset(brokers, self._state, start, rows_max)
            is_at_end = end == start and from_json_value(end) == self.source.ends
            stateful = self._stateful
            if batch_id and is_at_end and not (stateful and stateful.may_drain(batch_id)):
                return None
            yield Failpoint("offset_log", "before", batch_id)
            self.checkpoint.create("offsets", batch_id, self._log_entry(end))
            yield Failpoint("offset_log", "after", batch_id)
        self._tasks = yield from batch_tasks(brokers, self._state, start, end)
        return end

    def _rows_max(self) -> int:
        """A stateful query plans a batch without data only to emit what is due since the last."""
        stateful = self._stateful
        if stateful is None:
            return self.source.rows_max(self.rng)
        if stateful.wants_another_batch and self.rng.random() < WITHOUT_DATA:
            return 0
        return max(1, self.source.rows_max(self.rng))

    def _logged(self, batch_id: int) -> JsonOffset | None:
        """The end of a planned batch, as the source gave it."""
        text = self.checkpoint.entry("offsets", batch_id)
        return None if text is None else json.loads(text.splitlines()[2])

    def _log_entry(self, end: JsonOffset) -> bytes:
        planned = {"batchTimestampMs": self.application.clock.wall_ms, "run": self.run_id}
        if self._stateful is not None:
            planned["batchWatermarkMs"] = self._stateful.watermark
        return f"v1\n{json.dumps(planned)}\n{json.dumps(end)}".encode()

    # ------------------------------------------------------------------ its rows

    def _stage(self, batch_id: int, *, is_again: bool) -> Operation[list[StagedOutput]]:
        self._plannings += 1
        job = Job(
            write=self.staging.write,
            query_id=self.checkpoint.query_id,
            run_id=self._plan_id,
            batch_id=batch_id,
            tasks=self._rows_of_tasks(batch_id),
            topic=str(self.options.topic),
            partition_count=self.source.settings.output_partitions,
            record_of=partial(self._record, batch_id),
            is_again=is_again,
        )
        messages = yield from self.application.executors.run(job)
        self.history.taken.update((self.run_id, message.task_attempt_id) for message in messages)
        return messages

    def _rows_of_tasks(self, batch_id: int) -> list[list[Row]]:
        """Return the rows that each task writes: the rows that it reads, or in a stateful query
        the rows that are due for its keys.

        Raises StateMissing.
        """
        read = [
            [
                (each.topic_partition.partition, position)
                for each in task
                for position in range(each.start_offset, each.end_offset)
            ]
            for task in self._tasks
        ]
        if self._stateful is None:
            return read
        tasks: list[list[Row]] = [[] for _ in range(self.source.settings.tasks)]
        for row in self._stateful.compute(batch_id, (row for task in read for row in task)):
            tasks[zlib.crc32(self.source.key(*row)) % len(tasks)].append(row)
        return tasks

    def _record(self, batch_id: int, row: Row, attempt: int) -> tuple[int, Record]:
        """The output partition and the record of a row."""
        partition, position = row
        key = self.source.key(partition, position)
        value = b"%d:%d:%s:%d" % (partition, position, self.run_id.encode(), attempt)
        stamp_ms = self.source.first_stamp_ms + batch_id + self.application.clock.wall_skew_ms
        record = Record(key, value, max(0, stamp_ms))
        return self.source.output_partition(key), record

    def _note_outcome(self, batch_id: int, outcome: CommitOutcome, *, is_again: bool) -> None:
        query, done = written_as(self.checkpoint.query_id, self.options), self.history.done
        done[query] = max(batch_id + 1, done.get(query, 0))
        # Of a batch that is far behind the rows may be in a topic of before.
        if outcome.skipped and outcome.progress.next_batch_id == batch_id + 1:
            stateful = self._stateful
            rows = rows_of(self.checkpoint, batch_id) if stateful is None else stateful.emitted
            self.history.skipped_rows[str(self.options.topic)].update(rows)
        if not outcome.skipped:
            # After a backup was restored the query goes forward with numbers that it had before.
            plan = f"{batch_id} {self.checkpoint.entry('offsets', batch_id)}"
            self.history.committed.append((query, self.run_id, plan))
        elif outcome.attempts == 1 and not is_again:
            self.history.skipped.append((self.run_id, batch_id))
