"""Witnesses of the replicas: what must hold between the disks of a cluster, while it is written.

A batch is known by its partition, its first offset and its leader epoch; a partition by its folder
and the topic id that lies in it, as a topic may be deleted and created again with its name. The
broker that appends a batch first leads; all others have it from there. What is under a high
watermark that a leader has named is committed: a broker that is asked as a leader later has the
same. Rules of transactions are checked where a batch is appended first, as a replica may be behind,
and not at a leader that does not know yet that it is none any more: what it appends is never
committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from broker_sim.core.effects import Append, Flush, StorageOperation, WriteFile
from simulation.checkers.batches import Batch
from simulation.checkers.log_oracle import COMPACTED_PREFIX, LogOracle
from simulation.hosts.disk import SimDisk
from simulation.violation import violated
from txnlog_kafka.wire.records import MarkerType

_Known = tuple[int, int, int, int]
"""First offset, next offset, leader epoch and CRC of a batch: what a producer sends again to the
next leader has the same CRC, which covers neither offsets nor the epoch."""

PARTITION_METADATA = "partition.metadata"
LOG_START_TRACE = "log-start"
"""The kind of the trace: where a log begins, a client having deleted what was before."""
TEXT_BYTES_MAX = 100


def partition_name(directory: str, metadata: bytes = b"") -> str:
    """Return a partition's name: its folder, and the file there that names its topic id."""
    return f"{directory} {metadata.decode(errors='replace')}"


class ClusterState:
    """State of a cluster by its newest metadata; without a subclass there are no metadata."""

    def leader_of(self, directory: str) -> str:
        """Return the broker that leads a partition; "" if the leader is not up."""
        del directory
        return ""

    def partition_of(self, directory: str) -> str | None:
        """Return the partition that now has the name of a folder.

        That is "" for a deleted one, and None if partitions have no other names than their folders.
        """
        del directory
        return None

    def in_sync(self, directory: str) -> Sequence[str]:
        """Return the brokers in a partition's ISR, without one that has lost its records.

        The disk of such a broker has lost them, and the cluster has not noticed it yet.
        """
        del directory
        return ()

    def has_to_keep(self, broker: str, directory: str, partition: str) -> bool:
        """True if a broker must have a folder of this partition."""
        del broker, directory, partition
        return True


@dataclass(slots=True)
class ReplicaLogs:
    """Logs of all replicas together."""

    state: ClusterState = field(default_factory=ClusterState)
    """State of the cluster, by which the logs are judged."""
    trimmed: Collection[str] = ()
    """Folders of partitions whose first records a client may have deleted."""
    unsafe: Collection[str] = ()
    """Folders of partitions that may lose what is committed, as `losses` says."""
    compacts: bool = False
    """True if each replica compacts an internal topic by itself: their bytes are not compared."""
    initialised: Mapping[int, int] = field(default_factory=dict)
    """Highest epoch of each producer id that an InitProducerId was answered with."""
    oracles: dict[str, ReplicaOracle] = field(default_factory=dict)
    """Witnesses of disks by the broker's name."""
    batches: dict[tuple[str, int, int], tuple[int, int]] = field(default_factory=dict)
    """(next offset, CRC) by partition, first offset and leader epoch."""
    committed: dict[str, list[_Known]] = field(default_factory=dict)
    """Batches under the highest high watermark that was named, in their order, by partition."""
    starts: dict[str, int] = field(default_factory=dict)
    """Highest offset that a broker's log was said to begin at, by partition."""

    def is_first(self, broker: str, directory: str, batch: Batch) -> bool:
        """Note an appended batch; return True if no replica had it. Raises Violation (6)."""
        header = batch.header
        partition = self.oracles[broker].partition_in(directory)
        key = partition, header.base_offset, header.leader_epoch
        value = header.next_offset, header.crc
        known = self.batches.setdefault(key, value)
        if known != value and not self.may_differ(directory):
            violated(6, "two replicas have different batches of one offset and leader epoch",
                     broker=broker, directory=directory, base_offset=header.base_offset,
                     leader_epoch=header.leader_epoch)  # fmt: skip
        return known is value

    def may_differ(self, directory: str) -> bool:
        """True if replicas may have other bytes for the same records."""
        return self.compacts and directory.startswith(COMPACTED_PREFIX)

    def on_log_start(self, broker: str, log: str, start_offset: int) -> None:
        """Note where a broker says that its log begins now."""
        partition = self.oracles[broker].partition_in(log)
        self.starts[partition] = max(start_offset, self.starts.get(partition, 0))

    def on_high_watermark(self, broker: str, directory: str, high_watermark: int) -> None:
        """Note the batches below a leader's high watermark: they are committed.

        The leader's log is compared from where the last comparison ended. Raises Violation (8).
        """
        if self.may_differ(directory):
            return
        if directory in self.unsafe and self.state.leader_of(directory) != broker:
            return  # it does not know yet of an unclean election
        oracle = self.oracles[broker]
        done = oracle.compared.get(directory, 0)
        held = oracle.held.get(directory, [])
        if not held or (done and held[done - 1][1] >= high_watermark):
            return
        committed = self.committed.setdefault(oracle.partition_in(directory), [])
        known = len(committed)
        while done < len(held) and held[done][1] <= high_watermark:
            if done == len(committed):
                committed.append(held[done])
            elif committed[done] != held[done]:
                violated(8, "a leader has another batch than was committed", broker=broker,
                         directory=directory, found=held[done],
                         committed=committed[done])  # fmt: skip
            done += 1
        oracle.compared[directory] = done
        if len(committed) > known and self._is_present(broker, directory):
            self.check_in_sync(directory)

    def _is_present(self, broker: str, directory: str) -> bool:
        """True if a broker's folder is of the partition that now has that name."""
        partition = self.oracles[broker].partition_in(directory)
        named = self.state.partition_of(directory)
        return named is None or named == partition

    def committed_in(self, directory: str) -> list[_Known]:
        """Return the committed batches of the partition that now has the folder's name."""
        named = self.state.partition_of(directory)
        partition = partition_name(directory) if named is None else named
        return self.committed.get(partition, [])

    def check_in_sync(self, directory: str) -> None:
        """Check that every replica in the ISR has all committed batches. Raises Violation (7)."""
        committed = self.committed_in(directory)
        for name in self.state.in_sync(directory) if committed else ():
            held = self.oracles[name].held.get(directory, [])
            if committed and held[len(committed) - 1 : len(committed)] != committed[-1:]:
                violated(7, "a replica in the ISR has not what is committed", broker=name,
                         directory=directory, committed=committed[-1],
                         ends=held[-1:])  # fmt: skip

    def check_complete(self, broker: str, directories: Iterable[str]) -> None:
        """Check that all committed batches of these folders are on this disk (8)."""
        held = self.oracles[broker].held
        for directory in directories:
            committed = self.committed_in(directory)
            found = held.get(directory, [])[: len(committed)]
            if found != committed:
                violated(8, "what was committed is not on a disk", broker=broker,
                         directory=directory, committed=len(committed),
                         found=len(found))  # fmt: skip

    def epochs_of(self, directory: str, crc: int) -> set[int]:
        """Return the leader epochs in which a batch was appended to a partition of this name."""
        return {
            epoch
            for (partition, _, epoch), (_, found) in self.batches.items()
            if found == crc and partition.partition(" ")[0] == directory
        }

    def states_of(self, producer_id: int) -> list[str]:
        """Return the states of a producer's transactions in any transaction log."""
        return [state for each in self.oracles.values() for state in each.states_of(producer_id)]

    def partitions_of(self, producer_id: int) -> set[str]:
        """Return the partitions of a producer's transaction in any transaction log."""
        return {name for each in self.oracles.values() for name in each.partitions_of(producer_id)}

    def open_transactions(self) -> list[tuple[str, int, int]]:
        """Return the open transactions, as each partition's leader has them."""
        return [
            found
            for name, oracle in self.oracles.items()
            for found in oracle.open_transactions()
            if self.state.leader_of(found[0]) == name and self._is_present(name, found[0])
        ]


class ReplicaOracle(LogOracle):
    """Watches one broker's disk, as one of several that have the same partitions."""

    def __init__(self, name: str, disk: SimDisk, logs: ReplicaLogs) -> None:
        super().__init__(disk, logs.initialised)
        self.held: dict[str, list[_Known]] = {}
        """Batches of a partition, in their order, by folder."""
        self.compared: dict[str, int] = {}
        """Count of a folder's batches that are known to equal the committed batches."""
        self._name = name
        self._logs = logs
        self._partition_in: dict[str, str] = {}
        self.leads_last = False
        """True if the last batch was appended here first, by the leader."""
        logs.oracles[name] = self

    def watch(self, operation: StorageOperation) -> list[str]:
        """Watch like `LogOracle.watch`. Fails if committed batches are truncated (10)."""
        if isinstance(operation, Append | Flush):
            return super().watch(operation)
        folder, _, name = operation.path.rpartition("/")
        if isinstance(operation, WriteFile):
            self._partition_in.pop(folder, None)
            return super().watch(operation)
        directory = folder or name
        before, partition = self.held.get(directory, []), self._partition_in.get(directory, "")
        labels = super().watch(operation)
        # A whole folder goes with the partition, or where another broker has it from now on.
        if folder or self._logs.state.has_to_keep(self._name, directory, partition):
            self._check_kept(directory, partition, before)
        return labels

    def _check_kept(self, directory: str, partition: str, before: Sequence[_Known]) -> None:
        """Check that no committed batch is gone, except those that a client has deleted.

        Raises Violation (10).
        """
        after = self.held.get(directory, [])
        kept = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
                    min(len(before), len(after)))  # fmt: skip
        committed = self._logs.committed.get(partition, [])
        start_offset = self._logs.starts.get(partition, 0)
        for batch, known in zip(before[kept:], committed[kept:], strict=False):
            if batch == known and batch[1] > start_offset:
                violated(10, "what is committed was truncated", broker=self._name,
                         directory=directory, batch=batch)  # fmt: skip

    def _rebuild(self, directories: Sequence[str]) -> None:
        for directory in directories:
            self.held.pop(directory, None)
            self.compared.pop(directory, None)
            self._partition_in.pop(directory, None)
        super()._rebuild(directories)

    def _follow(self, directory: str, batch: Batch) -> list[str]:
        is_first = self._logs.is_first(self._name, directory, batch) and self._live
        self.leads_last = is_first and self._logs.state.leader_of(directory) == self._name
        labels = super()._follow(directory, batch)
        header = batch.header
        known = header.base_offset, header.next_offset, header.leader_epoch, header.crc
        held = self.held.setdefault(directory, [])
        if not held and directory in self._logs.trimmed:
            # What was deleted before this replica began, or by it, is not missing.
            committed = self._logs.committed.get(self.partition_in(directory), [])
            held += [each for each in committed if each[1] <= header.base_offset]
        held.append(known)
        return labels

    def partition_in(self, directory: str) -> str:
        """Return the partition whose log is in a folder."""
        if directory not in self._partition_in:
            named = self._disk.read(f"{directory}/{PARTITION_METADATA}", 0, TEXT_BYTES_MAX)
            self._partition_in[directory] = partition_name(directory, named)
        return self._partition_in[directory]

    def _may_begin_with(self, directory: str) -> bool:
        return directory in self._logs.trimmed or directory in self._logs.unsafe

    def _may_have_gaps(self, directory: str) -> bool:
        return super()._may_have_gaps(directory) or self._logs.may_differ(directory)

    @property
    def _is_judged(self) -> bool:
        return self.leads_last

    def _recorded(self, producer_id: int) -> set[str]:
        return self._logs.partitions_of(producer_id)

    def _check_transition(self, transactional_id: str, state: str, producer_id: int) -> None:
        # A replica of a compacted log does not see what came in between.
        if self.leads_last or not self._logs.compacts:
            super()._check_transition(transactional_id, state, producer_id)

    def _check_decided(self, directory: str, producer_id: int, kind: MarkerType) -> None:
        if directory in self._logs.unsafe:
            return  # an operator ends what hangs
        # One that comes once more, and late, finds nothing that is open.
        known = self._partitions[directory].producers.get(producer_id)
        ends = self.leads_last and known is not None and known.open_since is not None
        states = self._logs.states_of(producer_id) if ends else []
        if ends and f"prepare-{kind.name.lower()}" not in states:
            violated(19, "a marker without its decision", directory=directory,
                     producer_id=producer_id, marker=kind.name, states=states)  # fmt: skip

    def _undecided(self, producer_id: int) -> list[str]:
        if not self.leads_last:
            return []
        found = self._logs.open_transactions()
        return [
            directory for directory, open_id, _ in found
            if open_id == producer_id and directory not in self._logs.unsafe
        ]  # fmt: skip
