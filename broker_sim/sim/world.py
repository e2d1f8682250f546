"""One simulation: a broker, drivers, readers and faults, from a seed to a verdict.

Three phases. *Chaos*: the query runs while faults happen; safety must hold. *Calm*: faults end, and
within a bound of virtual time the query must finish and every transaction be decided (liveness).
*Audit*: fresh readers read all, before and after one more restart, and the invariants are checked.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import InvariantViolation as CoreInvariantViolation
from broker_sim.core.effects import StorageOperation
from broker_sim.sim import driver as spark
from broker_sim.sim.client import ClientProcess
from broker_sim.sim.invariants import FinalState, Observations, check_final
from broker_sim.sim.log_oracle import LogOracle
from broker_sim.sim.neighbour import Neighbourhood
from broker_sim.sim.network import Network, Weather
from broker_sim.sim.plants import PLANTS
from broker_sim.sim.reader import (
    create_topics,
    read_bounds,
    read_group,
    read_partition,
    read_undecided,
    watch_output,
)
from broker_sim.sim.scenario import Fault, Scenario
from broker_sim.sim.scheduler import Scheduler
from broker_sim.sim.sim_broker import SimBroker
from broker_sim.sim.trace import Trace
from broker_sim.sim.violation import Violation, violated
from txnlog_spark.errors import ProducerFenced, ProgressError, TxnLogError
from txnlog_spark.protocol.effects import Operation, Reached, Sleep
from txnlog_spark.protocol.session import Session, SessionConfig
from txnlog_spark.wire.messages import Message
from txnlog_spark.wire.records import Record

CALM_MS = 600_000
SETTLE_MS = 120_000
SETTLE_POLL_MS_MAX = 30_000
CLOCK_JUMP_MS_MAX = 3_600_000
AUDIT_MS = 60_000
OBSERVE_MS = 400
RESTART_MS = 300
PRODUCE = "Produce"
POWER_LOSS = "power-loss"

BROKER_OPTIONS: dict[str, int | str | bool] = {
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
    "auto.create.topics.enable": False,
    "log.retention.ms": -1,
    "listeners": "PLAINTEXT://127.0.0.1:9092",
}
"""Few internal partitions, so that a start is cheap; no retention, since rows carry batch ids for
timestamps; the rest are the broker's defaults."""

COMPACTION_OPTIONS: dict[str, int | str | bool] = {
    "transaction.state.log.segment.bytes": 1024,
    "offsets.topic.segment.bytes": 1024,
    "log.cleaner.backoff.ms": 300,
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.delete.retention.ms": 2_000,
    "log.cleaner.io.buffer.size": 700,
}
"""A segment holds a few records, and a round of the cleaner takes several steps."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run ended; `failure` is None when every invariant held."""

    seed: int
    scenario: str
    failure: str | None
    digest: str
    counts: dict[str, int]
    last_lines: list[str]
    virtual_ms: int


@dataclass(slots=True)
class _Planned:
    fault: Fault
    seen: int = 0
    armed: bool = False
    fired: bool = False


@dataclass(slots=True)
class _Running:
    """A driver that was started, and what it had sent when its present batch began."""

    process: ClientProcess
    driver: spark.Driver
    produces_before: int = 0
    skips_before: int = field(default=0)


class World:
    """Everything of one run."""

    def __init__(
        self, seed: int, scenario: Scenario, echo: Callable[[str], None] | None = None
    ) -> None:
        self.seed = seed
        self.scenario = scenario
        self.scheduler = Scheduler()
        self.trace = Trace(lambda: self.scheduler.now_us, echo)
        self.network = Network(self.scheduler, self.trace, self._rng("network"))
        config = BROKER_OPTIONS | {"transaction.version": scenario.transaction_version or 2}
        if scenario.compaction:
            config |= COMPACTION_OPTIONS
        self.host = SimBroker(
            name="broker-0",
            config=BrokerConfig(config),
            scheduler=self.scheduler,
            trace=self.trace,
            seed=f"{seed}/broker",
        )
        self.oracle = LogOracle(self.host.disk)
        self.host.watch = self._on_storage
        self.host.watch_answer = self._chance_of_death
        self.host.died = self._on_broker_died
        self.observations = Observations()
        self.history = spark.DriverHistory()
        self.checkpoint = spark.Checkpoint()
        self.source = spark.Source(
            partitions=scenario.source_partitions,
            rows=scenario.batches * scenario.rows_per_batch // 2 + 1,
            rows_per_batch=scenario.rows_per_batch,
            output_partitions=scenario.output_partitions,
            empty_batches=scenario.empty_batches,
        )
        self._planned = [_Planned(fault) for fault in scenario.faults]
        self._faults = self._rng("faults")
        self._disk_rng = self._rng("disk")
        self._workload = self._rng("workload")
        self._chaos = False
        self._processes: list[ClientProcess] = []
        self._driver_count = 0
        self._current: _Running | None = None
        self._zombies: list[_Running] = []
        """Paused drivers that have not ended: a run waits to see what they do."""
        self._query_done = False
        self._neighbours = Neighbourhood(
            scenario.neighbours,
            seed=seed,
            now_ms=lambda: self.scheduler.monotonic_ms,
            may_go_on=lambda: self._chaos,
        )

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    # ------------------------------------------------------------------ the run

    def run(self) -> Verdict:
        """Run to the verdict. Only a bug of the simulator itself raises."""
        plant = PLANTS[self.scenario.plant](self) if self.scenario.plant else None
        with plant or contextlib.nullcontext():
            failure = self._run_to_failure()
        if failure is not None:
            self.trace.line("world", "FAILED", {"why": failure})
        return Verdict(
            seed=self.seed,
            scenario=self.scenario.name,
            failure=failure,
            digest=self.trace.digest,
            counts=dict(self.trace.counts),
            last_lines=self.trace.last_lines,
            virtual_ms=self.scheduler.monotonic_ms,
        )

    def _run_to_failure(self) -> str | None:
        failure = None
        try:
            self._run_phases()
        except (Violation, CoreInvariantViolation) as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001 a crash of the product fails the seed, by name
            failure = f"crash: {type(error).__name__}: {error}"
            self.trace.line("world", "crash", {"where": _innermost(error)})
        finally:
            for process in self._processes:
                process.discard()
        return failure

    def _run_phases(self) -> None:
        self.trace.line("world", "scenario", {"seed": self.seed, "is": self.scenario})
        self.host.start()
        topics = {
            spark.INPUT_TOPIC: self.source.partitions,
            spark.OUTPUT_TOPIC: self.source.output_partitions,
            **self._neighbours.topics,
        }
        self._finish("set-up", create_topics(topics), AUDIT_MS)
        self._begin_chaos()
        self._run(lambda: self._query_done, self.scenario.chaos_ms)
        self._end_chaos()
        if not self._run(
            lambda: self._query_done and not self._zombies and not self._neighbours.running, CALM_MS
        ):
            ends, commits = self.checkpoint.ends, sorted(self.checkpoint.commits)
            violated(46, "the query did not finish once faults ended", ends=ends, commits=commits)
        # A transaction's start is kept as wall time (as in Kafka): after a jump back it is in the
        # future, and times out only that much later.
        patience_ms = SETTLE_MS + (2 * CLOCK_JUMP_MS_MAX if self.scenario.clock_jump else 0)
        self._finish("settling", self._settle(), patience_ms, number=43)
        self._audit()
        self.host.stop()
        self._restart_broker()
        self._audit()
        self._check_expectations()

    def _run(self, done: Callable[[], bool], for_ms: int) -> bool:
        return self.scheduler.run_until(done, limit_us=self.scheduler.now_us + for_ms * 1000)

    def _finish(
        self, what: str, operation: Operation[Any], for_ms: int, *, number: int = 46
    ) -> Any:
        """Run one operation in a process of its own to its end."""
        results: list[Any] = []
        process = self._process(what)

        def done(result: Any, error: TxnLogError | None) -> None:
            if error is not None:
                violated(number, f"{what} failed", error=str(error))
            results.append(result)

        process.run(operation, done)
        if not self._run(lambda: bool(results), for_ms):
            violated(number, f"{what} did not end in {for_ms} ms",
                     undecided=self.oracle.open_transactions())  # fmt: skip
        return results[0]

    def _process(self, name: str) -> ClientProcess:
        process = ClientProcess(name, self.scheduler, self.network, {0: self.host}, self.trace)
        self._processes.append(process)
        return process

    def _begin_chaos(self) -> None:
        self._chaos = True
        self.network.weather = Weather(
            connection_loss=self.scenario.connection_loss,
            spike=self.scenario.spike,
            spike_us_max=self.scenario.spike_ms * 1000,
        )
        watcher = watch_output(
            spark.OUTPUT_TOPIC,
            self.source.output_partitions,
            (spark.GROUP_ID, spark.PROGRESS_GROUP_ID),
            on_records=self.observations.on_records,
            on_group=self.observations.on_group,
            interval_ms=OBSERVE_MS,
        )
        self._process("observer").run(watcher, self._on_observer_end)
        self._neighbours.start(self._process)
        self._start_driver()

    def _end_chaos(self) -> None:
        self.trace.line("world", "calm")
        self._chaos = False
        self.network.weather = Weather()
        self.scheduler.wall_skew_ms = 0

    def _on_observer_end(self, _: None, error: TxnLogError | None) -> None:
        if error is not None:
            violated(5, "the observer failed", error=str(error))

    # ------------------------------------------------------------------ drivers

    def _start_driver(self) -> None:
        self._driver_count += 1
        process = self._process(f"driver-{self._driver_count}")
        session = Session(
            monotonic_ms=lambda: self.scheduler.monotonic_ms,
            config=SessionConfig(request_timeout_ms=3_000, operation_timeout_ms=30_000),
        )
        driver = spark.Driver(
            run_id=f"run-{self._driver_count}",
            checkpoint=self.checkpoint,
            source=self.source,
            session=session,
            history=self.history,
            rng=self._workload,
            transaction_timeout_ms=self.scenario.transaction_timeout_ms,
        )
        running = _Running(process, driver)
        process.on_reached = lambda reached: self._on_reached(running, reached)
        process.on_reply = self._reply_watcher(process.name)
        self._current = running
        process.run(driver.query(), lambda _, error: self._on_query_end(running, error))

    def _reply_watcher(self, name: str) -> Callable[[Message, Message, int], None]:
        def watch(request: Message, answer: Message, version: int) -> None:
            self.observations.on_reply(name, request, answer, version)

        return watch

    def _on_query_end(self, running: _Running, error: TxnLogError | None) -> None:
        is_current = running is self._current
        if running in self._zombies:
            self._zombies.remove(running)
        if error is None:
            self._query_done = self._query_done or is_current
            return
        self.trace.count(f"query stopped: {type(error).__name__}")
        if isinstance(error, ProducerFenced):
            self.trace.count("fenced")
        if isinstance(error, ProgressError) and is_current:
            violated(41, "the query stopped for a contradiction", error=str(error))
        if is_current:
            self._replace_driver()

    def _replace_driver(self) -> None:
        self._current = None
        self.trace.count("driver restarts")
        self.scheduler.after(
            self._faults.randint(1, 2 * RESTART_MS) * 1000,
            lambda: self._start_driver() if self._current is None else None,
        )

    def _on_reached(self, running: _Running, reached: Reached) -> None:
        self._check_skip(running, reached)
        for planned in self._planned:
            fault = planned.fault
            here = (fault.step, fault.when, fault.batch_id)
            if fault.on == "step" and not planned.fired and (
                here == (reached.step, reached.when, reached.batch_id)
            ):  # fmt: skip
                planned.seen += 1
                planned.fired = planned.seen == fault.occurrence
                if planned.fired:
                    self._step_fault(running, fault)
                    return
        if not self._chaos or running is not self._current:
            return
        if self._faults.random() < self.scenario.driver_kill:
            self._kill_driver(running)
        elif self._faults.random() < self.scenario.driver_pause:
            self._pause_driver(running, self._faults.randint(10, 40_000))

    def _check_skip(self, running: _Running, reached: Reached) -> None:
        """A batch that was skipped must not have sent a Produce (38)."""
        sent = running.process.sent_counts.get(PRODUCE, 0)
        skips = len(self.history.skipped)
        if reached.step == "S14" and reached.when == "before":
            run_id = running.driver.run_id
            if (run_id, reached.batch_id) in self.history.skipped[running.skips_before :]:
                self.trace.count("batch skipped")
                if sent > running.produces_before:
                    violated(38, "a skipped batch sent Produce", batch_id=reached.batch_id)
        if reached.step == "S14":
            running.produces_before, running.skips_before = sent, skips

    def _step_fault(self, running: _Running, fault: Fault) -> None:
        if fault.action == "kill":
            self._kill_driver(running)
        elif fault.action == "pause":
            self._pause_driver(running, fault.pause_ms)
        else:
            self.host.kill(POWER_LOSS if fault.power_loss else "kill")

    def _kill_driver(self, running: _Running) -> None:
        self.trace.count("driver killed")
        running.process.kill()
        if running in self._zombies:
            self._zombies.remove(running)
        if running is self._current:
            self._replace_driver()

    def _pause_driver(self, running: _Running, pause_ms: int) -> None:
        self.trace.count("driver paused")
        running.process.pause(pause_ms * 1000)
        self._zombies.append(running)
        if running is self._current:
            self._replace_driver()

    # ------------------------------------------------------------------ the broker

    def _on_storage(self, operation: StorageOperation) -> str | None:
        labels = self.oracle.watch(operation)
        # Every planned fault counts every operation, also the one that another dies of.
        reasons = [self._planned_death(planned, labels) for planned in self._planned]
        for reason in reasons:
            if reason is not None:
                return reason
        return self._chance_of_death()

    def _chance_of_death(self) -> str | None:
        if self._chaos and self._faults.random() < self.scenario.broker_crash:
            lossy = self._faults.random() < self.scenario.power_loss
            return POWER_LOSS if lossy else "kill"
        return None

    def _planned_death(self, planned: _Planned, labels: list[str]) -> str | None:
        fault = planned.fault
        if planned.fired or not self._chaos or fault.on == "step":
            return None
        if fault.on in labels:
            planned.seen += 1
            planned.armed = planned.seen >= fault.occurrence
        if not planned.armed or (fault.flushed and "flush" not in labels):
            return None
        planned.fired = True
        return POWER_LOSS if fault.power_loss else "kill"

    def _on_broker_died(self, reason: str) -> None:
        self.trace.count(f"broker {reason}")
        if reason == POWER_LOSS:
            self.host.machine_boots += 1
            lost_bytes = self.host.disk.lose_power(self._disk_rng)
            self.trace.line("disk", "lost", {"bytes": lost_bytes})
            self.oracle.rebuild()
        down_ms = next(
            (p.fault.down_ms for p in self._planned if p.fired), self._disk_rng.randint(1, 3_000)
        )
        self.scheduler.after(down_ms * 1000, self._restart_broker)

    def _restart_broker(self) -> None:
        if self.host.incarnation >= 0:
            return
        if self._chaos and self._faults.random() < self.scenario.clock_jump:
            self.trace.count("clock jump")
            jump_ms = self._faults.randint(-CLOCK_JUMP_MS_MAX, CLOCK_JUMP_MS_MAX)
            self.scheduler.wall_skew_ms = jump_ms
        self.host.start()

    # ------------------------------------------------------------------ the end

    def _settle(self) -> Operation[None]:
        """Wait until every transaction is decided, as clients are told (43)."""
        poll_ms = 500
        while True:
            undecided = yield from read_undecided()
            stuck = 0
            for partition in range(self.source.output_partitions):
                bounds = yield from read_bounds(spark.OUTPUT_TOPIC, partition)
                stuck += bounds.high_watermark != bounds.last_stable_offset
            if not undecided and not stuck and not self.oracle.open_transactions():
                return
            yield Sleep(poll_ms)
            poll_ms = min(2 * poll_ms, SETTLE_POLL_MS_MAX)

    def _audit(self) -> None:
        final = self._finish("audit", self._read_all(), AUDIT_MS)
        check_final(self.source, self.checkpoint, self.history, self.observations, final)
        self._neighbours.check(self._finish("audit", self._neighbours.read(), AUDIT_MS))

    def _read_all(self) -> Operation[FinalState]:
        committed: dict[int, list[Record]] = {}
        uncommitted: dict[int, list[Record]] = {}
        for partition in range(self.source.output_partitions):
            for read_committed, into in ((True, committed), (False, uncommitted)):
                into[partition], _ = yield from read_partition(
                    spark.OUTPUT_TOPIC, partition, 0, read_committed=read_committed
                )
        groups = {}
        for group_id in (spark.GROUP_ID, spark.PROGRESS_GROUP_ID):
            groups[group_id] = yield from read_group(group_id)
        return FinalState(committed, uncommitted, groups)

    def _check_expectations(self) -> None:
        """A story must have told what it is about; a fault that never fired proves nothing."""
        for planned in self._planned:
            if not planned.fired:
                violated(51, "a planned fault never fired", fault=planned.fault)
        expect, counts = self.scenario.expect, self.trace.counts
        found = {
            "skipped": counts["batch skipped"],
            "fenced": counts["fenced"],
            "restarts": counts["driver restarts"],
            "aborted": self.oracle.aborted_count,
        }
        for name, count in found.items():
            if count < getattr(expect, name):
                violated(51, "the story did not happen", expected=expect, found=found)


def _innermost(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "?"
    code = trace.tb_frame.f_code
    return f"{code.co_name}:{trace.tb_lineno}"
