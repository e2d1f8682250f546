"""Faults of the processes of a cluster, drawn from the seed.

A process may be killed after any operation on its files and between any two answers. Further faults
happen on each tick of a clock. A process may be stopped (SIGSTOP) for longer than its session
lasts. The network may part, one way or both. All machines may lose power at once.

A broker may also be stopped cleanly, as an operator does it. A machine that loses power forgets the
bytes that were not flushed, and perhaps all of its disk. Kafka answers before it flushes, because
other brokers have the records. So where not every append is flushed, a single machine loses power
at a time, and only while all replicas are in sync. Nothing else happens until it is out of every
ISR: the last replica left in an ISR is taken to have everything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from broker_sim.core.controller.registrations import PartitionRegistration
from simulation.checkers.losses import Losses
from simulation.checkers.metadata_oracle import MetadataOracle
from simulation.checkers.replica_oracle import ReplicaLogs
from simulation.faults.bit_flips import closed_segments, flip_beside_logs, flip_in_closed_segment
from simulation.faults.disk_faults import DiskFaults
from simulation.faults.fragile_machine import FragileMachine, number_of
from simulation.faults.network_faults import NetworkFaults
from simulation.faults.unclean_election import UncleanElection
from simulation.hosts.clock import CLOCK_JUMP_MS_MAX, drawn_rate
from simulation.hosts.cluster_processes import ClusterBroker, SimulatedRegistry
from simulation.hosts.disk import POWER_LOSS
from simulation.hosts.network import Network
from simulation.hosts.process_files import FAILED_FLUSH
from simulation.hosts.scheduler import Scheduler
from simulation.hosts.sim_broker import SimulatedBroker
from simulation.load.operator import Operator
from simulation.load.unflushed_topic import DIRECTORY as UNSAFE_DIRECTORY
from simulation.scenario import BrokerSettings, Chances, Fault
from simulation.trace import Trace

TICK_US = 500_000
KILL = "kill"
DISK_LOSS = "disk loss"
FRESH_MS = 1_500
"""Time that the sessions of brokers that are heard must last, of the three seconds of each."""
DISK_LOSS_SHARE = 0.25
"""Share of the power losses that also lose the disk; only while others have all its records."""
DOWN_MS = (1, 6_000)
"""Shorter or longer than a session."""
JUMP_SHARE = 0.1
"""Chance of a clock jump at a tick, as a share of the chance at a start."""
MOMENT_SHARE = 0.15
"""Share of the records of a coordinator's log that are followed by a tick."""
MOMENT_BIAS = 5
FLUSH_BIAS = 2
"""Factor, on top of a tick's, of the chance that the flush of the record fails."""
SHORT_STATES = {"prepare-commit": 10, "prepare-abort": 20, "complete-abort": 20}
"""The bias where a transaction is seldom, and not for long: most of them commit, and most of those
that abort do so while something is at fault already. There are twice as many ticks."""
MOMENT_US = (0, 4_000)
DAMAGE_SHARE = 0.1
"""Chance per tick of a death for a bit flip in a log, as a share of a flip's chance at a death."""
ISOLATION_MS = (4_000, 12_000)
"""Longer than a session: others are elected."""
PAUSE_US = (10_000, 8_000_000)
DRIFT_US = (1_000_000, 30_000_000)


@dataclass(frozen=True, slots=True)
class Victims:
    """Processes that faults happen to, and the witnesses that say what a fault may take."""

    network: Network
    registry: SimulatedRegistry
    brokers: tuple[ClusterBroker, ...]
    processes: tuple[SimulatedBroker, ...]
    """The registry and all brokers."""
    fragile: FragileMachine
    metadata: MetadataOracle
    logs: ReplicaLogs
    losses: Losses
    coordinates: Callable[[int, str], bool]
    """True of the number of a broker and a group whose coordinator it is."""


class ClusterFaults:
    """See the module."""

    def __init__(
        self,
        chances: Chances,
        settings: BrokerSettings,
        cluster: Victims,
        scheduler: Scheduler,
        trace: Trace,
        rng: Callable[[str], random.Random],
        *,
        driver: Operator,
    ) -> None:
        """`driver` is the operator of the query, whose drivers have faults at the same moments."""
        self.are_on = False
        self._chances = chances.cluster
        self._broker_chances = chances.broker
        self._cluster = cluster
        self._scheduler = scheduler
        self._trace = trace
        # A random generator for each kind of fault: a new kind does not change the others' draws.
        self._deaths = rng("faults")
        self._disks = rng("disk")
        self._ticks = rng("ticks")
        self._disk_faults = DiskFaults(
            chances.disk, scheduler, trace, rng("disk-faults"), self._may_lose
        )
        self._more = rng("more-ticks")
        self._moments = rng("moments")
        self._flips = rng("flips")
        self._isolations = rng("isolations")
        self._damaged: SimulatedBroker | None = None
        """Process that is killed so that a bit of its disk flips."""
        self._is_blackout = False
        # The victims: the query's drivers, the network, the machines' power, a lonely leader.
        self._driver = driver
        names = [process.name for process in cluster.processes]
        self._network = NetworkFaults(cluster.network, scheduler, trace, names)
        self._flushes_all = settings.flushes_all
        self._all_is_flushed = settings.flushes_all and not cluster.logs.unsafe
        """True if a machine may lose power at any time."""
        self._lonely: UncleanElection | None = None
        if chances.cluster.lonely_leader:
            self._lonely = UncleanElection(
                scheduler, trace, rng("lonely-leader"), cluster.brokers,
                self._unsafe_leader, self._may_disturb_all,
            )  # fmt: skip

    def begin(self) -> None:
        """Let faults happen from now on."""
        self.are_on = True
        self._network.begin()
        self._disk_faults.begin(self._cluster.processes)
        if self._lonely is not None:
            self._lonely.begin()
        self._scheduler.after(TICK_US, self._tick)

    def end(self) -> None:
        """End the faults, and undo them; lost records stay lost."""
        self.are_on = False
        self._disk_faults.end()
        if self._lonely is not None:
            self._lonely.end()
        self._network.end()
        for process in self._cluster.processes:
            process.wake_up()
            process.clock.drift()
            process.clock.wall_skew_ms = 0

    def _shut_down(self, broker: ClusterBroker) -> None:
        """Stop a broker cleanly: it hands over its partitions. Start it again after a while."""
        self._trace.fault("clean stop", broker.name)
        self._trace.line(broker.name, "shut-down")
        broker.shut_down(lambda: self._start_later(broker))

    def flush_fails(self, process: SimulatedBroker) -> bool:
        """Draw whether a flush of a process fails."""
        return self._disk_faults.flush_fails(process)

    # ------------------------------------------------------------------ deaths

    def planned_reason(self, fault: Fault) -> str:
        """Return the kind of death of a planned fault."""
        return POWER_LOSS if fault.power_loss else KILL

    def chance_of_death(self, process: SimulatedBroker, bias: int = 1) -> str | None:
        """Draw whether a process dies after an effect; return the reason, None if it lives on.

        With `bias`, a death is so many times as likely.
        """
        if not self.are_on:
            return None
        chances, is_registry = self._broker_chances, process is self._cluster.registry
        limit = self._chances.registry_crash if is_registry else chances.crash
        if self._deaths.random() >= limit * bias or not self._may_disturb(process):
            return None
        lossy = self._deaths.random() < chances.power_loss
        if not lossy or is_registry:
            return POWER_LOSS if lossy else KILL
        if self._deaths.random() < DISK_LOSS_SHARE and self._all_is_in_sync(process):
            return DISK_LOSS
        return POWER_LOSS if self._all_is_flushed or self._all_is_in_sync(process) else KILL

    def on_dying(self, process: SimulatedBroker, reason: str) -> None:
        """Count a death while the process is as it was, and perhaps flip a bit of its disk."""
        self._trace.fault(reason, process.name)
        may_flip = self.are_on and process is not self._cluster.registry
        flips = self._flips.random() < self._chances.bit_flip or process is self._damaged
        if may_flip and flips:
            self._flip(process, in_log=not self._is_blackout and self._all_is_in_sync(process))

    def _flip(self, process: SimulatedBroker, *, in_log: bool) -> None:
        """Flip a bit of a disk. In a log, all others must have the records that it damages."""
        what, path = "bit flip in a log", None
        if in_log:
            path = flip_in_closed_segment(process.disk, self._flips)
        if path is not None:
            self._cluster.fragile.mark(process)
        else:
            what, path = "bit flip beside logs", flip_beside_logs(process.disk, self._flips)
        if path is not None:
            self._trace.fault(what, process.name)
            self._trace.line("disk", "bit-flipped", {"of": process.name, "path": path})

    def on_died(self, process: SimulatedBroker, reason: str) -> None:
        """Start a process again after a while; it may have lost bytes."""
        oracle = self._cluster.logs.oracles.get(process.name)
        if oracle is not None and self._cluster.fragile.has_lost(process.name):
            oracle.rebuild()
        if reason in (POWER_LOSS, DISK_LOSS):
            self._lose_power(process, with_disk=reason == DISK_LOSS)
        elif reason == FAILED_FLUSH:
            self._has_lost(process, process.disk.read_medium(self._disks))
        self._start_later(process)

    def _start_later(self, process: SimulatedBroker) -> None:
        down_us = self._disks.randint(*DOWN_MS) * 1000
        self._scheduler.after(down_us, lambda: self._start_process(process))

    def _start_process(self, process: SimulatedBroker) -> None:
        if process.is_running:
            return
        if self.are_on and self._deaths.random() < self._broker_chances.clock_jump:
            self._jump(process, self._deaths)
        process.start()

    def _lose_power(self, process: SimulatedBroker, *, with_disk: bool) -> None:
        process.machine_boots += 1
        lost_bytes = process.disk.lose_power(self._disks)
        if with_disk:
            process.disk.wipe()
        self._has_lost(process, lost_bytes, with_disk=with_disk)

    def _has_lost(
        self, process: SimulatedBroker, lost_bytes: int, *, with_disk: bool = False
    ) -> None:
        self._trace.line("disk", "lost", {"of": process.name, "bytes": lost_bytes})
        oracle = self._cluster.logs.oracles.get(process.name)
        if oracle is not None:
            oracle.rebuild()
        if (with_disk or not self._all_is_flushed) and oracle is not None:
            self._cluster.fragile.mark(process)

    def _may_lose(self, process: SimulatedBroker) -> bool:
        """True if it may now lose the bytes that it has not flushed."""
        if process is self._cluster.registry or self._all_is_flushed:
            return self._may_disturb(process)
        return self._all_is_in_sync(process)

    def _may_disturb(self, process: SimulatedBroker) -> bool:
        """True unless the replicas of another machine must not be taken for whole."""
        return self._cluster.fragile.may_disturb(process)

    def _may_disturb_all(self) -> bool:
        return all(self._may_disturb(process) for process in self._cluster.processes)

    def _all_is_in_sync(self, process: SimulatedBroker) -> bool:
        """True if the others have all that this machine has, and can say so."""
        others = [each for each in self._cluster.processes if each is not process]
        return (
            not self._cluster.fragile.exists
            and self._network.is_whole
            # Or a broker that was cut off is about to lose its session, and its places in ISRs.
            and self._cluster.registry.may_expire_ms > FRESH_MS
            and all(each.incarnation >= 0 and not each.paused for each in others)
            and all(_serves(broker) for broker in self._cluster.brokers if broker is not process)
            and all(set(held.isr) == set(held.replicas) for held in self._held)
        )

    @property
    def _held(self) -> Sequence[PartitionRegistration]:
        return list(self._cluster.metadata.partitions.values())

    # ------------------------------------------------------------------ ticks

    def _tick(self) -> None:
        if not self.are_on:
            return
        self._scheduler.after(TICK_US, self._tick)
        state = next(iter(self._trace.columns_of("")), "")
        self._happen(SHORT_STATES.get(state, 1))
        if self._isolations.random() < self._chances.isolation and self._may_disturb_all():
            group_id = self._driver.deployment.progress_group()
            self.isolate(group_id, self._isolations.randint(*ISOLATION_MS))

    def isolate(self, group_id: str, for_ms: int) -> None:
        """Cut a group's coordinator from the cluster: it does not learn who follows it."""
        for broker in self._cluster.brokers:
            if self._cluster.coordinates(number_of(broker), group_id):
                self._network.isolate(broker.name, for_ms * 1000)

    def at_moment(self, coordinator: SimulatedBroker, state: str) -> None:
        """Let faults happen soon: a transaction has come to a state, perhaps not for long."""
        if not self.are_on:
            return
        bias = SHORT_STATES.get(state, MOMENT_BIAS)
        self._disk_faults.at_moment(coordinator, bias * FLUSH_BIAS)
        if self._chances.isolation > 0.0:
            self._scheduler.after(self._isolations.randint(*MOMENT_US), self._driver.at_moment)
        share = MOMENT_SHARE * (2 if state in SHORT_STATES else 1)
        if self._moments.random() < share:
            self._scheduler.after(self._moments.randint(*MOMENT_US), partial(self._at_moment, bias))

    def _at_moment(self, bias: int) -> None:
        if self.are_on:
            self._happen(bias, MOMENT_BIAS)
            self._disk_faults.happen()
            self._driver.at_moment()

    def _happen(self, bias: int, blackout_bias: int = 1) -> None:
        """Draw the faults of a tick; `bias` is for the few that need all replicas in sync."""
        rng, chances = self._ticks, self._chances
        pauses, parts, fails, stops = (rng.random() for _ in range(4))
        victim = rng.choice(self._cluster.processes)
        self._tick_more(bias)
        if not self._may_disturb_all():
            return
        if pauses < chances.pause:
            self._pause(victim)
        stopped = rng.choice(self._cluster.brokers)
        if stops < chances.clean_stop and stopped.incarnation >= 0 and not stopped.paused:
            self._shut_down(stopped)
        if parts < chances.partition:
            self._network.part(rng)
        if fails < chances.blackout * blackout_bias and self._flushes_all:
            self._trace.fault("all machines lost power")
            self._black_out()

    def _black_out(self) -> None:
        """Let all machines lose power, also those whose process is down where that counts."""
        losses, held = self._cluster.losses, self._cluster.metadata.partitions
        had = {name: losses.holders(name) for name in sorted(self._cluster.logs.unsafe)}
        losses.note_blackout()
        self._is_blackout = True
        for process in self._cluster.processes:
            if process.is_running:
                process.kill(POWER_LOSS)
            elif had:
                self._lose_power(process, with_disk=False)
        self._is_blackout = False
        if had:
            self._cluster.fragile.forget()
        for name, brokers in had.items():
            if name in held:
                losses.on_blackout(name, held[name], brokers)

    def _unsafe_leader(self) -> tuple[ClusterBroker, PartitionRegistration] | None:
        """Return the leader of the unsafe topic, with its registration."""
        held = self._cluster.metadata.partitions.get(UNSAFE_DIRECTORY)
        found = (each for each in self._cluster.brokers if held and number_of(each) == held.leader)
        broker = next(found, None)
        return None if broker is None or held is None else (broker, held)

    def _pause(self, victim: SimulatedBroker) -> None:
        if victim.is_running and not victim.paused:
            self._trace.fault("pause", victim.name)
            victim.pause(self._ticks.randint(*PAUSE_US))

    def _tick_more(self, bias: int) -> None:
        rng, chances = self._more, self._chances
        parts, clogs, drifts, jumps, wipes = (rng.random() for _ in range(5))
        if parts < chances.client_partition:
            self._network.part_client(rng)
        if clogs < chances.clog and self._may_disturb_all():
            self._network.clog(rng, lambda: self.are_on)
        process = rng.choice(self._cluster.processes)
        broker = rng.choice(self._cluster.brokers)
        if self._flips.random() < chances.bit_flip * DAMAGE_SHARE * bias:
            self._damage()
        if wipes < chances.disk_loss * bias and broker.is_running and self._all_is_in_sync(broker):
            broker.kill(DISK_LOSS)
        if drifts < chances.clock_drift:
            self._trace.fault("clock drift", process.name)
            process.clock.drift(monotonic=drawn_rate(rng), wall=drawn_rate(rng))
            self._scheduler.after(rng.randint(*DRIFT_US), process.clock.drift)
        if jumps < self._broker_chances.clock_jump * JUMP_SHARE:
            self._jump(process, rng)

    def _damage(self) -> None:
        """Kill a broker, and flip a bit of a closed segment before it comes back."""
        found = [
            each for each in self._cluster.brokers
            if each.is_running and closed_segments(each.disk) and self._all_is_in_sync(each)
        ]  # fmt: skip
        if found:
            self._damaged = self._flips.choice(found)
            self._damaged.kill(KILL)
            self._damaged = None

    def _jump(self, process: SimulatedBroker, rng: random.Random) -> None:
        self._trace.fault("clock jump", process.name)
        process.clock.wall_skew_ms = rng.randint(-CLOCK_JUMP_MS_MAX, CLOCK_JUMP_MS_MAX)


def _serves(host: ClusterBroker) -> bool:
    """True if it is registered in its present session.

    A registration of the session before ends with that session, and so do its places in ISRs.
    """
    return host.is_up and host.broker.membership.is_serving
