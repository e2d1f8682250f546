"""History of one transaction, assembled from the log files of a broker.

The coordinator's records in `__transaction_state` are its frame: they name the producer id, the
epoch and the partitions. In each of those partitions the producer's batches lie between the marker
of its former transaction and this transaction's marker; in `__consumer_offsets` they are the
offsets of groups. Files are read as they are: records that compaction or retention removed are
missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker_sim.cli.dump_log import scan_batches
from broker_sim.cli.dump_records import GROUPS, decode_control, decode_record
from broker_sim.cli.dump_values import Damage
from broker_sim.cli.printing import write_error
from broker_sim.cli.timeline_cluster import replicas_of
from broker_sim.client.reader import plain_records
from broker_sim.core.coordinator.codec import CorruptRecord
from broker_sim.core.transaction.log_records import decode_key, decode_value
from broker_sim.core.transaction.metadata import TransactionMetadata
from broker_sim.core.transaction.states import BEGUN, COMPLETED, PREPARED, TransactionState
from txnlog_kafka.wire.records import BatchHeader
from txnlog_kafka.wire.topic_partition import (
    GROUP_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)


@dataclass(frozen=True, slots=True)
class StateRecord:
    """Record of the coordinator, and its position."""

    folder: Path
    offset: int
    leader_epoch: int
    metadata: TransactionMetadata

    @property
    def state(self) -> TransactionState:
        """State from this record on."""
        return self.metadata.state


@dataclass(frozen=True, slots=True)
class Marker:
    """Marker of a transaction in a partition's log; `kind` is COMMIT or ABORT."""

    offset: int
    timestamp: int
    producer_epoch: int
    kind: str
    leader_epoch: int
    coordinator_epoch: int
    """Leader epoch of the coordinator that decided to write it."""


@dataclass(slots=True)
class Written:
    """Batches, offsets and marker of a transaction in one partition."""

    batches: list[BatchHeader] = field(default_factory=list)
    """Batches of records, or of offsets."""
    offsets: list[tuple[str, str, int, int]] = field(default_factory=list)
    """Tuples (group, topic, partition, committed offset), of a partition of
    `__consumer_offsets`."""
    marker: Marker | None = None


@dataclass(frozen=True, slots=True)
class TransactionHistory:
    """Records of the coordinator for one transaction, in their order."""

    records: tuple[StateRecord, ...]

    def first(self, *states: TransactionState) -> StateRecord | None:
        """Return the first record in one of these states."""
        return next((r for r in self.records if r.state in states), None)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Partitions that were ever part of it."""
        return tuple(sorted({p for r in self.records for p in r.metadata.partitions}))


def find_stories(root: Path) -> dict[str, list[TransactionHistory]]:
    """Return the transactions by transactional id, oldest first. Raises OSError."""
    by_id: dict[str, list[StateRecord]] = {}
    for folder in replicas_of(root, f"**/{TRANSACTION_STATE_TOPIC}-*"):
        for header, batch in _batches(folder):
            if header.is_control:
                continue
            for record in plain_records(header, batch):
                found = _state_of(folder, header.leader_epoch, record)
                if found is not None:
                    by_id.setdefault(found.metadata.transactional_id, []).append(found)
    return {name: _split_records(records) for name, records in sorted(by_id.items())}


def _state_of(folder: Path, leader_epoch: int, record: Any) -> StateRecord | None:
    try:
        name = decode_key(record.key or b"")
        if name is None or record.value is None:
            return None
        metadata = decode_value(name, record.value)
        return StateRecord(folder, record.record_offset, leader_epoch, metadata)
    except CorruptRecord as error:
        write_error(f"{folder} at offset {record.record_offset}: {error}")
        return None


def _split_records(records: Sequence[StateRecord]) -> list[TransactionHistory]:
    stories: list[list[StateRecord]] = [[]]
    for record in records:
        before = stories[-1][-1].state if stories[-1] else None
        if before in COMPLETED or (record.state is TransactionState.EMPTY and before is not None):
            stories.append([])
        stories[-1].append(record)
    return [TransactionHistory(tuple(s)) for s in stories if any(r.state in BEGUN for r in s)]


def find_written(history: TransactionHistory, root: Path) -> Mapping[TopicPartition, Written]:
    """Return the batches, offsets and marker of each partition; empty for a partition without a
    folder."""
    own = history.records[0].folder.parent
    # Brokers of one cluster stand side by side; elsewhere only the broker of the records counts.
    where = own.parent if root in own.parents else own
    found = {}
    for name in history.partitions:
        folders = replicas_of(where, f"**/{name.topic}-{name.partition}")
        passages = [passage for folder in folders for passage in _passages(folder, history)]
        found[name] = _choose_passage(history, passages)
    return found


def _passages(folder: Path, history: TransactionHistory) -> Iterator[Written]:
    """Yield the producer id's batches, divided behind each of its markers."""
    producer_ids = {record.metadata.producer_id for record in history.records}
    open_one = Written()
    for header, batch in _batches(folder):
        if header.producer_id not in producer_ids or not header.is_transactional:
            continue
        if not header.is_control:
            open_one.batches.append(header)
            if folder.name.startswith(f"{GROUP_METADATA_TOPIC}-"):
                open_one.offsets += _offsets(header, batch)
            continue
        fields = next((decode_control(r) for r in plain_records(header, batch)), {})
        open_one.marker = Marker(
            header.base_offset,
            header.max_timestamp,
            header.producer_epoch,
            str(fields.get("endTxnMarker", "")),
            header.leader_epoch,
            int(fields.get("coordinatorEpoch", -1)),
        )
        yield open_one
        open_one = Written()
    if open_one.batches:
        yield open_one


def _offsets(header: BatchHeader, batch: bytes) -> Iterator[tuple[str, str, int, int]]:
    for record in plain_records(header, batch):
        fields = decode_record(record, GROUPS)
        key, value = fields["key"], fields["payload"]
        if isinstance(key, Mapping) and "topic" in key and isinstance(value, Mapping):
            offset = value["committed_offset"]
            yield key["group_id"], key["topic"], key["partition"], offset


def _choose_passage(history: TransactionHistory, passages: Sequence[Written]) -> Written:
    """Return the passage of this transaction: its epoch, and a marker not older than the decision.

    With transaction version 2 the decision raises the epoch; the next transaction's data has that
    epoch.
    """
    begun = history.first(TransactionState.ONGOING) or history.records[0]
    decided = history.first(*PREPARED)
    last_epoch = history.records[-1].metadata.producer_epoch
    mine = [
        passage
        for passage in passages
        if (
            passage.batches[0].producer_epoch == begun.metadata.producer_epoch
            if passage.batches
            else passage.marker is not None and passage.marker.producer_epoch == last_epoch
        )
    ]
    if decided is None:
        mine = [passage for passage in mine if passage.marker is None]
    else:
        since = decided.metadata.last_update_ms
        late = [p for p in mine if p.marker is not None and p.marker.timestamp >= since]
        mine = late or mine[-1:]
    return mine[0] if mine else Written()


def _batches(folder: Path) -> Iterator[tuple[BatchHeader, bytes]]:
    for path in sorted(folder.glob("*.log")):
        try:
            for _, header, batch in scan_batches(path):
                yield header, batch
        except Damage as damage:
            write_error(f"{path}: {damage}; what lies behind is left out")
