"""Committed offsets, and those that wait for their transaction's marker.

Rules for this file: state changes in the `replay_*` methods only, live and at load alike.

A TxnOffsetCommit's offsets are kept by producer id until the marker: COMMIT moves them to the
committed ones, ABORT drops them. Where plain and transactional commits of one partition mix, the
one later in the log wins, whatever the order of the markers: compaction keeps the last record of
a key, so any other rule would change what a load gives (source: Kafka's `OffsetMetadataManager`).
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_sim.core.group.log_records import OffsetKey, OffsetValue
from txnlog_kafka.wire.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """A value and the offset of its record in `__consumer_offsets`."""

    value: OffsetValue
    record_offset: int


GroupOffsets = dict[TopicPartition, StoredOffset]


class OffsetStore:
    """The offsets of all groups of one partition of `__consumer_offsets`."""

    def __init__(self) -> None:
        self._committed: dict[str, GroupOffsets] = {}
        self._pending: dict[int, dict[str, GroupOffsets]] = {}
        self._open_transactions: dict[str, set[int]] = {}

    def committed(self, group_id: str) -> GroupOffsets:
        """Return the committed offsets of the group, by partition. Do not change the mapping."""
        return self._committed.get(group_id, {})

    def pending(self, group_id: str) -> set[TopicPartition]:
        """Partitions with an offset that waits for a marker."""
        return {
            partition
            for producer_id in self._open_transactions.get(group_id, ())
            for partition in self._pending[producer_id].get(group_id, {})
        }

    def held(self, group_id: str) -> set[TopicPartition]:
        """Partitions with a committed or a pending offset."""
        return {*self.committed(group_id), *self.pending(group_id)}

    def has_open_transactions(self, group_id: str) -> bool:
        """True if some transaction's offsets of this group wait for its marker.

        Offsets that were deleted meanwhile do not count: their marker changes nothing
        (KAFKA-19164).
        """
        return bool(self.pending(group_id))

    def group_ids(self) -> set[str]:
        """Groups with committed or pending offsets."""
        return set(self._committed) | set(self._open_transactions)

    def replay_commit(self, key: OffsetKey, stored: StoredOffset) -> None:
        """A plain OffsetCommit's record."""
        partition = TopicPartition(key.topic, key.partition)
        self._committed.setdefault(key.group_id, {})[partition] = stored

    def replay_pending(self, producer_id: int, key: OffsetKey, stored: StoredOffset) -> None:
        """A TxnOffsetCommit's record."""
        groups = self._pending.setdefault(producer_id, {})
        groups.setdefault(key.group_id, {})[TopicPartition(key.topic, key.partition)] = stored
        self._open_transactions.setdefault(key.group_id, set()).add(producer_id)

    def replay_tombstone(self, key: OffsetKey) -> None:
        """The offset is deleted, pending ones too."""
        partition = TopicPartition(key.topic, key.partition)
        offsets = self._committed.get(key.group_id)
        if offsets is not None:
            offsets.pop(partition, None)
            if not offsets:
                del self._committed[key.group_id]
        for producer_id in self._open_transactions.get(key.group_id, ()):
            self._pending[producer_id].get(key.group_id, {}).pop(partition, None)

    def replay_marker(self, producer_id: int, committed: bool) -> int:
        """The transaction is decided. Returns how many offsets became visible.

        A marker without pending offsets is fine: it was written twice, or the transaction never
        committed an offset here.
        """
        groups = self._pending.pop(producer_id, {})
        materialised = 0
        for group_id, offsets in groups.items():
            open_transactions = self._open_transactions[group_id]
            open_transactions.discard(producer_id)
            if not open_transactions:
                del self._open_transactions[group_id]
            if committed and offsets:
                materialised += self._materialise(group_id, offsets)
        return materialised

    def _materialise(self, group_id: str, offsets: GroupOffsets) -> int:
        stored = self._committed.setdefault(group_id, {})
        count = 0
        for partition, pending in offsets.items():
            existing = stored.get(partition)
            if existing is None or pending.record_offset > existing.record_offset:
                stored[partition] = pending
                count += 1
        return count
