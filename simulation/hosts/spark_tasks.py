"""A model of Spark's tasks: attempts, speculative copies, executors that are lost.

A task may be tried again after an attempt that failed before, while or after it staged; a copy may
run beside it, and Spark takes the commit message of one of the two, whichever it hears of first.
What the other one staged stays behind, and it may stage long after its batch is over. Another
attempt may have the rows in another order, as those of a non-deterministic task are (a key's rows
stay in theirs), and in other record batches and chunks.

Tasks take no time where nothing fails: the driver waits only for what a fault makes late.
"""

from __future__ import annotations

import enum
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulation.hosts.staging import Staging
from simulation.scenario import TaskChances
from simulation.trace import Trace
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.wire.records import Record, encode_batch
from txnlog_spark.errors import TxnLogError
from txnlog_spark.staging.chunks import ChunkList
from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.staging.staged_output import StagedOutput
from txnlog_spark.staging.store import StoreFull

EXECUTORS = 2
FAILURES_MAX = 4
"""spark.task.maxFailures: so many attempts of one task fail its job."""
TASK_MS = (0, 30)
SLOW_TASK_MS = (30, 4_000)
SLOW = 0.1
"""Share of slow attempts: if all were slow, two drivers would seldom commit at the same time."""
MESSAGE_MS = (0, 20)
"""From staged to known by the driver: of two attempts another one may be first."""
LOSS_MS = (0, 200)
"""Milliseconds from the job's start until an executor is lost.

The tasks may still run then, or their staged output may be read.
"""
LATE_MS = (1, 30_000)
"""Milliseconds that an attempt may still stage after Spark has asked it to end."""
STOPS_AT_ONCE = 0.5
BATCH_RECORDS = 7
"""Records of a batch: few, so that a partition's rows make several, and produces are pipelined."""
BLOCK_ROWS = 21
"""Rows that a task gathers before it encodes: chunks of a partition are of one block each."""
OTHER_BATCH_RECORDS = (3, 7, 11)
OTHER_BLOCK_ROWS = (5, 21, 50)

Row = tuple[int, int]
"""Source partition and position."""


class TasksFailed(TxnLogError):
    """A task has failed too often: Spark stops the query, and hands `messages` to `abort`."""

    condition = "SIM_TASKS_FAILED"

    def __init__(self, text: str, messages: Sequence[StagedOutput | None]) -> None:
        super().__init__(text)
        self.messages = messages


@dataclass(frozen=True, slots=True)
class Job:
    """Batch of a query run: the rows of each task, in the order of the tasks."""

    write: str
    query_id: str
    run_id: str
    batch_id: int
    tasks: Sequence[Sequence[Row]]
    topic: str
    partition_count: int
    record_of: Callable[[Row, int], tuple[int, Record]]
    """The output partition and the record of a row, as the attempt of this number makes it."""
    is_again: bool = False
    """The run has written the batch before: no attempt is a task's first."""


class _Fate(enum.Enum):
    """Fate of an attempt: how far it comes."""

    DONE = "done"
    BEFORE = "before it staged"
    WHILE = "while it staged"
    AFTER = "after it staged"


@dataclass(slots=True, eq=False)
class _Attempt:
    """Attempt of a task; the driver learns its end at `reported_ms`, by a heartbeat at least."""

    job: Job
    task: int
    number: int
    host: str
    staged_ms: int
    reported_ms: int
    fate: _Fate
    is_first: bool
    message: StagedOutput | None = None
    is_lost: bool = False


@dataclass(slots=True)
class Executors:
    """Executors of an application, and the place where their tasks stage."""

    chances: TaskChances
    inline_bytes: int
    staging: Staging
    rng: random.Random
    trace: Trace
    now_ms: Callable[[], int]
    faults_are_on: Callable[[], bool]
    _attempt_count: int = 0
    _executor_count: int = EXECUTORS
    _hosts: list[str] = field(default_factory=lambda: [f"executor-{n}" for n in range(EXECUTORS)])
    _staging: list[_Attempt] = field(default_factory=list)
    """Attempts that have not staged yet, also of jobs that are over."""
    _losses: list[int] = field(default_factory=list)
    """When an executor is lost."""

    def run(self, job: Job) -> Operation[list[StagedOutput]]:
        """Run the tasks; return one commit message of each. Raises TasksFailed."""
        messages: dict[int, StagedOutput] = {}
        failures: Counter[int] = Counter()
        running = [each for task in range(len(job.tasks)) for each in self._begin(job, task)]
        if self._happens(self.chances.executor_loss):
            self._losses.append(self.now_ms() + self.rng.randint(*LOSS_MS))
        while len(messages) < len(job.tasks):
            wait_ms = min(each.reported_ms for each in running) - self.now_ms()
            if wait_ms > 0:
                yield Sleep(wait_ms)
            self.advance()
            for attempt in _reported(running, self.now_ms()):
                running.remove(attempt)
                if attempt.task in messages:
                    continue
                if attempt.message is not None and attempt.fate is _Fate.DONE:
                    messages[attempt.task] = attempt.message
                    self._stop_others(running, attempt)
                    continue
                failures[attempt.task] += not attempt.is_lost
                if failures[attempt.task] == FAILURES_MAX:
                    given = [messages.get(task) for task in range(len(job.tasks))]
                    self._stop_others(running, None)
                    raise TasksFailed(f"task {attempt.task} has failed too often", given)
                if not any(each.task == attempt.task for each in running):
                    running.append(self._launch(job, attempt.task, is_first=False))
        return [messages[task] for task in range(len(job.tasks))]

    def advance(self) -> None:
        """Let what is due happen: attempts stage, executors are lost."""
        now_ms = self.now_ms()
        while True:
            due = [each for each in self._staging if each.staged_ms <= now_ms]
            first = min(due, key=lambda each: (each.staged_ms, each.number), default=None)
            lost_ms = min(self._losses, default=now_ms + 1)
            if lost_ms <= now_ms and (first is None or lost_ms <= first.staged_ms):
                self._losses.remove(lost_ms)
                self._lose_executor(lost_ms)
            elif first is not None:
                self._staging.remove(first)
                self._stage(first)
            else:
                return

    # ------------------------------------------------------------------ attempts

    def _happens(self, chance: float) -> bool:
        return chance > 0.0 and self.faults_are_on() and self.rng.random() < chance

    def _begin(self, job: Job, task: int) -> list[_Attempt]:
        """A task's first attempt, and perhaps a copy of it at the same time."""
        begun = [self._launch(job, task, is_first=not job.is_again)]
        if self._happens(self.chances.speculation):
            self.trace.fault("task speculated")
            begun.append(self._launch(job, task, is_first=False))
        return begun

    def _launch(self, job: Job, task: int, *, is_first: bool) -> _Attempt:
        fate = _Fate.DONE
        if self._happens(self.chances.failure):
            fate = self.rng.choice((_Fate.BEFORE, _Fate.WHILE, _Fate.AFTER))
        staged_ms = reported_ms = self.now_ms()
        host = self._hosts[task % len(self._hosts)]
        if self.chances.are_slow and self.faults_are_on():
            slow = self.rng.random() < SLOW
            staged_ms += self.rng.randint(*(SLOW_TASK_MS if slow else TASK_MS))
            reported_ms = staged_ms + self.rng.randint(*MESSAGE_MS)
            host = self.rng.choice(self._hosts)
        self._attempt_count += 1
        attempt = _Attempt(
            job, task, self._attempt_count, host, staged_ms, reported_ms, fate, is_first
        )
        self._staging.append(attempt)
        return attempt

    def _stage(self, attempt: _Attempt) -> None:
        if attempt.fate is not _Fate.DONE:
            self.trace.fault("task failed")
            self.trace.count(f"task failed {attempt.fate.value}")
        if attempt.fate in (_Fate.BEFORE, _Fate.WHILE):
            return  # the server drops what breaks off, and a file gets a name at its end
        job, number = attempt.job, attempt.number
        name = f"{job.run_id}-{attempt.task}-{number}"
        named = TaskAttempt(job.write, job.batch_id, job.run_id, name)
        data, chunks = self._encode(attempt)
        index, summary = chunks.index()
        message = StagedOutput(
            named, job.query_id, number, summary, {job.topic: job.partition_count},
            host=attempt.host,
        )  # fmt: skip
        self.trace.line(attempt.host, "staged", {"attempt": name, "batch_id": job.batch_id})
        attempt.message = self._put(message, data, index)

    def _put(self, message: StagedOutput, data: bytes, index: bytes) -> StagedOutput | None:
        """The message, with where the output is; None when the server takes none for its batch."""
        changed: dict[str, object] = {}
        if len(data) <= self.inline_bytes:
            changed = {"inline": data, "index": index}
        elif self.staging.files is not None:
            path = self.staging.files.put(message.attempt, message.host, data + index)
            changed = {"path": path}
        else:
            try:
                self.staging.server.put(message.attempt, data, index)
            except StoreFull:
                self.trace.count("late attempt refused")
                return None
        return StagedOutput(**{**vars(message), **changed})

    def _encode(self, attempt: _Attempt) -> tuple[bytes, ChunkList]:
        """The attempt's output: first attempts do as their task is, others may differ."""
        job, rows = attempt.job, list(attempt.job.tasks[attempt.task])
        batch_records, block_rows = BATCH_RECORDS, BLOCK_ROWS
        if not attempt.is_first:
            batch_records = self.rng.choice(OTHER_BATCH_RECORDS)
            block_rows = self.rng.choice(OTHER_BLOCK_ROWS)
        made = [job.record_of(row, attempt.number) for row in rows]
        if not attempt.is_first:
            made = _another_order(made, self.rng)
        data, chunks = bytearray(), ChunkList()
        for start in range(0, len(made), block_rows):
            for partition, records in _by_partition(made[start : start + block_rows]):
                for first in range(0, len(records), batch_records):
                    taken = records[first : first + batch_records]
                    batch = encode_batch(taken)
                    chunks.add(job.topic, partition, batch, len(taken))
                    data += batch
        return bytes(data), chunks

    # ------------------------------------------------------------------ ends

    def _stop_others(self, running: Sequence[_Attempt], taken: _Attempt | None) -> None:
        """Spark has a task's message, or has given its job up: others end, at once or later."""
        now_ms = self.now_ms()
        for other in running:
            if taken is not None and other.task != taken.task:
                continue
            if other not in self._staging:
                self.trace.count("output left behind")
            elif self.rng.random() < STOPS_AT_ONCE:
                self._staging.remove(other)
            else:
                other.staged_ms = now_ms + self.rng.randint(*LATE_MS)

    def _lose_executor(self, now_ms: int) -> None:
        """Its attempts end, and files that it alone has are gone; another one takes its place."""
        if not self.faults_are_on():
            return
        self.trace.fault("executor lost")
        host = self.rng.choice(self._hosts)
        self.trace.line(host, "lost")
        self._hosts[self._hosts.index(host)] = f"executor-{self._executor_count}"
        self._executor_count += 1
        for attempt in [each for each in self._staging if each.host == host]:
            self._staging.remove(attempt)
            attempt.is_lost, attempt.reported_ms = True, now_ms
        if self.staging.files is not None:
            self.staging.files.lose(host)


def _reported(running: Sequence[_Attempt], now_ms: int) -> list[_Attempt]:
    reported = [each for each in running if each.reported_ms <= now_ms]
    return sorted(reported, key=lambda each: (each.reported_ms, each.number))


def _another_order(made: list[tuple[int, Record]], rng: random.Random) -> list[tuple[int, Record]]:
    """The same rows, those of one key among them in their order."""
    by_key: dict[bytes | None, deque[tuple[int, Record]]] = defaultdict(deque)
    for each in made:
        by_key[each[1].key].append(each)
    keys = [each[1].key for each in made]
    rng.shuffle(keys)
    return [by_key[key].popleft() for key in keys]


def _by_partition(made: Sequence[tuple[int, Record]]) -> list[tuple[int, list[Record]]]:
    found: dict[int, list[Record]] = {}
    for partition, record in made:
        found.setdefault(partition, []).append(record)
    return sorted(found.items())
