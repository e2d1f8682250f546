"""Scenario of a simulation, declared as data (`scenarios/*.toml`).

Its groups are the tables of the file: the work of the brokers, of the query and of others, and the
probability of their faults. A part of the run that needs a group is given that group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any


class ScenarioError(ValueError):
    """A scenario that cannot be used; the text says which field of which table of which file."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The table `brokers`."""

    count: int = 1
    """1, or 3 with a registry and everything on all of them."""
    transaction_version: int | None = None
    group_partitions: int = 2
    """Partitions of __consumer_offsets: with 1, one broker coordinates all groups."""
    compaction: bool = False
    """The logs of the coordinators have tiny segments, and the log cleaner works all the time."""
    small_segments: bool = False
    """A segment holds a few batches."""
    flushes_all: bool = False
    """Every append is flushed before it is answered, by followers too."""


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """The table `query`."""

    batches: int = 6
    rows_per_batch: int = 12
    empty_batches: float = 0.0
    """Probability per batch that it has no rows; with 0 every batch has some."""
    source_partitions: int = 2
    output_partitions: int = 3
    transaction_timeout_ms: int = 15_000
    tasks: int = 1
    """Tasks of a batch, if it has so many rows (`minPartitions` of the source); 0 without rows."""
    staging_files: bool = False
    """Tasks stage in files, which all drivers of a query share and remove."""
    inline_bytes: int = 0
    """An attempt that stages at most so many bytes sends them in its commit message."""
    sinks: int = 1
    """Number of sinks per batch, 1 or 2: a function given to foreachBatch writes to two one after
    the other, each with a topic of its own."""
    leaves_out: bool = False
    """True if the function given to foreachBatch writes nothing in a batch without rows."""
    tries_again: float = 0.0
    """Per batch that has failed, or is committed: the function given to foreachBatch writes it
    again in the same run, its rows in another order."""
    state: str = ""
    """Event for which a row waits in the state of a stateful query: `windows`, the watermark is
    past it, or `timers`, its processing-time timer ends; "" for a stateless query."""
    reads_without_group: bool = False
    """True if only the writer has the group: the source then cannot know where the committed output
    ends."""
    retained_batches: int = 0
    """Number of batches whose files Spark keeps (`minBatchesToRetain`); 0 for all batches."""

    @property
    def has_function(self) -> bool:
        """True if a function given to foreachBatch writes the batches."""
        return self.sinks > 1 or self.leaves_out or self.tries_again > 0.0


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The table `load.group`: a consumer group beside the query."""

    members: int = 0
    static_members: int = 0
    """The first so many have a group.instance.id."""
    copiers: bool = False
    """They write what they read in transactions, with their offsets."""
    member_fault: float = 0.0
    """Per step of a member: it is killed, or stands still."""


@dataclass(frozen=True, slots=True)
class OtherLoad:
    """The table `load`: what others do beside the query; all but the neighbours in a cluster."""

    neighbours: int = 0
    """Other applications with transactions of their own, many at the same instant."""
    neighbours_abort: bool = False
    """They abort what they do not go on with, and begin again much later."""
    administrator: bool = False
    """Replicas are moved, leaders elected, options changed, partitions added."""
    passing_topic: bool = False
    """A topic is deleted and created again with the same name, all the time."""
    unsafe_topic: bool = False
    """A topic beside the query's is not flushed, and may have unclean elections."""
    pipelined: bool = False
    """A producer has five batches in flight (`pipelined_writer`); no broker may die."""
    group: GroupMembers = GroupMembers()

    @property
    def has_old_clients(self) -> bool:
        """True if some clients have transactions that never raise the epoch, in any version."""
        copies = self.group.copiers and self.group.members > 0
        return self.neighbours > 0 or copies or self.passing_topic or self.unsafe_topic


@dataclass(frozen=True, slots=True)
class LinkConditions:
    """The table `faults.network`: how bad it is, per message."""

    connection_loss: float = 0.0
    spike: float = 0.0
    """A delay of up to `spike_ms`."""
    spike_ms: int = 8_000
    late: float = 0.0
    """Requests whose client hears that the connection is broken, and which arrive all the same, up
    to `LATE_US_MAX` later: after what the client does then on another connection."""
    duplicate: float = 0.0
    """Requests that arrive, whose client hears that the connection is broken, and whose bytes
    arrive once more up to `LATE_US_MAX` later, on a connection of its own: somebody in between, or
    a client that writes again what it does not know to have come through, has sent them twice.
    Within one connection TCP allows no such thing."""


@dataclass(frozen=True, slots=True)
class DiskChances:
    """The table `faults.disk`."""

    full: float = 0.0
    """Per tick of `disk_faults`: a disk is full for a while."""
    flush_failure: float = 0.0
    """Per flush: it fails, and the process ends."""


@dataclass(frozen=True, slots=True)
class BrokerChances:
    """The table `faults.broker`."""

    crash: float = 0.0
    """Per storage operation."""
    power_loss: float = 0.0
    """The share of crashes that lose what was not flushed."""
    clock_jump: float = 0.0
    """Per start: the wall clock jumps by up to an hour, either way."""


@dataclass(frozen=True, slots=True)
class ClusterChances:
    """The table `faults.cluster`: per tick of `cluster_faults`, if nothing else is said."""

    registry_crash: float = 0.0
    """Per storage operation of the registry."""
    pause: float = 0.0
    """A broker or the registry stands still."""
    clean_stop: float = 0.0
    """A broker hands over what it leads, and stops."""
    blackout: float = 0.0
    """Probability per tick that all machines lose power; only where `flushes_all`."""
    disk_loss: float = 0.0
    """A broker's machine loses power, and all of its disk, while others have the same."""
    bit_flip: float = 0.0
    """Per death of a broker: a bit of its files flips."""
    clock_drift: float = 0.0
    """The clocks of a machine go faster or slower, for a while."""
    partition: float = 0.0
    """Some cannot hear each other."""
    isolation: float = 0.0
    """The coordinator of the query's progress cannot hear the cluster, only clients."""
    client_partition: float = 0.0
    """A client and brokers cannot hear each other."""
    clog: float = 0.0
    """Some links hold back what they are given, for a while."""
    flapping: bool = False
    """Two brokers cannot hear each other again and again, and proposals of ISRs are late."""
    lonely_leader: bool = False
    """The leader of the unsafe topic is left by the others and dies, again and again."""


@dataclass(frozen=True, slots=True)
class DriverChances:
    """The table `faults.driver`: per step of the commit protocol, if nothing else is said."""

    kill: float = 0.0
    pause: float = 0.0
    """The driver stops, another takes over, the first goes on as a zombie."""
    pause_ms: int = 40_000
    """At most."""
    power_loss: float = 0.0
    """Per killed driver: its whole machine loses power, and files that were not flushed suffer."""
    unflushed_logs: float = 0.0
    """Probability per loss of power that it takes the newest files of Spark's logs, which Spark
    never flushes; entries of the offset log that the sink has flushed stay."""
    clock: float = 0.0
    """The clocks of a driver's machine go faster or slower from then on, by which it waits, or its
    wall clock jumps, by which records without a time have theirs."""
    store_failure: float = 0.0
    """Per file of the checkpoint that is read or written: the store says that it failed."""
    store_ms: int = 20
    """Milliseconds that a file operation takes at most."""


@dataclass(frozen=True, slots=True)
class WorkerChances:
    """The table `faults.worker`: of the Python worker that commits a batch."""

    loss: float = 0.0
    """Per batch: it is a new one, which remembers nothing."""
    kill: float = 0.0
    """Per step of the commit; its connections close."""
    function_failure: float = 0.0
    """Per second sink: the function given to foreachBatch fails before it writes to it."""


@dataclass(frozen=True, slots=True)
class TaskChances:
    """The table `faults.tasks`."""

    failure: float = 0.0
    """Per attempt of a task: it fails before, while or after it stages; Spark starts another."""
    speculation: float = 0.0
    """Per task: two attempts run at the same time, and Spark takes the message of one of them."""
    executor_loss: float = 0.0
    """Per batch: an executor is lost, with the attempts that run there; with `staging_files` also
    with what attempts have staged there."""
    staged_read: float = 0.0
    """Per read of a staged piece: the staging server ends, stands still, or gives other bytes."""

    @property
    def are_slow(self) -> bool:
        """True if tasks take their time, because some fail or are run twice."""
        return max(self.failure, self.speculation, self.executor_loss) > 0.0


@dataclass(frozen=True, slots=True)
class OperatorChances:
    """The table `faults.operator`: what the operator of the query does to it."""

    checkpoint_lost: float = 0.0
    """Probability per restart that the checkpoint is a new, empty one, which starts from the
    group's committed offsets."""
    tail_lost: float = 0.0
    """Probability per restart that the newest one or two batches are missing from the
    checkpoint."""
    logs_lost: float = 0.0
    """Probability per restart that any number of the newest files is missing from Spark's offset
    log, its commit log and its state, from each log by itself."""
    backup_restored: float = 0.0
    """Probability per restart that the whole checkpoint is as it was at an earlier moment, perhaps
    copied while it was written to."""
    old_checkpoint: float = 0.0
    """Probability per restart that the query runs on any checkpoint so far, by mistake."""
    id_change: float = 0.0
    """Probability per restart that the query gets another transactional id."""
    topic_change: float = 0.0
    """Probability per restart that the query writes to its other topic from now on."""
    moved: float = 0.0
    """Probability per restart that the checkpoint was moved to another place."""
    copied: float = 0.0
    """Probability per step, until it happens once in a run, that a copy of the checkpoint becomes a
    query with a group and a transactional id of its own."""
    second_query: bool = False
    """Another query has the same transactional id by mistake, while faults happen."""


@dataclass(frozen=True, slots=True)
class Chances:
    """The table `faults`."""

    network: LinkConditions = LinkConditions()
    disk: DiskChances = DiskChances()
    broker: BrokerChances = BrokerChances()
    cluster: ClusterChances = ClusterChances()
    driver: DriverChances = DriverChances()
    worker: WorkerChances = WorkerChances()
    tasks: TaskChances = TaskChances()
    operator: OperatorChances = OperatorChances()


@dataclass(frozen=True, slots=True)
class Fault:
    """A planned fault, `[[planned]]`; it fires once: when `on` has happened `occurrence` times.

    `on` names a storage operation by the record that it appends: `data`, `offsets`, `marker`, or a
    state of the transaction log such as `prepare-commit`. The broker dies right after it, or after
    the next flush when `flushed`.

    `on = "step"` names a step of the commit protocol reached by a driver, `when` before or after
    it. `action` then is `kill`, `pause`, `kill-broker`, `copy` or `isolate`. `copy` copies the
    driver's checkpoint. `isolate` cuts the coordinator of the query's progress from the other
    brokers for `pause_ms`; clients still reach it.
    """

    on: str
    occurrence: int = 1
    flushed: bool = False
    power_loss: bool = False
    down_ms: int = 500
    step: str = ""
    when: str = "after"
    batch_id: int = 0
    action: str = "kill"
    pause_ms: int = 20_000


@dataclass(frozen=True, slots=True)
class Expect:
    """Least counts that the run must show besides the invariants."""

    skipped: int = 0
    fenced: int = 0
    aborted: int = 0
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """Inputs of a run besides its seed. Nothing here is drawn from the seed."""

    name: str = ""
    description: str = ""
    chaos_ms: int = 60_000
    brokers: BrokerSettings = BrokerSettings()
    query: QuerySettings = QuerySettings()
    load: OtherLoad = OtherLoad()
    faults: Chances = Chances()
    planned: tuple[Fault, ...] = ()
    expect: Expect = Expect()

    @property
    def may_be_copied(self) -> bool:
        """True if the checkpoint may be copied."""
        copies = any(fault.action == "copy" for fault in self.planned)
        return copies or self.faults.operator.copied > 0.0

    def values(self) -> dict[str, Any]:
        """The value of each field by its path, as `faults.disk.full`."""
        return dict(_values(self, ""))

    def changed(self, values: Mapping[str, Any]) -> Scenario:
        """Another one, with these values of what is at these paths."""
        made = self
        for path, value in values.items():
            made = _changed(made, path.split("."), value)
        return made


def _values(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for item in fields(group):
        value = getattr(group, item.name)
        if is_dataclass(value):
            yield from _values(value, f"{prefix}{item.name}.")
        else:
            yield prefix + item.name, value


def _changed(group: Any, path: Sequence[str], value: Any) -> Any:
    name, *rest = path
    return replace(group, **{name: _changed(getattr(group, name), rest, value) if rest else value})
