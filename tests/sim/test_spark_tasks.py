"""Tasks as Spark runs them: attempts, copies, lost executors."""

from collections import Counter, defaultdict
from random import Random
from types import SimpleNamespace

import pytest

from simulation.checkers.invariants import FinalState, check_taken
from simulation.coverage import OF_TASKS
from simulation.hosts.client import ClientProcess
from simulation.hosts.clock import EXACT
from simulation.hosts.network import Network
from simulation.hosts.scheduler import START_WALL_MS, Scheduler
from simulation.hosts.spark_tasks import FAILURES_MAX, LATE_MS, Executors, Job, TasksFailed
from simulation.hosts.staging import Staging, StagingFiles, StagingServer
from simulation.scenario import TaskChances
from simulation.scenario_loading import load_scenario
from simulation.trace import Trace
from simulation.violation import Violation
from simulation.world import World
from txnlog_kafka.operations.effects import Sleep
from txnlog_kafka.wire.records import Record, decode_records, iter_batches
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.errors import StagedBatchesInvalid
from txnlog_spark.staging.staged_output import plan_chunks

ROWS = [[(0, n) for n in range(12)], [(1, n) for n in range(9)]]


class Tasks:
    """Executors, and a clock that goes on while the driver sleeps."""

    def __init__(self, seed: int, files: StagingFiles | None = None, **rates: float) -> None:
        self.now_ms = 0
        self.trace = Trace(lambda: self.now_ms * 1000, None)
        self.staging = Staging("q", StagingServer(), files)
        self.executors = Executors(
            chances=TaskChances(**rates),
            inline_bytes=0,
            staging=self.staging,
            rng=Random(seed),
            trace=self.trace,
            now_ms=lambda: self.now_ms,
            faults_are_on=lambda: True,
        )

    def run(self, batch_id: int = 0):
        running = self.executors.run(job(batch_id))
        try:
            while True:
                self.now_ms += next(running).duration_ms
        except StopIteration as stop:
            return stop.value

    def rows(self, messages):
        """Return the rows by output partition, as the driver reads them."""
        found = defaultdict(list)
        for chunk in plan_chunks(messages, self.staging.index_of):
            data = chunk.read()
            chunk.check(data)
            for header, at in iter_batches(data):
                found[chunk.partition] += decode_records(data, at, header)
        return found


def record_of(row, attempt):
    partition, position = row
    key = b"%d-%d" % (partition, position % 3)
    return position % 2, Record(key, b"%d:%d:r:%d" % (partition, position, attempt))


def job(batch_id=0):
    return Job("q", "q", "r", batch_id, ROWS, "out", 2, record_of)


def coordinates(found):
    return [tuple(map(int, r.value.split(b":")[:2])) for part in found.values() for r in part]


def check_whole(found):
    """Check that each row is there once, and the rows of a key are in their order."""
    seen = coordinates(found)
    assert sorted(seen) == [row for task in ROWS for row in task]
    for records in found.values():
        last = {}
        for record in records:
            position = int(record.value.split(b":")[1])
            assert last.get(record.key, -1) < position
            last[record.key] = position


def test_tasks_without_faults_take_no_time_and_stage_each_row_once():
    tasks = Tasks(0)
    check_whole(tasks.rows(tasks.run()))
    assert tasks.now_ms == 0


@pytest.mark.invariant(35)
@pytest.mark.parametrize("in_files", [False, True])
def test_whatever_attempts_fail_the_driver_reads_each_row_once(in_files):
    counts, attempts = Counter(), set()
    for seed in range(30):
        files = StagingFiles() if in_files else None
        tasks = Tasks(seed, files, failure=0.3, speculation=0.5)
        try:
            messages = tasks.run()
        except TasksFailed:
            continue
        check_whole(tasks.rows(messages))
        counts.update(tasks.trace.counts)
        attempts.update(message.task_attempt_id for message in messages)
    for fate in ("before", "while", "after"):
        assert counts[f"task failed {fate} it staged"] > 0
    assert counts["output left behind"] > 0, "an attempt that Spark did not take had staged"
    assert attempts > {1, 2}, "others than the first attempts were taken"


def test_another_attempt_has_its_rows_in_another_order_and_in_other_batches():
    shapes = set()
    for seed in range(20):
        tasks = Tasks(seed, speculation=1.0)
        messages = tasks.run()
        shapes.add((messages[0].summary.digest, tuple(coordinates(tasks.rows(messages)))))
    assert len({digest for digest, _ in shapes}) > 5
    assert len({order for _, order in shapes}) > 5


def test_a_task_that_fails_too_often_fails_its_job_and_what_others_staged_is_removed():
    removed = 0
    for seed in range(20):
        tasks = Tasks(seed, failure=0.8)
        try:
            tasks.run()
        except TasksFailed as failed:
            messages = failed.messages
        else:
            continue
        assert None in messages
        assert tasks.trace.counts["task failed"] >= FAILURES_MAX
        kept = len(tasks.staging.server.kept)
        tasks.staging.abandon(messages)
        if any(messages):
            assert tasks.staging.server.kept == []
            removed += kept
    assert removed > 0


def test_an_attempt_that_is_later_than_its_batch_is_refused_by_the_server():
    refused = 0
    for seed in range(20):
        tasks = Tasks(seed, speculation=1.0)
        tasks.run()
        tasks.staging.remove_batches(0, "r")
        assert tasks.staging.server.kept == []
        tasks.now_ms += LATE_MS[1]
        tasks.executors.advance()
        assert tasks.staging.server.kept == []
        refused += tasks.trace.counts["late attempt refused"]
    assert refused > 5


def test_what_an_executor_alone_had_is_gone_with_it_and_the_driver_finds_that_out():
    gone = 0
    for seed in range(20):
        tasks = Tasks(seed, StagingFiles(), executor_loss=1.0)
        messages = tasks.run()
        tasks.now_ms += 2_000
        tasks.executors.advance()
        assert tasks.trace.counts["executor lost"] == 1
        try:
            check_whole(tasks.rows(messages))
        except StagedBatchesInvalid:
            gone += 1
    assert 0 < gone < 20


def test_what_the_server_has_outlives_the_executors():
    for seed in range(20):
        tasks = Tasks(seed, executor_loss=1.0)
        messages = tasks.run()
        tasks.now_ms += 2_000
        tasks.executors.advance()
        check_whole(tasks.rows(messages))


@pytest.mark.invariant(35)
def test_a_row_of_an_attempt_that_spark_did_not_take_is_noticed():
    final = FinalState({TopicPartition("out", 0): [Record(b"k", b"0:1:run-1:7")]}, {}, {})
    check_taken(SimpleNamespace(taken={("run-1", 7)}), final)
    with pytest.raises(Violation, match=r"^invariant 35:.* did not take"):
        check_taken(SimpleNamespace(taken={("run-1", 8), ("run-2", 7)}), final)


def test_each_fault_of_tasks_happens_and_costs_no_row():
    counts = Counter()
    rates = {
        "query.tasks": 4,
        "faults.tasks.failure": 0.2,
        "faults.tasks.speculation": 0.4,
        "faults.tasks.executor_loss": 0.5,
    }
    for seed in range(6):
        rates["query.staging_files"] = bool(seed % 2)
        verdict = World(seed, load_scenario("random", seed).changed(rates)).run()
        assert verdict.failure is None, verdict.failure
        counts.update(verdict.counts)
    for fault in (*OF_TASKS, "output left behind", "query stopped: StagedBatchesInvalid"):
        assert counts[fault] > 0, counts


def test_a_drivers_clocks_jump_and_drift_and_cost_no_row():
    counts = Counter()
    for seed in range(4):
        drawn = load_scenario("random", seed).changed({"faults.driver.clock": 0.2})
        verdict = World(seed, drawn).run()
        assert verdict.failure is None, verdict.failure
        counts.update(verdict.counts)
    assert counts["driver's clock drifted"] > 10
    assert counts["driver's clock jumped"] > 10


@pytest.mark.parametrize(("rate", "virtual_ms"), [(EXACT, 1_000), (EXACT // 2, 2_000)])
def test_a_client_waits_by_the_clock_of_its_machine(rate, virtual_ms):
    scheduler = Scheduler()
    trace = Trace(lambda: scheduler.now_us, None)
    process = ClientProcess("c", scheduler, Network(scheduler, trace, Random(0)), {}, trace)
    process.clock.drift(monotonic=rate)
    ended = []

    def wait():
        yield Sleep(1_000)

    process.run(wait(), lambda *_: ended.append(scheduler.now_us))
    scheduler.run_until(lambda: bool(ended), limit_us=10_000_000)
    assert ended == [virtual_ms * 1_000]
    assert process.clock.monotonic_ms == 1_000


def test_a_driver_whose_wall_clock_has_jumped_gives_records_that_time():
    world = World(0, load_scenario("three_brokers_calm", 0))
    operator = world.queries[0].operator
    operator.start()
    driver = operator._current.driver
    driver.application.clock.wall_skew_ms = 60_000
    _, record = driver._record(2, (0, 0), 1)
    assert record.timestamp == START_WALL_MS + 60_002
