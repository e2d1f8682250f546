"""Three brokers and their registry on the virtual network, each on a machine of its own.

All that they send each other is bytes on simulated connections (`peer_links`). Witnesses compare
what they write (`replica_oracle`), tell and read (`metadata_oracle`); `cluster_faults` is what
happens to them. When faults have ended a cluster heals by itself: `not_healed` says what is
missing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.reassignment import in_progress
from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.coordinator.runtime import partition_for
from broker_sim.core.effects import Input, Request, Respond, Step, StorageOperation
from broker_sim.core.log import STRAY_SUFFIX, PartitionLog
from broker_sim.core.registry_client import REGISTRY_PEER, REGISTRY_WAIT_PEER
from simulation.broker_options import MIN_INSYNC_REPLICAS, cluster_options
from simulation.checkers.bounds_oracle import BoundsOracle
from simulation.checkers.controller_oracle import ControllerOracle
from simulation.checkers.fetch_oracle import FetchOracle, answered_parts
from simulation.checkers.leak_check import left_at_registry, left_over
from simulation.checkers.losses import Losses
from simulation.checkers.metadata_oracle import METADATA_TRACE, MetadataListener, MetadataOracle
from simulation.checkers.newest_metadata import NewestMetadata
from simulation.checkers.replica_oracle import LOG_START_TRACE, ReplicaLogs, ReplicaOracle
from simulation.checkers.sync_oracle import SyncOracle
from simulation.coverage import STATES
from simulation.faults.cluster_faults import ClusterFaults, Victims
from simulation.faults.flapping import Flapping
from simulation.faults.fragile_machine import FragileMachine
from simulation.hosts.cluster_processes import ClusterBroker, SimulatedRegistry
from simulation.hosts.network import BrokerEnd, Network
from simulation.hosts.peer_links import Peers, never_late
from simulation.hosts.scheduler import Scheduler
from simulation.hosts.scripted_faults import ScriptedFaults
from simulation.hosts.sim_broker import Observer, SimulatedBroker
from simulation.load.operator import Operator
from simulation.load.recreated_topic import TRIMMED
from simulation.load.routing import Routing
from simulation.load.unflushed_topic import DIRECTORY as UNSAFE_DIRECTORY
from simulation.scenario import Fault, Scenario
from simulation.trace import Trace
from simulation.violation import violated
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import present
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.topic_partition import GROUP_METADATA_TOPIC

HISTORY_FILE = "metadata.jsonl"
"""File of the metadata's history, as `cli.timeline_cluster` reads it."""
BIAS = 8
"""Factor of the chance of a death after a record of the transaction log: some states are short."""
ANSWER_US_MAX = 4_000_000
"""Microseconds that a peer may take for an answer (replica.socket.timeout.ms), shortened."""


class Cluster(Observer, MetadataListener):
    """See the module."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        scheduler: Scheduler,
        trace: Trace,
        planned: ScriptedFaults,
        rng: Callable[[str], random.Random],
        *,
        network: Network,
        driver: Operator,
        initialised: Mapping[int, int],
    ) -> None:
        """`driver` is the operator whose drivers have faults at the moments of the cluster's.

        `initialised` has the highest epoch of each producer id that a client was given.
        """
        self.network = network
        self._settings = settings = scenario.brokers
        self._trace = trace
        self._planned = planned
        unsafe = {UNSAFE_DIRECTORY} if scenario.load.unsafe_topic else set()

        # The metadata, and the machine that may not have all that they say.
        self.metadata = MetadataOracle(self, unsafe)
        self.fragile = FragileMachine(self.metadata)

        # Processes: a process finds its peers in `ends`, which is whole before any process starts.
        self._flapping: Flapping | None = None
        if scenario.faults.cluster.flapping:
            followers = self._all_but_the_controller
            self._flapping = Flapping(network, scheduler, trace, rng("flapping"), followers)
        late_markers = settings.transaction_version == 2 and not scenario.load.has_old_clients
        is_late = never_late if self._flapping is None else self._flapping.is_late
        ends: dict[int, BrokerEnd] = {}
        peers = Peers(network, ends, ANSWER_US_MAX, late_markers, is_late)
        self.registry, self.hosts = self._make_processes(seed, scheduler, peers)
        ends.update({REGISTRY_PEER: self.registry, REGISTRY_WAIT_PEER: self.registry})
        ends.update(self.hosts)

        # Witnesses of what the processes write, read and say.
        self.logs = ReplicaLogs(
            NewestMetadata(self.metadata, self.hosts, self.fragile.has_lost),
            trimmed={TRIMMED} if scenario.load.passing_topic else set(),
            unsafe=unsafe,
            compacts=settings.compaction,
            initialised=initialised,
        )
        self.losses = Losses(self.logs, lambda: scheduler.now_us, trace.count)
        self._sync = SyncOracle(MIN_INSYNC_REPLICAS)
        self._controllers = ControllerOracle()
        self._of_steps: dict[str, tuple[FetchOracle, BoundsOracle]] = {}
        """Witnesses of the steps of each broker, by name."""
        for host in self.hosts.values():
            oracle = ReplicaOracle(host.name, host.disk, self.logs)
            self._of_steps[host.name] = FetchOracle(host.disk, oracle), BoundsOracle(host.name)

        victims = Victims(
            network, self.registry, self.brokers, self.processes, self.fragile, self.metadata,
            self.logs, self.losses, self.coordinates,
        )  # fmt: skip
        self.faults = ClusterFaults(
            scenario.faults, settings, victims, scheduler, trace, rng, driver=driver
        )

    def _make_processes(
        self, seed: int, scheduler: Scheduler, peers: Peers
    ) -> tuple[SimulatedRegistry, dict[int, ClusterBroker]]:
        """Return the registry, and the brokers by id; no process is started."""
        trace, options = self._trace, cluster_options(self._settings)
        registry = SimulatedRegistry(
            name="registry",
            config=BrokerConfig({}),
            scheduler=scheduler,
            trace=trace,
            seed=f"{seed}/registry",
            observer=self,
        )
        brokers = {
            number: ClusterBroker(
                name=f"broker-{number}",
                config=BrokerConfig(
                    options | {"node.id": number, "listeners": f"PLAINTEXT://b{number}:9092"}
                ),
                scheduler=scheduler,
                trace=trace,
                seed=f"{seed}/broker-{number}",
                observer=self,
                peers=peers,
            )
            for number in range(self._settings.count)
        }
        return registry, brokers

    # ------------------------------------------------------------------ as `ClusterView`

    @property
    def partitions(self) -> Mapping[str, PartitionRegistration]:
        """Partitions by directory, as the newest metadata have them."""
        return self.metadata.partitions

    @property
    def oracles(self) -> Mapping[str, ReplicaOracle]:
        """Witness of each broker's disk, by name."""
        return self.logs.oracles

    def is_controller(self, name: str) -> bool:
        """True if this process is the controller now."""
        found = (host for host in self.hosts.values() if host.name == name and host.is_up)
        return any(host.broker.membership.is_controller for host in found)

    def _all_but_the_controller(self) -> list[str]:
        """Return the names of at least two brokers."""
        names = [host.name for host in self.brokers if not self.is_controller(host.name)]
        return names if len(names) > 1 else [host.name for host in self.brokers]

    # ------------------------------------------------------------------ as `OneBroker`

    @property
    def brokers(self) -> tuple[ClusterBroker, ...]:
        """Brokers of the cluster."""
        return tuple(self.hosts.values())

    @property
    def processes(self) -> tuple[SimulatedBroker, ...]:
        """The registry and all brokers."""
        return (self.registry, *self.hosts.values())

    def new_places(self) -> Routing:
        """Return the routing of a new client."""
        return Routing(len(self.hosts))

    def start(self) -> None:
        """Start what is not up."""
        for process in self.processes:
            if not process.is_running:
                process.start()

    def begin_chaos(self) -> None:
        """Let faults happen from now on."""
        self.faults.begin()
        if self._flapping is not None:
            self._flapping.begin()

    def end_chaos(self) -> None:
        """End the faults; processes that are down come back."""
        if self._flapping is not None:
            self._flapping.end()
        self.faults.end()

    def stop(self) -> None:
        """Stop all processes cleanly, the registry last."""
        for process in reversed(self.processes):
            process.stop()

    def kill(self, fault: Fault) -> None:
        """Kill the first broker, as a planned fault says."""
        self.hosts[0].kill(self.faults.planned_reason(fault))

    def isolate(self, group_id: str, for_ms: int) -> None:
        """Cut a group's coordinator from the other processes; clients still reach it."""
        self.faults.isolate(group_id, for_ms)

    def open_transactions(self) -> list[tuple[str, int, int]]:
        """Return the open transactions, as each partition's leader has them."""
        return self.logs.open_transactions()

    @property
    def aborted_count(self) -> int:
        """ABORT markers that ended a transaction with data, on the disk with most of them."""
        return max(oracle.aborted_count for oracle in self.logs.oracles.values())

    # ------------------------------------------------------------------ as `Observer`

    def on_storage(self, process: SimulatedBroker, operation: StorageOperation) -> str | None:
        """Watch the operation; return the reason if the process dies, as planned or by chance."""
        oracle = self.logs.oracles.get(process.name)
        if oracle is None:
            return self.faults.chance_of_death(process)
        labels = oracle.watch(operation)
        leads = oracle.leads_last or "flush" in labels
        fault = self._planned.at_storage(labels) if self.faults.are_on and leads else None
        if fault is not None:
            return self.faults.planned_reason(fault)
        is_state = bool(labels) and labels[-1] in STATES and oracle.leads_last
        if is_state:
            self.faults.at_moment(process, labels[-1])
        reason = self.faults.chance_of_death(process, BIAS if is_state else 1)
        if reason is not None:
            role = "the one that leads" if oracle.leads_last else "a broker"
            self._trace.count(f"{reason} of {role} after {labels[-1] if labels else 'other files'}")
        return reason

    def flush_fails(self, process: SimulatedBroker) -> bool:
        """Draw whether a flush of the process fails."""
        return self.faults.flush_fails(process)

    def on_answer(self, process: SimulatedBroker) -> str | None:
        """Return the reason if the process dies by chance before its answer."""
        return self.faults.chance_of_death(process)

    def on_dying(self, process: SimulatedBroker, reason: str) -> None:
        """Count the death."""
        self.faults.on_dying(process, reason)

    def on_died(self, process: SimulatedBroker, reason: str) -> None:
        """Start the process again after a while."""
        self.faults.on_died(process, reason)

    def on_write_failed(self, process: SimulatedBroker) -> None:
        """Have the witness read the files again: a part of the write may be there."""
        if process is not self.registry:
            self.logs.oracles[process.name].rebuild()

    def on_step(self, process: SimulatedBroker, item: Input, step: Step) -> None:
        """Have the witnesses look at what is done."""
        if process is self.registry:
            if isinstance(item, Request):
                self._controllers.on_asked(item)
            return
        records = [trace.fields for trace in step.traces if trace.kind == METADATA_TRACE]
        if records:
            offset = process.broker.membership.registry_offset
            self.metadata.on_read(process.name, records, offset)
        self.losses.on_traces(step.traces)
        for trace in step.traces:
            if trace.kind == LOG_START_TRACE:
                self.logs.on_log_start(process.name, **trace.fields)
        parts = process.broker.opened
        if parts is not None and (step.traces or step.responses):
            self._sync.on_step(process.name, parts, step)

    def on_done(self, process: SimulatedBroker, step: Step) -> None:
        """Have the witnesses look at what is in the files."""
        for oracle in self._of_steps.get(process.name, ()):
            oracle.on_step(process.broker, step)

    def on_respond(self, process: SimulatedBroker, response: Respond) -> None:
        """Have the witnesses look at what is said."""
        if process is self.registry:
            self._controllers.on_reported(response)
        if response.api_key is not ApiKey.FETCH:
            return
        for directory, part in answered_parts(response.message, process.broker.membership.image):
            self.logs.on_high_watermark(process.name, directory, part.high_watermark)

    # ------------------------------------------------------------------ as `MetadataListener`

    def on_unclean(self, directory: str, after: PartitionRegistration) -> None:
        """Note what an unclean election may have lost."""
        self._trace.count("unclean election")
        self.losses.on_election(directory, after)

    def on_changed(self, directory: str) -> None:
        """Check that a leader counts a replica in the ISR before it reads of it (7, KIP-497)."""
        self.logs.check_in_sync(directory)
        held = self.metadata.partitions[directory]
        host = self.hosts.get(held.leader)
        if host is None or not host.is_up:
            return
        topic, _, number = directory.rpartition("-")
        known = host.broker.membership.image.topics.get(topic)
        if known is None or str(known.topic_id) != self.metadata.topic_ids.get(topic):
            return  # it leads one of this name that was deleted
        if host.broker.opened is None:
            return
        found = host.broker.opened.replicas.lookup(topic, int(number))
        leader = None if isinstance(found, ErrorCode) else found.leader
        if leader is None or leader.registration.leader_epoch != held.leader_epoch:
            return
        if not leader.maximal_isr >= set(held.isr):
            violated(7, "a leader does not count a replica in the ISR", partition=directory,
                     isr=held.isr, counted=sorted(leader.maximal_isr))  # fmt: skip

    # ------------------------------------------------------------------ healed

    def not_healed(self) -> str | None:
        """Name the first part that has not healed after faults ended (44); None when all has."""
        if any(not process.is_up or process.paused for process in self.processes):
            return "not all are up"
        memberships = [host.broker.membership for host in self.hosts.values()]
        if not all(membership.is_serving for membership in memberships):
            return "not all serve"
        active = sum(membership.is_controller for membership in memberships)
        if active != 1:
            return f"{active} controllers"
        first, *others = (membership.image for membership in memberships)
        for image in others:
            if (image.topics, image.brokers) != (first.topics, first.brokers):
                return "brokers have different metadata"
        found = (self._partition_not_healed(*partition) for partition in self._partitions())
        return next(filter(None, found), None)

    def _partitions(self) -> Iterator[tuple[str, int, PartitionRegistration]]:
        for topic in self.hosts[0].broker.membership.image.topics.values():
            for number, held in enumerate(topic.partitions):
                yield topic.name, number, held

    def _partition_not_healed(
        self, topic: str, number: int, held: PartitionRegistration
    ) -> str | None:
        if held.leader < 0 or set(held.isr) != set(held.replicas):
            return f"{topic}-{number} has no leader or not all replicas in sync: {held}"
        if in_progress(held):
            return f"{topic}-{number} is being reassigned: {held}"
        logs = [self._log(replica, topic, number) for replica in held.replicas]
        ends = {
            end
            for log in logs
            for end in (log.log_end_offset, log.high_watermark, log.last_stable_offset)
        }
        return None if len(ends) == 1 else f"{topic}-{number} has ends {sorted(ends)}"

    def _log(self, broker: int, topic: str, number: int) -> PartitionLog:
        parts = present(self.hosts[broker].broker.opened, "a broker has not opened its logs")
        return present(parts.logs.get(topic, number), "a replica has no log")

    def left_over(self) -> dict[str, list[str]]:
        """Return the leftovers of clients and of brokers' former sessions, by process."""
        found = {host.name: left_over(host) for host in self.brokers}
        return found | {"registry": left_at_registry(self.registry, len(self.hosts))}

    def check_healed(self) -> None:
        """Check that all is in sync, replicas are byte-equal, and nothing is lost (8, 44)."""
        missing = self.not_healed()
        if missing is not None:
            violated(44, "the cluster is not healed", missing=missing)
        self.losses.check_reported()
        for number, host in self.hosts.items():
            here = [f"{t}-{n}" for t, n, held in self._partitions() if number in held.replicas]
            self.logs.check_complete(host.name, here)
            self._check_no_others(host, here)
        for topic, number, held in self._partitions():
            contents = {self._content(replica, topic, number) for replica in held.replicas}
            name = f"{topic}-{number}"
            may_differ = self.logs.may_differ(name) or name in self.logs.trimmed
            if len(contents) != 1 and not may_differ:
                violated(44, "replicas differ", topic=topic, partition=number)

    @staticmethod
    def _check_no_others(host: ClusterBroker, here: Collection[str]) -> None:
        """Check that only logs of replicas that belong here are left (44).

        A start may have set others aside.
        """
        folders = [name for name in host.disk.list("") if host.disk.list(name)]
        left = [n for n in folders if n not in here and not n.endswith(STRAY_SUFFIX)]
        if left:
            violated(44, "logs are left over", broker=host.name, folders=left)

    def save_history(self, folder: Path) -> None:
        """Write all metadata records to a file beside the brokers' folders, for timeline."""
        lines = (json.dumps(record, sort_keys=True) + "\n" for record in self.metadata.records)
        (folder / HISTORY_FILE).write_text("".join(lines), encoding="utf-8")

    def coordinates(self, node: int, group_id: str) -> bool:
        """True if a broker is a group's coordinator, by the newest metadata."""
        number = partition_for(group_id, self._settings.group_partitions)
        held = self.metadata.partitions.get(f"{GROUP_METADATA_TOPIC}-{number}")
        return held is not None and held.leader == node

    def replicas_of(self, topic: str, number: int) -> tuple[int, ...] | None:
        """Return the brokers that have a partition; None if there is no such partition."""
        held = self.metadata.partitions.get(f"{topic}-{number}")
        return None if held is None else held.replicas

    def _content(self, broker: int, topic: str, number: int) -> bytes:
        disk, directory = self.hosts[broker].disk, f"{topic}-{number}"
        paths = [f"{directory}/{n}" for n in disk.list(directory) if n.endswith(".log")]
        return b"".join(disk.read(path, 0, disk.size_bytes(path) or 0) for path in paths)
