"""Simulation of brokers, drivers, readers and faults, from a seed to its result.

Three phases. *Chaos*: the query runs while faults happen; safety must hold. *Calm*: faults end, and
within a bound of virtual time the query must finish, every transaction be decided and, in a
cluster, all replicas be in sync (liveness). *Audit*: fresh readers read all, before and after one
more restart, and the invariants are checked.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from simulation.checkers.client_history import ClientHistory
from simulation.checkers.invariants import check_final
from simulation.checkers.leak_check import SESSIONS_MS, check_leftovers
from simulation.checkers.outcomes import Outcome
from simulation.cluster import Cluster
from simulation.coverage import Cell, StateOfQuery
from simulation.hosts.checkpoint import Checkpoint
from simulation.hosts.client import ClientProcess
from simulation.hosts.clock import MachineClock
from simulation.hosts.network import BrokerEnd, Network
from simulation.hosts.scheduler import START_WALL_MS, Scheduler
from simulation.hosts.scripted_faults import ScriptedFaults
from simulation.hosts.sim_broker import SimulatedBroker
from simulation.load.background_load import BackgroundLoad
from simulation.load.cluster_load import ClusterLoad
from simulation.load.queries import COPY, OUTPUT_TOPIC, QUERY_GROUP_ID, Query, QueryMaking
from simulation.load.reader import create_topics, read_bounds, read_undecided
from simulation.load.routing import Routing
from simulation.load.unflushed_topic import TOPIC as UNSAFE_TOPIC
from simulation.load.unflushed_topic import UNSAFE_CONFIGS
from simulation.one_broker import OneBroker
from simulation.scenario import Fault, LinkConditions, Scenario
from simulation.trace import Trace
from simulation.violation import Violation, violated
from txnlog_kafka.operations.effects import Operation, Sleep
from txnlog_kafka.operations.session import Session, SessionConfig
from txnlog_kafka.wire.invariants import InvariantViolation
from txnlog_spark.errors import TxnLogError

Plant = Callable[["World"], contextlib.AbstractContextManager[None]]
"""A deliberate bug: breaks one run's world or, for its length, one function of the product."""
CALM_MS = 600_000
SETTLE_MS = 120_000
SETTLE_POLL_MS_MAX = 30_000
SETTLE_PATIENCE_MS = 2 * (SETTLE_MS + SETTLE_POLL_MS_MAX)
"""Milliseconds until all is decided, and then until the cluster is healed."""
AUDIT_MS = 60_000
NO_STAMP = -1
"""Producers whose records have old stamps, or none, are forgotten at a start: brokers of a cluster
would not know what is sent again to another leader."""
SMALL_SEGMENTS_OF_TOPICS = {"internal.segment.bytes": "700"}
FLUSHED = {"flush.messages": "1"}
"""Configuration of the input topic: a loss of power takes nothing of it."""
FINISHED, IS_OVER = attrgetter("operator.deployment.finished"), attrgetter("operator.is_over")
"""Asked of each query after each event."""


@dataclass(frozen=True, slots=True)
class SeedResult:
    """Result of a run; `failure` is None when every invariant held."""

    failure: str | None
    digest: str
    counts: dict[str, int]
    cells: dict[Cell, int]
    """Counts of each fault in each state (see `coverage`)."""
    outcomes: dict[tuple[str, Outcome], int]
    """Counts of operations by kind and outcome."""
    last_lines: list[str]


class World:
    """Everything of one run."""

    def __init__(
        self,
        seed: int,
        scenario: Scenario,
        echo: Callable[[str], None] | None = None,
        plant: Plant | None = None,
    ) -> None:
        self.seed = seed
        self.scenario = scenario
        self._plant = plant
        self._chaos = False
        self._processes: list[ClientProcess] = []
        self.scheduler = Scheduler()
        self.trace = Trace(lambda: self.scheduler.now_us, echo, self._columns_of)
        self.network = Network(
            self.scheduler, self.trace, self._rng("network"), self._rng("duplicates")
        )
        self.planned = ScriptedFaults(scenario.planned)
        self.history = ClientHistory({UNSAFE_TOPIC} if scenario.load.unsafe_topic else ())
        # The queries come before the machines, whose faults look for moments of the first query.
        self._making = QueryMaking(scenario, self, self.planned, self._rng)
        self.queries = self._making.first_queries()
        self.machines = self._make_machines()
        self._neighbours = self._make_neighbours()
        self._load = self._make_load()
        first = self.queries[0].operator.deployment
        self._state = StateOfQuery(
            self.machines,
            OUTPUT_TOPIC,
            QUERY_GROUP_ID,
            lambda: first.sinks[-1].transactional_id_of(""),
        )

    def _make_machines(self) -> OneBroker | Cluster:
        made = self.scenario, self.seed, self.scheduler, self.trace, self.planned, self._rng
        initialised = self.history.producers.initialised
        if self.scenario.brokers.count == 1:
            return OneBroker(*made, initialised=initialised)
        driver = self.queries[0].operator
        return Cluster(*made, network=self.network, driver=driver, initialised=initialised)

    def _make_neighbours(self) -> BackgroundLoad:
        load, is_alone = self.scenario.load, self.scenario.brokers.count == 1
        return BackgroundLoad(
            load.neighbours,
            seed=self.seed,
            new_places=self.machines.new_places,
            stamp_ms=NO_STAMP if is_alone else START_WALL_MS,
            now_ms=lambda: self.scheduler.monotonic_ms,
            may_go_on=lambda: self._chaos,
            abort=load.neighbours_abort,
        )

    def _make_load(self) -> ClusterLoad:
        return ClusterLoad(
            self.scenario.load,
            self.scenario.faults,
            self._rng,
            (OUTPUT_TOPIC, self.scenario.query.output_partitions),
            self.machines.new_places,
            self.trace,
            faults_are_on=lambda: self._chaos,
            coordinates=self.machines.coordinates,
            new_session=self._new_session,
            now_us=lambda: self.scheduler.now_us,
        )

    def _columns_of(self, victim: str) -> Sequence[str]:
        return self._state.columns_of(victim)

    @property
    def host(self) -> SimulatedBroker:
        """First broker, or the only one."""
        return self.machines.hosts[0]

    @property
    def _places(self) -> Routing:
        """Routing of a new client."""
        return self.machines.new_places()

    def _new_session(self) -> Session:
        return self.session_of(MachineClock(self.scheduler))

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    # ------------------------------------------------------------------ as `Host` of operators

    def driver_process(self, name: str, clock: MachineClock) -> ClientProcess:
        """Return a new process on the machine with this clock."""
        return self._process(name, clock)

    def session_of(self, clock: MachineClock) -> Session:
        """Return a client that measures its timeouts by this clock."""
        config = SessionConfig(request_timeout_ms=3_000, operation_timeout_ms=30_000)
        return Session(monotonic_ms=lambda: clock.monotonic_ms, config=config)

    def kill_broker(self, fault: Fault) -> None:
        """Kill a broker, as a planned fault says."""
        self.machines.kill(fault)

    def isolate(self, group_id: str, for_ms: int) -> None:
        """Cut the coordinator of a group from all other brokers, for so many milliseconds."""
        self.machines.isolate(group_id, for_ms)

    def start_copy(self, checkpoint: Checkpoint) -> None:
        """Start a query of its own on a copy of the first query's checkpoint."""
        copy = self._making.copy_of(self.queries[0].operator.deployment, checkpoint)
        self.queries.append(copy)
        self._start(copy)

    # ------------------------------------------------------------------ the run

    def run(self) -> SeedResult:
        """Run to the end. Only a bug of the simulator itself raises."""
        with self._plant(self) if self._plant is not None else contextlib.nullcontext():
            failure = self._run_to_failure()
        if failure is not None:
            self.trace.line("world", "FAILED", {"why": failure})
        return SeedResult(
            failure=failure,
            digest=self.trace.digest,
            counts=dict(self.trace.counts),
            cells=dict(self.trace.cells),
            outcomes=dict(self.history.outcomes()),
            last_lines=self.trace.last_lines,
        )

    def _run_to_failure(self) -> str | None:
        failure = None
        try:
            self._run_phases()
        except (Violation, InvariantViolation) as error:
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
        self.machines.start()
        self._set_up()

        # Chaos: faults happen for as long as the scenario says, or until all queries are done.
        self._begin_chaos()
        # Of the unsafe topic nothing is lost soon: it takes replicas that have left the ISR.
        lasts = self.scenario.load.unsafe_topic
        self._run(lambda: not lasts and all(map(FINISHED, self.queries)), self.scenario.chaos_ms)

        # Calm: what was begun has to come to its end.
        self._end_chaos()
        self._calm_down()

        # Audit: all is read, and once more when every process has been started again.
        self._audit()
        if self.scenario.brokers.count > 1:
            # A request of before may have come late, and be on its way to the other replicas.
            self._finish("settling", self._settle(), SETTLE_PATIENCE_MS, number=44)
            self.machines.check_healed()
            self._load.check_replicas(self.machines.replicas_of)
        self._run(lambda: not any(self.machines.left_over().values()), SESSIONS_MS)
        check_leftovers(self.machines.left_over())
        self.machines.stop()
        self.machines.start()
        self._audit()
        self._check_expectations()
        self.network.decode.check()

    def _set_up(self) -> None:
        """Create the topics, and write the input of all queries."""
        topics: dict[str, int] = {}
        inputs: dict[str, int] = {}
        for query in self.queries:
            source = query.operator.deployment.source
            inputs[source.topic] = source.settings.source_partitions
            topics |= dict.fromkeys(query.topics, source.settings.output_partitions)
        if self.scenario.may_be_copied:
            topics[COPY + OUTPUT_TOPIC] = self.scenario.query.output_partitions
        topics.update(self._neighbours.topics)
        if self.scenario.brokers.count > 1:
            topics.update(self._load.topics)
        configs = SMALL_SEGMENTS_OF_TOPICS if self.scenario.brokers.small_segments else {}
        if self._load.unsafe_topics:
            unsafe = create_topics(self._places, self._load.unsafe_topics, UNSAFE_CONFIGS)
            self._finish("set-up", unsafe, AUDIT_MS)
        self._finish("set-up", create_topics(self._places, topics, configs), AUDIT_MS)
        self._finish("set-up", create_topics(self._places, inputs, FLUSHED), AUDIT_MS)
        for query in self.queries:
            self._finish("set-up", query.write_input(self._places), AUDIT_MS)

    def _calm_down(self) -> None:
        """Wait until queries and others are done, and all transactions are decided (43, 45, 46)."""
        if not self._run(self._is_over, CALM_MS):
            newest = [query.operator.deployment.newest for query in self.queries]
            violated(46, "a query did not finish once faults ended",
                     planned=[c.batches("offsets") for c in newest],
                     noted=[c.batches("commits") for c in newest])  # fmt: skip
        if not self._run(lambda: self._load.missing is None, CALM_MS):
            violated(45, "others did not come to an end once faults ended",
                     missing=self._load.missing)  # fmt: skip
        # A transaction's start is kept as wall time (as in Kafka): after a jump back it is in the
        # future, which a load takes for the present.
        self._finish("settling", self._settle(), SETTLE_PATIENCE_MS, number=43)

    def _is_over(self) -> bool:
        return all(map(IS_OVER, self.queries)) and not self._neighbours.running

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
                     missing=self.machines.not_healed(),
                     undecided=self.machines.open_transactions())  # fmt: skip
        return results[0]

    def _process(self, name: str, clock: MachineClock | None = None) -> ClientProcess:
        brokers: dict[int, BrokerEnd] = dict(self.machines.hosts)
        process = ClientProcess(
            name, self.scheduler, self.network, brokers, self.trace,
            clock=clock, on_sent=self.history.on_sent, on_answer=self.history.on_answer,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def _begin_chaos(self) -> None:
        self._chaos = True
        self.machines.begin_chaos()
        self.network.weather = self.scenario.faults.network
        for query in self.queries:
            self._start(query)
        self._neighbours.start(self._process)
        if self.scenario.brokers.count > 1:
            self._load.start(self._process)

    def _start(self, query: Query) -> None:
        on_group = partial(self._on_group, query)
        for watcher in query.watchers(self.machines.new_places, on_group):
            process = self._process(f"{query.operator.deployment.name}-observer")
            process.run(watcher, self._on_observer_end)
        query.operator.start()

    def _end_chaos(self) -> None:
        self.trace.line("world", "calm")
        self._chaos = False
        for query in self.queries:
            query.operator.calm_down()
        self.network.weather = LinkConditions()
        self.machines.end_chaos()

    def _on_group(
        self,
        query: Query,
        node: int,
        group_id: str,
        offsets: dict[tuple[str, int], int],
        done_when_asked: int,
    ) -> None:
        # A former coordinator that has not heard of another one answers by what it knows.
        if not self.machines.coordinates(node, group_id):
            return
        if query.operator.deployment.is_rolled_back(group_id):
            # An older backup has an older progress, from which the query goes forward again.
            query.observations.groups.pop(group_id, None)
            done_when_asked = 0
        query.observations.on_group(group_id, offsets, done_when_asked)

    def _on_observer_end(self, _: None, error: TxnLogError | None) -> None:
        if error is not None:
            violated(5, "the observer failed", error=str(error))

    # ------------------------------------------------------------------ the end

    def _settle(self) -> Operation[None]:
        """Wait until every transaction is decided, as clients see it (43), and all healed (44)."""
        poll_ms, began_ms = 500, self.scheduler.monotonic_ms
        places = self._places
        decided_ms: int | None = None
        while True:
            undecided = yield from read_undecided(places)
            stuck = 0
            for query, topic in ((q, topic) for q in self.queries for topic in q.topics):
                settings = query.operator.deployment.source.settings
                for partition in range(settings.output_partitions):
                    bounds = yield from read_bounds(places, topic, partition)
                    stuck += bounds.high_watermark != bounds.last_stable_offset
            missing = self.machines.not_healed()
            now_ms = self.scheduler.monotonic_ms
            if undecided or stuck or self.machines.open_transactions():
                decided_ms = None
                if now_ms - began_ms > SETTLE_MS:
                    violated(43, "transactions are not decided", undecided=undecided,
                             open=self.machines.open_transactions())  # fmt: skip
            elif missing is None:
                return
            else:
                decided_ms = now_ms if decided_ms is None else decided_ms
                if now_ms - decided_ms > SETTLE_MS:
                    violated(44, "the cluster does not heal", missing=missing)
            yield Sleep(poll_ms)
            poll_ms = min(2 * poll_ms, SETTLE_POLL_MS_MAX)

    def _audit(self) -> None:
        self.history.begin_audit()
        for query in self.queries:
            final = self._finish("audit", query.read_all(self._places), AUDIT_MS)
            check_final(query.operator.deployment, query.observations, final)
        self._neighbours.check(self._finish("audit", self._neighbours.read(self._places), AUDIT_MS))
        if self.scenario.brokers.count > 1:
            found = self._finish("audit", self._load.read(self._places), AUDIT_MS)
            self._load.check(found, self.machines.losses)
        self.history.end_audit()

    def _check_expectations(self) -> None:
        """Fail when a planned fault did not fire or an expected outcome was not seen."""
        for fault in self.planned.not_fired:
            violated(51, "a planned fault never fired", fault=fault)
        expect, counts = self.scenario.expect, self.trace.counts
        found = {
            "skipped": counts["batch skipped"],
            "fenced": counts["fenced"],
            "restarts": counts["driver restarts"],
            "aborted": self.machines.aborted_count,
        }
        for name, count in found.items():
            if count < getattr(expect, name):
                violated(51, "an expected outcome did not happen", expected=expect, found=found)


def _innermost(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "?"
    code = trace.tb_frame.f_code
    return f"{code.co_name}:{trace.tb_lineno}"
