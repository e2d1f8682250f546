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
    """The table `brokers`: the machines of the run."""

    count: int = 1
    """Number of brokers: 1 broker alone, or 3 brokers with a registry and all replicas on each."""
    transaction_version: int | None = None
    """Feature level `transaction.version` of the brokers, 1 or 2; None to draw it from the seed."""
    group_partitions: int = 2
    """Partitions of __consumer_offsets: with 1, one broker coordinates all groups."""
    compaction: bool = False
    """True if the coordinators' logs have tiny segments, and the log cleaner works all the time."""
    small_segments: bool = False
    """True if a segment of a log holds a few batches."""
    flushes_all: bool = False
    """True if every append is flushed before it is answered, by leaders and by followers."""


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """The table `query`: the query, and the application that it runs in."""

    batches: int = 6
    """Number of batches that the input fills if each batch is half full."""
    rows_per_batch: int = 12
    """Most rows of a batch, divided by the number of the input's partitions."""
    empty_batches: float = 0.0
    """Probability per batch that it has no rows; with 0 every batch has some."""
    source_partitions: int = 2
    """Partitions of the input topic."""
    output_partitions: int = 3
    """Partitions of each output topic."""
    transaction_timeout_ms: int = 15_000
    """Milliseconds after which a coordinator aborts an open transaction of the query."""
    tasks: int = 1
    """Tasks of a batch that has at least as many rows (`minPartitions` of the source).

    A batch without rows has no tasks.
    """
    staging_files: bool = False
    """True if tasks stage in files, which all drivers of a query share and remove."""
    inline_bytes: int = 0
    """Bytes of output up to which a task attempt sends it in its commit message."""
    sinks: int = 1
    """Number of sinks per batch, 1 or 2: a function given to foreachBatch writes to two one after
    the other, each with a topic of its own."""
    leaves_out: bool = False
    """True if the function given to foreachBatch writes nothing in a batch without rows."""
    tries_again: float = 0.0
    """Probability per failed try that the function given to foreachBatch writes the batch again.

    That is in the same run, with the rows in another order. After a try that was committed the
    probability is half of this.
    """
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
    """Number of members; 0 for no group."""
    static_members: int = 0
    """Number of members with a group.instance.id: the first so many."""
    copiers: bool = False
    """True if members write what they read in transactions, together with their offsets."""
    modern: bool = False
    """True if the group is one of KIP-848, whose coordinator assigns."""
    member_fault: float = 0.0
    """Probability per step of a member that the member is killed or stands still."""


@dataclass(frozen=True, slots=True)
class OtherLoad:
    """The table `load`: other clients beside the query; all but the neighbours need a cluster."""

    neighbours: int = 0
    """Number of other applications with transactions of their own, many at the same instant."""
    neighbours_abort: bool = False
    """True if neighbours abort what they do not go on with, and begin again much later."""
    administrator: bool = False
    """True if replicas are moved, leaders elected, options changed, and partitions added."""
    passing_topic: bool = False
    """True if a topic is deleted and created again with the same name, all the time."""
    unsafe_topic: bool = False
    """True if a topic beside the query's is not flushed, and may have unclean elections."""
    pipelined: bool = False
    """True if a producer has five batches in flight (`pipelined_writer`); no broker may die."""
    group: GroupMembers = GroupMembers()

    @property
    def has_old_clients(self) -> bool:
        """True if some clients have transactions that never raise the epoch, in any version."""
        copies = self.group.copiers and self.group.members > 0
        return self.neighbours > 0 or copies or self.passing_topic or self.unsafe_topic


@dataclass(frozen=True, slots=True)
class LinkConditions:
    """The table `faults.network`: faults of single messages. A message is a request or an answer.

    TCP delivers the bytes of one connection once and in their order, so a request that comes late
    or twice meets what its client has sent since on another connection.
    """

    connection_loss: float = 0.0
    """Probability per message that its connection breaks, and the message is lost."""
    spike: float = 0.0
    """Probability per message that it is delayed by up to `spike_ms`."""
    spike_ms: int = 8_000
    """Longest delay of a message in milliseconds."""
    late: float = 0.0
    """Probability per request that its connection breaks, and the request still arrives later.

    The request arrives up to `LATE_US_MAX` after it was sent.
    """
    duplicate: float = 0.0
    """Probability per request that its connection breaks, and the request still arrives twice.

    Its bytes arrive again on a connection of their own, up to `LATE_US_MAX` later: somebody in
    between has sent them twice, or a client that did not know that they had come through.
    """


@dataclass(frozen=True, slots=True)
class DiskChances:
    """The table `faults.disk`. A tick is half a second of virtual time."""

    full: float = 0.0
    """Probability per tick that the disk of one process is full for a while."""
    flush_failure: float = 0.0
    """Probability per flush that it fails, which ends the process."""


@dataclass(frozen=True, slots=True)
class BrokerChances:
    """The table `faults.broker`."""

    crash: float = 0.0
    """Probability per storage operation, and between two answers, that a broker dies."""
    power_loss: float = 0.0
    """Probability per crash that the machine loses power, and the bytes that were not flushed."""
    clock_jump: float = 0.0
    """Probability per start of a process that its wall clock jumps by up to an hour, either way.

    In a cluster a clock also jumps with a tenth of this probability per tick of `ClusterChances`.
    """


@dataclass(frozen=True, slots=True)
class ClusterChances:
    """The table `faults.cluster`. A tick is half a second of virtual time.

    Some records of a coordinator are followed by one more tick, while the transaction is in a state
    that does not last. A machine may lose its disk, or bits of its logs, only while all other
    replicas are in sync: those faults are more likely at such a tick.
    """

    registry_crash: float = 0.0
    """Probability per storage operation of the registry, and between two answers, that it dies."""
    pause: float = 0.0
    """Probability per tick that a broker or the registry stands still for up to 8 seconds."""
    clean_stop: float = 0.0
    """Probability per tick that a broker hands over what it leads, and stops for a while."""
    blackout: float = 0.0
    """Probability per tick that all machines lose power; only where `flushes_all`."""
    disk_loss: float = 0.0
    """Probability per tick that a broker's machine loses power, and all of its disk."""
    bit_flip: float = 0.0
    """Probability per death of a broker that a bit of its files flips.

    A tenth of it is the probability per tick that a broker dies so that a bit of a log flips.
    """
    clock_drift: float = 0.0
    """Probability per tick that the clocks of a machine go at other rates, for a while."""
    partition: float = 0.0
    """Probability per tick that a process of the cluster and others do not hear each other."""
    isolation: float = 0.0
    """Probability per tick that the coordinator of the query's progress hears only clients."""
    client_partition: float = 0.0
    """Probability per tick that a client and one or all brokers do not hear each other."""
    clog: float = 0.0
    """Probability per tick that up to six links hold back their messages, for a while."""
    flapping: bool = False
    """True if two brokers cannot hear each other again and again, and ISR proposals are late."""
    lonely_leader: bool = False
    """True if the leader of the unsafe topic is left by the others and dies, again and again."""


@dataclass(frozen=True, slots=True)
class DriverChances:
    """The table `faults.driver`: a driver, its machine, and the store of its checkpoint.

    A step is a failpoint of the commit protocol, or a file that the driver reads or writes.
    """

    kill: float = 0.0
    """Probability per step that the driver is killed, and the query started again."""
    pause: float = 0.0
    """Probability per step that the driver stands still, while another driver takes over.

    When it goes on, it is a zombie.
    """
    pause_ms: int = 40_000
    """Longest time that a driver stands still, in milliseconds."""
    power_loss: float = 0.0
    """Probability per killed driver that its machine loses power.

    The checkpoints' files that were not flushed suffer.
    """
    unflushed_logs: float = 0.0
    """Probability per loss of power that it takes the newest files of Spark's logs, which Spark
    never flushes; entries of the offset log that the sink has flushed stay."""
    clock: float = 0.0
    """Probability per failpoint that a clock of the driver's machine goes wrong.

    Half of the faults are other rates of the clocks, by which the driver waits. The others are
    jumps of the wall clock, from which records without a time of their own have theirs.
    """
    store_failure: float = 0.0
    """Probability per file of the checkpoint that is read or written that the store fails."""
    store_ms: int = 20
    """Longest time that a file operation takes, in milliseconds."""


@dataclass(frozen=True, slots=True)
class WorkerChances:
    """The table `faults.worker`: the Python worker that commits a batch."""

    loss: float = 0.0
    """Probability per commit that the worker is a new process, which remembers nothing."""
    kill: float = 0.0
    """Probability per failpoint of a commit that the worker is killed; its connections close."""
    function_failure: float = 0.0
    """Probability per second sink that the function given to foreachBatch fails before it."""


@dataclass(frozen=True, slots=True)
class TaskChances:
    """The table `faults.tasks`: the tasks of a batch, and the executors that they run on."""

    failure: float = 0.0
    """Probability per attempt of a task that it fails before, while or after it stages.

    Spark then starts another attempt.
    """
    speculation: float = 0.0
    """Probability per task that two attempts run at once, and Spark takes the message of one."""
    executor_loss: float = 0.0
    """Probability per batch that an executor is lost, with the attempts that run there.

    With `staging_files`, the output that attempts have staged there is lost as well.
    """
    staged_read: float = 0.0
    """Probability per read of a staged piece that the staging server fails.

    It ends, stands still, or gives other bytes.
    """

    @property
    def are_slow(self) -> bool:
        """True if tasks take their time, because some fail or are run twice."""
        return max(self.failure, self.speculation, self.executor_loss) > 0.0


@dataclass(frozen=True, slots=True)
class OperatorChances:
    """The table `faults.operator`: what the operator of the query does to it.

    At a restart at most one thing happens. One number is drawn for all of them, in the order of
    `load.mishaps.Mishap`: the last ones are less likely if the probabilities add up to more than 1.
    """

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
    """Probability per step of a driver, until it happens once in a run, that a copy of the
    checkpoint becomes a query with a group and a transactional id of its own."""
    second_query: bool = False
    """True if another query has the same transactional id by mistake, while faults happen."""


@dataclass(frozen=True, slots=True)
class Chances:
    """The table `faults`: the probabilities of all faults that the seed draws."""

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
    """Event of the fault: a record that a storage operation appends, or `step`."""
    occurrence: int = 1
    """Number of the event at which the fault fires; the first is 1."""
    flushed: bool = False
    """True if the fault waits for the next flush after the storage operation."""
    power_loss: bool = False
    """True if the broker's machine loses power; otherwise the broker is killed."""
    down_ms: int = 500
    """Milliseconds until the broker of a run with one broker is started again."""
    step: str = ""
    """Name of the step that a driver comes to."""
    when: str = "after"
    """Side of the step at which the fault fires: `before` or `after`."""
    batch_id: int = 0
    """Batch of the step."""
    action: str = "kill"
    """Fault that fires at the step."""
    pause_ms: int = 20_000
    """Milliseconds that a driver stands still, or that a coordinator is isolated."""


@dataclass(frozen=True, slots=True)
class Expect:
    """The table `expect`: least counts that the run must show, besides the invariants."""

    skipped: int = 0
    """Batches that a driver found committed, and wrote no more."""
    fenced: int = 0
    """Drivers that stopped because another driver had fenced them."""
    aborted: int = 0
    """Abort markers that ended a transaction with data, on the broker's disk that has most."""
    restarts: int = 0
    """Restarts of the query."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Inputs of a run besides its seed. Nothing here is drawn from the seed."""

    name: str = ""
    """Name of the file, without its suffix, or of the drawn scenario."""
    description: str = ""
    """Description of the scenario, for the person who reads the file."""
    chaos_ms: int = 60_000
    """Milliseconds of virtual time that faults go on; fewer if the queries are done before."""
    brokers: BrokerSettings = BrokerSettings()
    query: QuerySettings = QuerySettings()
    load: OtherLoad = OtherLoad()
    faults: Chances = Chances()
    planned: tuple[Fault, ...] = ()
    """Faults that fire at an event which the scenario names."""
    expect: Expect = Expect()

    @property
    def may_be_copied(self) -> bool:
        """True if the checkpoint may be copied."""
        copies = any(fault.action == "copy" for fault in self.planned)
        return copies or self.faults.operator.copied > 0.0

    def values(self) -> dict[str, Any]:
        """Return the value of each field by its path, such as `faults.disk.full`."""
        return dict(_values(self, ""))

    def changed(self, values: Mapping[str, Any]) -> Scenario:
        """Return the scenario with other values of the fields at these paths."""
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
