"""What happens to the processes of a cluster, drawn from the seed.

A process may be killed after any operation on its files and between any two answers. Besides, on
each tick of a clock one may be stopped (SIGSTOP) for longer than its session lasts, the network may
part, one way or both, and all machines may lose power at once.

A broker may also be stopped cleanly, as an operator does it. A machine that loses power forgets
what was not flushed, and perhaps all of its disk. Kafka answers before it flushes, as others
have the records. So where not every append is flushed, one machine only loses power at a time, and
only while all replicas are in sync; and nothing else happens until it is out of every ISR, since
whoever is left there last is taken to have everything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.sim.cluster_processes import ClusterBroker
from broker_sim.sim.metadata_oracle import MetadataOracle
from broker_sim.sim.network import Direction, Network
from broker_sim.sim.one_broker import CLOCK_JUMP_MS_MAX, POWER_LOSS
from broker_sim.sim.replica_oracle import ReplicaLogs
from broker_sim.sim.scenario import Fault, Scenario
from broker_sim.sim.scheduler import Scheduler
from broker_sim.sim.sim_broker import SimulatedBroker
from broker_sim.sim.trace import Trace

TICK_US = 500_000
KILL = "kill"
DISK_LOSS = "power-loss and disk-loss"
DISK_LOSS_SHARE = 0.25
"""Of the machines that lose power while all others have all that they have."""
DOWN_MS = (1, 6_000)
"""Shorter or longer than a session."""
PAUSE_US = (10_000, 8_000_000)
PARTITION_US = (100_000, 10_000_000)


class Victims(Protocol):
    """The cluster, as far as faults know it."""

    network: Network
    metadata: MetadataOracle
    logs: ReplicaLogs

    @property
    def registry(self) -> SimulatedBroker:
        """The registry's process."""

    @property
    def processes(self) -> tuple[SimulatedBroker, ...]:
        """The registry and all brokers."""

    @property
    def brokers(self) -> Sequence[ClusterBroker]:
        """All brokers."""

    def role_of(self, process: SimulatedBroker) -> str:
        """What it is to the cluster now."""


class ClusterFaults:
    """See the module."""

    def __init__(
        self,
        scenario: Scenario,
        cluster: Victims,
        scheduler: Scheduler,
        trace: Trace,
        rng: Callable[[str], random.Random],
    ) -> None:
        self.are_on = False
        self._scenario = scenario
        self._cluster = cluster
        self._scheduler = scheduler
        self._trace = trace
        self._deaths = rng("faults")
        self._disks = rng("disk")
        self._ticks = rng("ticks")
        self._partitions: list[tuple[Direction, ...]] = []
        self._fragile: tuple[SimulatedBroker, int] | None = None
        """A machine that has lost what others have, and its broker epoch then."""

    def begin(self) -> None:
        """Faults may happen from now on."""
        self.are_on = True
        self._scheduler.after(TICK_US, self._tick)

    def end(self) -> None:
        """Nothing more happens; what was done is undone, but for what is lost."""
        self.are_on = False
        self._fragile = None
        for directions in self._partitions:
            self._cluster.network.open_again(*directions)
        self._partitions.clear()
        for process in self._cluster.processes:
            process.wake_up()
            process.wall_skew_ms = 0

    def _shut_down(self, broker: ClusterBroker) -> None:
        """A clean stop, with what it leads handed over, and a start after a while."""
        role = self._cluster.role_of(broker)
        self._trace.count(f"{role} stopped cleanly")
        self._trace.line(broker.name, "shut-down")
        broker.shut_down(lambda: self._start_later(broker))

    def has_lost(self, name: str) -> bool:
        """Whether the machine lost what others have, and is still taken to have it."""
        return self._fragile is not None and self._fragile[0].name == name

    # ------------------------------------------------------------------ deaths

    def planned_reason(self, fault: Fault) -> str:
        """How a planned fault kills."""
        return POWER_LOSS if fault.power_loss else KILL

    def chance_of_death(self, process: SimulatedBroker) -> str | None:
        """Asked after each effect: the reason to die now."""
        if not self.are_on:
            return None
        scenario, is_registry = self._scenario, process is self._cluster.registry
        limit = scenario.registry_crash if is_registry else scenario.broker_crash
        if self._deaths.random() >= limit or not self._may_disturb(process):
            return None
        lossy = self._deaths.random() < scenario.power_loss
        if not lossy or is_registry:
            return POWER_LOSS if lossy else KILL
        if self._deaths.random() < DISK_LOSS_SHARE and self._all_is_in_sync(process):
            return DISK_LOSS
        return POWER_LOSS if scenario.flushes_all or self._all_is_in_sync(process) else KILL

    def on_died(self, process: SimulatedBroker, reason: str) -> None:
        """Start it again after a while."""
        kind = "registry" if process is self._cluster.registry else "broker"
        self._trace.count(f"{kind} {reason}")
        if reason != KILL:
            self._lose_power(process, with_disk=reason == DISK_LOSS)
        self._start_later(process)

    def _start_later(self, process: SimulatedBroker) -> None:
        down_us = self._disks.randint(*DOWN_MS) * 1000
        self._scheduler.after(down_us, lambda: self._start_again(process))

    def _start_again(self, process: SimulatedBroker) -> None:
        if process.is_up:
            return
        if self.are_on and self._deaths.random() < self._scenario.clock_jump:
            self._trace.count("clock jump")
            process.wall_skew_ms = self._deaths.randint(-CLOCK_JUMP_MS_MAX, CLOCK_JUMP_MS_MAX)
        process.start()

    def _lose_power(self, process: SimulatedBroker, *, with_disk: bool) -> None:
        process.machine_boots += 1
        lost_bytes = process.disk.lose_power(self._disks)
        if with_disk:
            process.disk.wipe()
        self._trace.line("disk", "lost", {"of": process.name, "bytes": lost_bytes})
        oracle = self._cluster.logs.oracles.get(process.name)
        if oracle is not None:
            oracle.rebuild()
        if (with_disk or not self._scenario.flushes_all) and oracle is not None:
            self._fragile = process, self._broker_epoch(process)

    def _may_disturb(self, process: SimulatedBroker) -> bool:
        """Not while another machine's replicas must not be taken for whole."""
        if self._fragile is None:
            return True
        lost, epoch = self._fragile
        in_sync = any(_number(lost) in held.isr for held in self._held)
        if not in_sync or self._broker_epoch(lost) not in (epoch, -1):
            self._fragile = None
        return self._fragile is None or process is lost

    def _all_is_in_sync(self, process: SimulatedBroker) -> bool:
        """Whether the others have all that this machine has, and can say so."""
        others = [each for each in self._cluster.processes if each is not process]
        return (
            self._fragile is None
            and not self._partitions
            and all(each.incarnation >= 0 and not each.paused for each in others)
            and all(set(held.isr) == set(held.replicas) for held in self._held)
        )

    @property
    def _held(self) -> Sequence[PartitionRegistration]:
        return list(self._cluster.metadata.partitions.values())

    def _broker_epoch(self, process: SimulatedBroker) -> int:
        return self._cluster.metadata.broker_epochs.get(_number(process), -1)

    # ------------------------------------------------------------------ ticks

    def _tick(self) -> None:
        if not self.are_on:
            return
        self._scheduler.after(TICK_US, self._tick)
        rng, scenario = self._ticks, self._scenario
        pauses, parts, fails, stops = (rng.random() for _ in range(4))
        victim = rng.choice(self._cluster.processes)
        if not all(self._may_disturb(process) for process in self._cluster.processes):
            return
        if pauses < scenario.broker_pause:
            self._trace.count(f"{self._cluster.role_of(victim)} paused")
            victim.pause(rng.randint(*PAUSE_US))
        stopped = rng.choice(self._cluster.brokers)
        if stops < scenario.clean_stop and stopped.incarnation >= 0 and not stopped.paused:
            self._shut_down(stopped)
        if parts < scenario.partition:
            self._part()
        if fails < scenario.blackout and scenario.flushes_all:
            self._trace.count("all machines lost power")
            for process in self._cluster.processes:
                process.kill(POWER_LOSS)

    def _part(self) -> None:
        """One process from all others, or two from each other; both ways, or one."""
        rng = self._ticks
        names = [process.name for process in self._cluster.processes]
        one = rng.choice(names)
        others = [name for name in names if name != one]
        if rng.random() < 0.5:
            others = [rng.choice(others)]
        kind = rng.choice(("both", "both", "from", "to"))
        out = [(one, other) for other in others] if kind != "to" else []
        back = [(other, one) for other in others] if kind != "from" else []
        directions = (*out, *back)
        self._trace.count(f"network partition, {'one way' if kind != 'both' else 'both ways'}")
        self._trace.line("network", "parted", {"directions": directions})
        self._cluster.network.cut_off(*directions)
        self._partitions.append(directions)
        self._scheduler.after(rng.randint(*PARTITION_US), lambda: self._join(directions))

    def _join(self, directions: tuple[Direction, ...]) -> None:
        if directions in self._partitions:
            self._trace.line("network", "joined", {"directions": directions})
            self._partitions.remove(directions)
            still = {each for parted in self._partitions for each in parted}
            self._cluster.network.open_again(*(set(directions) - still))


def _number(process: SimulatedBroker) -> int:
    return int(process.name.removeprefix("broker-"))
