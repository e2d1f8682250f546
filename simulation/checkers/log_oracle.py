"""A second witness of the logs: watches every append and says when a rule of the log is broken.

It shares no code with the broker's log but the layout of a batch. Numbers in the messages are those
of `invariants.INVARIANTS`. It also names each operation (`labels`), so that a fault can be planned
"after the second marker".

The state follows the bytes: of a partition whose files were cut, removed or replaced it is rebuilt
from the disk, and of all after a loss of power.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_sim.core.coordinator.codec import decode_fields
from broker_sim.core.effects import (
    Append,
    Delete,
    Flush,
    Rename,
    StorageOperation,
    Truncate,
    WriteFile,
)
from broker_sim.core.group.log_records import GroupKey, OffsetKey, decode_key
from broker_sim.schemas import TransactionLogValue
from simulation.checkers.batches import Batch, decode_batches
from simulation.hosts.disk import SimDisk
from simulation.violation import violated
from txnlog_kafka.wire.records import (
    BatchHeader,
    CorruptBatch,
    MarkerType,
    Record,
    increment_sequence,
)

TRANSACTION_STATES = (
    "empty", "ongoing", "prepare-commit", "prepare-abort",
    "complete-commit", "complete-abort", "dead", "prepare-epoch-fence",
)  # fmt: skip
"""By the persisted id (Kafka's TransactionState)."""

OFFSETS_DIRECTORY = "__consumer_offsets-"
COMPACTED_PREFIX = "__"
"""Prefix of the folders where compaction may leave gaps."""
REMOVED_SUFFIXES = ("-delete", "-stray")
"""Suffixes of folders that are about to be removed, or were set aside: no broker reads them."""
SWAPPED_SUFFIX = ".swap"
"""Suffix of files that are about to replace others: until they have, a part is missing."""
CLEANED_SUFFIX = ".log.cleaned"
"""Suffix of a segment that is whole, and is about to replace others."""

_VALID_PREVIOUS = {
    "empty": {"empty", "complete-commit", "complete-abort"},
    "ongoing": {"ongoing", "empty", "complete-commit", "complete-abort"},
    "prepare-commit": {"ongoing"},
    "prepare-abort": {"ongoing", "empty", "complete-commit", "complete-abort"},
    "complete-commit": {"prepare-commit"},
    "complete-abort": {"prepare-abort"},
    "dead": {"empty", "complete-commit", "complete-abort"},
    "prepare-epoch-fence": {"ongoing"},
}
_STATE_VALUE = struct.Struct(">hqhib")
"""Version, producer id, epoch, timeout, state: the head of a TransactionLogValue, v0 and v1."""


class EndedTransaction(NamedTuple):
    """A transaction with data in a partition, and its marker."""

    producer_id: int
    first_offset: int
    marker_offset: int
    is_committed: bool


@dataclass(slots=True)
class Producer:
    """State of a producer in a partition's log."""

    epoch: int
    last_sequence: int
    open_since: int | None = None
    coordinator_epoch: int = -1
    """Coordinator epoch of its last marker."""


@dataclass(slots=True)
class PartitionHistory:
    """Content of a partition's log, as far as the rules need it."""

    next_offset: int | None = None
    start_offset: int = 0
    """Offset of the first batch that was seen."""
    producers: dict[int, Producer] = field(default_factory=dict)
    ended: list[EndedTransaction] = field(default_factory=list)
    """By the offset of the marker."""
    pending: dict[int, set[str]] = field(default_factory=dict)
    """In a log of offsets: groups with offsets of a transaction without a marker, by producer."""


@dataclass(slots=True)
class _Transaction:
    """The last record of one transactional id."""

    state: str
    producer_id: int
    directory: str
    partitions: frozenset[str]
    """The folders of the partitions that it has."""


class LogOracle:
    """Watches one broker's disk."""

    def __init__(self, disk: SimDisk, initialised: Mapping[int, int] | None = None) -> None:
        """`initialised` has the highest epoch of a producer id that a client was given.

        InitProducerId gives it. The mapping grows during the run.
        """
        self.markers = {MarkerType.COMMIT: 0, MarkerType.ABORT: 0}
        """Markers that ended a transaction with data, as appended so far."""
        self._initialised = {} if initialised is None else initialised
        self._disk = disk
        self._partitions: dict[str, PartitionHistory] = {}
        self._transactions: dict[str, _Transaction] = {}
        self._live = True

    def watch(self, operation: StorageOperation) -> list[str]:
        """Follow one operation that was just done, and name it. Raises Violation."""
        match operation:
            case Flush():
                return ["flush"]
            case Append(path, position, data):
                return self._watch_append(path, position, data)
            case WriteFile():
                return []
            case Truncate(path) | Delete(path):
                self._on_changed(path)
            case Rename(path, new_path):
                if path.endswith(CLEANED_SUFFIX):
                    check_compaction(self._disk, new_path)
                if not path.endswith(SWAPPED_SUFFIX):
                    self._on_changed(path)
                self._on_changed(new_path)
        return []

    def _watch_append(self, path: str, position: int, data: bytes) -> list[str]:
        if not path.endswith(".log"):
            return []
        directory = path.rpartition("/")[0]
        batches = list(decode_batches(data))
        if sum(batch.header.size_bytes for batch in batches) != len(data):
            violated(12, "an append holds no whole batches", path=path, position=position)
        return [label for batch in batches for label in self._follow(directory, batch)]

    def _on_changed(self, path: str) -> None:
        """A file, or a partition's whole folder, is not what it was."""
        directory, _, name = path.rpartition("/")
        if not directory:
            self._rebuild((name,))
        elif name.endswith(".log"):
            names = self._disk.list(directory)
            if not any(n.endswith(SWAPPED_SUFFIX) for n in names):
                self._rebuild((directory,))

    def rebuild(self) -> None:
        """Read everything again from the disk; a torn or corrupt tail is not looked at."""
        self._rebuild(sorted({*self._partitions, *self._disk.list("")}))

    def _rebuild(self, directories: Sequence[str]) -> None:
        for directory in directories:
            self._partitions.pop(directory, None)
        self._transactions = {
            transactional_id: transaction
            for transactional_id, transaction in self._transactions.items()
            if transaction.directory not in directories
        }
        self._live = False
        markers = dict(self.markers)
        for directory in directories:
            for batch in () if directory.endswith(REMOVED_SUFFIXES) else self._read(directory):
                self._follow(directory, batch)
        self.markers = markers
        self._live = True

    def history(self, directory: str) -> PartitionHistory | None:
        """Return the history of a partition, None when nothing of it was followed."""
        return self._partitions.get(directory)

    def log_ends(self) -> dict[str, int]:
        """Return the log ends of all partitions that have a batch."""
        found = ((name, each.next_offset) for name, each in self._partitions.items())
        return {name: end for name, end in found if end is not None}

    @property
    def aborted_count(self) -> int:
        """ABORT markers that ended a transaction with data."""
        return self.markers[MarkerType.ABORT]

    def open_transactions(self) -> list[tuple[str, int, int]]:
        """(directory, producer id, first offset) of every undecided transaction with data."""
        return [
            (directory, producer_id, producer.open_since)
            for directory, partition in sorted(self._partitions.items())
            for producer_id, producer in sorted(partition.producers.items())
            if producer.open_since is not None
        ]

    def _read(self, directory: str) -> Iterator[Batch]:
        """Up to damage; what comes after it is not reached by a start either."""
        for name in self._disk.list(directory):
            if not name.endswith(".log"):
                continue
            path, read_bytes = f"{directory}/{name}", 0
            for batch in _undamaged(self._disk, path):
                read_bytes += batch.header.size_bytes
                yield batch
            if read_bytes != (self._disk.size_bytes(path) or 0):
                return

    def _may_have_gaps(self, directory: str) -> bool:
        """True if offsets may be missing before the next batch."""
        return directory.startswith(COMPACTED_PREFIX) and not self._live

    def _may_begin_with(self, directory: str) -> bool:
        """True if a producer's first batch may have any sequence: earlier batches are deleted."""
        del directory
        return False

    # ------------------------------------------------------------------ rules

    def _follow(self, directory: str, batch: Batch) -> list[str]:
        header = batch.header
        partition = self._partitions.get(directory)
        if partition is None:
            partition = PartitionHistory(start_offset=header.base_offset)
            self._partitions[directory] = partition
        expected = partition.next_offset
        is_dense = not self._may_have_gaps(directory)
        if expected is not None and is_dense and header.base_offset != expected:
            violated(2, "offsets have a gap or overlap", directory=directory,
                     base_offset=header.base_offset, expected=expected)  # fmt: skip
        partition.next_offset = header.next_offset
        if directory.startswith("__transaction_state-"):
            return self._follow_transactions(directory, batch.records)
        if header.is_control:
            return self._follow_marker(directory, partition, batch)
        if header.has_producer_id:
            self._follow_producer(directory, partition, header)
        if directory.startswith(OFFSETS_DIRECTORY):
            self._follow_offsets(directory, partition, batch)
        return ["offsets" if directory.startswith(OFFSETS_DIRECTORY) else "data"]

    def _follow_producer(
        self, directory: str, partition: PartitionHistory, header: BatchHeader
    ) -> None:
        known = partition.producers.get(header.producer_id)
        where = {"directory": directory, "header": header}
        if known is not None and header.producer_epoch < known.epoch:
            violated(15, "a fenced epoch appended data", **where)
        # A coordinator's appends all have sequence 0 and are not checked (Kafka's AppendOrigin).
        if header.base_sequence >= 0 and not directory.startswith(OFFSETS_DIRECTORY):
            same = known is not None and known.epoch == header.producer_epoch
            last = known.last_sequence if known is not None and same else -1
            is_first = known is None and self._may_begin_with(directory)
            if not is_first and header.base_sequence != increment_sequence(last, 1):
                violated(13, "sequences do not follow each other", last=last, **where)
        if known is not None and known.open_since is not None and not header.is_transactional:
            violated(23, "a plain batch inside a transaction of its producer", **where)
        since = known.open_since if known is not None else None
        if header.is_transactional and since is None:
            since = header.base_offset
            self._check_recorded(directory, header)
        epoch = known.coordinator_epoch if known is not None else -1
        partition.producers[header.producer_id] = Producer(
            header.producer_epoch, header.last_sequence, since, epoch
        )

    def _follow_offsets(self, directory: str, partition: PartitionHistory, batch: Batch) -> None:
        """A group with pending offsets does not expire (34)."""
        for record in batch.records:
            key = decode_key(record.key or b"")
            if isinstance(key, OffsetKey) and batch.header.is_transactional:
                partition.pending.setdefault(batch.header.producer_id, set()).add(key.group_id)
            if not isinstance(key, GroupKey) or record.value is not None or not self._is_judged:
                continue
            if any(key.group_id in groups for groups in partition.pending.values()):
                violated(34, "a group with pending offsets has expired", directory=directory,
                         group_id=key.group_id)  # fmt: skip

    def _follow_marker(
        self, directory: str, partition: PartitionHistory, batch: Batch
    ) -> list[str]:
        header, marker = batch.header, batch.marker
        if marker is None:
            return []
        partition.pending.pop(header.producer_id, None)
        known = partition.producers.get(header.producer_id)
        if known is not None and header.producer_epoch < known.epoch:
            violated(15, "a marker of a fenced epoch", directory=directory, header=header)
        if known is not None and marker.coordinator_epoch < known.coordinator_epoch:
            violated(17, "a marker of an older coordinator", directory=directory, marker=marker,
                     known=known.coordinator_epoch)  # fmt: skip
        self._check_decided(directory, header.producer_id, marker.marker_type)
        if known is not None and known.open_since is not None:
            self.markers[marker.marker_type] += 1
            is_committed = marker.marker_type is MarkerType.COMMIT
            if is_committed:
                self._check_effective(directory, header.producer_id, known.epoch)
            partition.ended.append(
                EndedTransaction(
                    header.producer_id, known.open_since, header.base_offset, is_committed
                )
            )
        last = -1
        if known is not None and known.epoch == header.producer_epoch:
            last = known.last_sequence
        partition.producers[header.producer_id] = Producer(
            header.producer_epoch, last, coordinator_epoch=marker.coordinator_epoch
        )
        return ["marker", f"marker-{marker.marker_type.name.lower()}"]

    def _check_decided(self, directory: str, producer_id: int, kind: MarkerType) -> None:
        """A live marker must carry the decision that is in the transaction log (19)."""
        if not self._live:
            return
        states = self.states_of(producer_id)
        if f"prepare-{kind.name.lower()}" not in states:
            violated(19, "a marker without its decision", directory=directory,
                     producer_id=producer_id, marker=kind.name, states=states)  # fmt: skip

    def _check_recorded(self, directory: str, header: BatchHeader) -> None:
        """The first data of a transaction in a partition: the coordinator has recorded it (24)."""
        if self._is_judged and directory not in self._recorded(header.producer_id):
            violated(24, "a partition has data that the transaction does not have",
                     directory=directory, header=header)  # fmt: skip

    def _check_effective(self, directory: str, producer_id: int, epoch: int) -> None:
        """Data of an epoch become visible: nobody was given a newer one before (39)."""
        newest = self._initialised.get(producer_id, -1)
        if self._is_judged and epoch < newest:
            violated(39, "what an older producer sent was committed after the newer one began",
                     directory=directory, producer_id=producer_id, epoch=epoch,
                     newest=newest)  # fmt: skip

    @property
    def _is_judged(self) -> bool:
        """True if the batch that is followed was just made, and is not a copy."""
        return self._live

    def _recorded(self, producer_id: int) -> set[str]:
        """Return the partitions of a producer's transaction, as any transaction log has them."""
        return self.partitions_of(producer_id)

    def partitions_of(self, producer_id: int) -> set[str]:
        """The folders that this disk's transaction log says a producer's transaction has."""
        held = (t for t in self._transactions.values() if t.producer_id == producer_id)
        return {partition for transaction in held for partition in transaction.partitions}

    def state_of(self, transactional_id: str) -> str | None:
        """Return the last state of a transactional id in this disk's transaction log, or None."""
        known = self._transactions.get(transactional_id)
        return None if known is None else known.state

    def states_of(self, producer_id: int) -> list[str]:
        """Return the states of a producer's transactions in this disk's transaction log."""
        return [t.state for t in self._transactions.values() if t.producer_id == producer_id]

    def _follow_transactions(self, directory: str, records: Sequence[Record]) -> list[str]:
        labels = []
        for record in records:
            key = record.key or b""
            transactional_id = key[4:].decode()
            if record.value is None:
                self._check_transition(transactional_id, "dead", -1)
                self._transactions.pop(transactional_id, None)
                labels.append("expired")
                continue
            _, producer_id, _, _, number = _STATE_VALUE.unpack_from(record.value)
            state = TRANSACTION_STATES[number]
            self._check_transition(transactional_id, state, producer_id)
            self._transactions[transactional_id] = _Transaction(
                state, producer_id, directory, _partitions_in(record.value)
            )
            labels.append(state)
        return labels

    def _check_transition(self, transactional_id: str, state: str, producer_id: int) -> None:
        known = self._transactions.get(transactional_id)
        if known is not None and known.state not in _VALID_PREVIOUS[state]:
            violated(28, "an illegal transition in the transaction log",
                     transactional_id=transactional_id, before=known.state,
                     after=state)  # fmt: skip
        if self._live and state.startswith("complete-"):
            undecided = self._undecided(producer_id)
            if undecided:
                violated(25, "COMPLETE before the last marker", undecided=undecided,
                         transactional_id=transactional_id)  # fmt: skip

    def _undecided(self, producer_id: int) -> list[str]:
        """List the partitions where a transaction of the producer is open."""
        return [where for where, found, _ in self.open_transactions() if found == producer_id]


def _undamaged(disk: SimDisk, path: str) -> Iterator[Batch]:
    """Yield a segment's batches, up to the first that a crash tore, or of which a bit flipped."""
    with contextlib.suppress(CorruptBatch):
        yield from decode_batches(disk.read(path, 0, disk.size_bytes(path) or 0))


def check_compaction(disk: SimDisk, path: str) -> None:
    """Check that compaction took a marker only when its delete horizon was set before (50).

    The segment in this file, whose name was a cleaned one's, stands for others that are still
    there. A reader that has read a transaction and not yet its marker has delete.retention.ms to
    come to it (KIP-534). Raises Violation.
    """
    directory, _, name = path.rpartition("/")
    made = [batch.header for batch in _undamaged(disk, path)]
    if not made:
        return
    kept = {header.base_offset for header in made}
    base_offset, end_offset = int(name.partition(".")[0]), made[-1].next_offset
    for other in disk.list(directory):
        if not other.endswith(".log") or not base_offset <= int(other[:-4]) < end_offset:
            continue
        for header, _, marker in _undamaged(disk, f"{directory}/{other}"):
            if marker and header.delete_horizon_ms is None and header.base_offset not in kept:
                violated(50, "a marker was compacted away at once", directory=directory,
                         offset=header.base_offset, producer_id=header.producer_id)  # fmt: skip


def _partitions_in(value: bytes) -> frozenset[str]:
    """The folders of the partitions that a TransactionLogValue names."""
    fields = decode_fields(TransactionLogValue, value)
    return frozenset(
        f"{each.topic}-{partition}"
        for each in fields.transaction_partitions or ()
        for partition in each.partition_ids
    )
