"""The machine of a run with one broker: what kills the broker, and when it is started again."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.registrations import PartitionRegistration, alone
from broker_sim.core.effects import Step, StorageOperation
from simulation.broker_options import TRANSACTION_PARTITIONS, broker_options
from simulation.checkers.bounds_oracle import BoundsOracle
from simulation.checkers.fetch_oracle import FetchOracle
from simulation.checkers.leak_check import left_over
from simulation.checkers.log_oracle import LogOracle
from simulation.checkers.losses import Losses
from simulation.checkers.replica_oracle import ReplicaLogs
from simulation.faults.disk_faults import DiskFaults
from simulation.hosts.clock import CLOCK_JUMP_MS_MAX
from simulation.hosts.disk import POWER_LOSS
from simulation.hosts.process_files import FAILED_FLUSH
from simulation.hosts.scheduler import Scheduler
from simulation.hosts.scripted_faults import ScriptedFaults
from simulation.hosts.sim_broker import Observer, SimulatedBroker
from simulation.load.routing import Routing
from simulation.scenario import Fault, Scenario, ScenarioError
from simulation.trace import Trace
from txnlog_kafka.wire.topic_partition import TRANSACTION_STATE_TOPIC


class OneBroker(Observer):
    """A broker that is alone, and its disk."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        scheduler: Scheduler,
        trace: Trace,
        planned: ScriptedFaults,
        rng: Callable[[str], random.Random],
        *,
        initialised: Mapping[int, int],
    ) -> None:
        """`initialised` has the highest epoch of each producer id that a client was given."""
        self.host = SimulatedBroker(
            name="broker-0",
            config=BrokerConfig(broker_options(scenario.brokers)),
            scheduler=scheduler,
            trace=trace,
            seed=f"{seed}/broker",
            observer=self,
        )
        self.hosts = {0: self.host}
        self.oracle = LogOracle(self.host.disk, initialised)
        self._fetches = FetchOracle(self.host.disk, self.oracle)
        self._bounds = BoundsOracle(self.host.name)
        self.losses = Losses(ReplicaLogs(), lambda: scheduler.now_us, trace.count)
        """Losses of the run: always empty, because the only replica keeps all committed records."""
        self._disk_faults = DiskFaults(
            scenario.faults.disk, scheduler, trace, rng("disk-faults"), lambda _: True
        )
        self._chances = scenario.faults.broker
        self._scheduler = scheduler
        self._trace = trace
        self._planned = planned
        self._faults = rng("faults")
        self._disk_rng = rng("disk")
        self._chaos = False

    def new_places(self) -> Routing:
        """Return the routing of a new client."""
        return Routing(1)

    def start(self) -> None:
        """Start the broker unless it is up."""
        self._start_broker()

    def begin_chaos(self) -> None:
        """Let faults happen from now on."""
        self._chaos = True
        self._disk_faults.begin([self.host])

    def end_chaos(self) -> None:
        """End the faults."""
        self._chaos = False
        self._disk_faults.end()
        self._scheduler.wall_skew_ms = 0

    def stop(self) -> None:
        """Stop the broker cleanly."""
        self.host.stop()

    def kill(self, fault: Fault) -> None:
        """Kill the broker, as a planned fault says."""
        self.host.kill(POWER_LOSS if fault.power_loss else "kill")

    def isolate(self, group_id: str, for_ms: int) -> None:
        """Refuse a planned fault that needs other brokers. Raises ScenarioError."""
        raise ScenarioError(f"isolate: {group_id} has no other coordinator for {for_ms} ms")

    def open_transactions(self) -> list[tuple[str, int, int]]:
        """Return `LogOracle.open_transactions` of the broker's disk."""
        return self.oracle.open_transactions()

    @property
    def aborted_count(self) -> int:
        """Count of aborted transactions, from `LogOracle.aborted_count`."""
        return self.oracle.aborted_count

    def left_over(self) -> dict[str, list[str]]:
        """Return the leftovers of clients that are gone, by process."""
        return {self.host.name: left_over(self.host)}

    def not_healed(self) -> str | None:
        """Return None: a broker that is up is all that has to heal."""
        return None

    def check_healed(self) -> None:
        """Check nothing: there is no other broker to compare with."""

    def replicas_of(self, topic: str, number: int) -> tuple[int, ...] | None:
        """Return the broker: it has every partition."""
        del topic, number
        return (0,)

    def save_history(self, folder: Path) -> None:
        """Save nothing: the broker leads all partitions."""

    def coordinates(self, node: int, group_id: str) -> bool:
        """True for the broker: it coordinates all groups."""
        del group_id
        return node == 0

    # ------------------------------------------------------------------ as `ClusterView`

    @property
    def partitions(self) -> Mapping[str, PartitionRegistration]:
        """Partitions of the transaction log, as a cluster's metadata has them."""
        names = (f"{TRANSACTION_STATE_TOPIC}-{number}" for number in range(TRANSACTION_PARTITIONS))
        return dict.fromkeys(names, alone(0, 0))

    @property
    def oracles(self) -> Mapping[str, LogOracle]:
        """Witness of the broker's disk, by name."""
        return {self.host.name: self.oracle}

    def is_controller(self, name: str) -> bool:
        """True for the broker: it is its own controller."""
        return name == self.host.name

    # ------------------------------------------------------------------ as `Observer`

    def on_storage(self, process: SimulatedBroker, operation: StorageOperation) -> str | None:
        """Watch the operation; return the reason if the broker dies, as planned or by chance."""
        labels = self.oracle.watch(operation)
        fault = self._planned.at_storage(labels) if self._chaos else None
        if fault is not None:
            return POWER_LOSS if fault.power_loss else "kill"
        return self.on_answer(process)

    def flush_fails(self, process: SimulatedBroker) -> bool:
        """Draw whether a flush of the broker fails."""
        return self._disk_faults.flush_fails(process)

    def on_answer(self, _process: SimulatedBroker) -> str | None:
        """Return the reason if the broker dies by chance."""
        if self._chaos and self._faults.random() < self._chances.crash:
            lossy = self._faults.random() < self._chances.power_loss
            return POWER_LOSS if lossy else "kill"
        return None

    def on_done(self, process: SimulatedBroker, step: Step) -> None:
        """Have the witnesses look at the files."""
        self._fetches.on_step(process.broker, step)
        self._bounds.on_step(process.broker, step)

    def on_write_failed(self, _process: SimulatedBroker) -> None:
        """Have the witness read the files again: a part of the write may be there."""
        self.oracle.rebuild()

    def on_died(self, process: SimulatedBroker, reason: str) -> None:
        """Start the broker again after a while; it may have lost bytes."""
        self._trace.fault(reason, process.name)
        if reason == POWER_LOSS:
            process.machine_boots += 1
            lost_bytes = process.disk.lose_power(self._disk_rng)
            self._trace.line("disk", "lost", {"bytes": lost_bytes})
            self.oracle.rebuild()
        elif reason == FAILED_FLUSH:
            lost_bytes = process.disk.read_medium(self._disk_rng)
            self._trace.line("disk", "lost", {"bytes": lost_bytes})
            self.oracle.rebuild()
        down_ms = next(
            (fault.down_ms for fault in self._planned.fired), self._disk_rng.randint(1, 3_000)
        )
        self._scheduler.after(down_ms * 1000, self._start_broker)

    def _start_broker(self) -> None:
        if self.host.is_running:
            return
        if self._chaos and self._faults.random() < self._chances.clock_jump:
            self._trace.fault("clock jump", self.host.name)
            jump_ms = self._faults.randint(-CLOCK_JUMP_MS_MAX, CLOCK_JUMP_MS_MAX)
            self._scheduler.wall_skew_ms = jump_ms
        self.host.start()
