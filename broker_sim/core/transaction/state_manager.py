"""The cache of transactions by partition of `__transaction_state`, and the one way to change it.

Every change is: prepare (in `TransactionEntry`) -> append its record -> replay. `replay` is also
what a load does with each record, so live and recovered state are the same by construction.
Durability: an append here is flushed before anything after it, since the answer and the markers
rest on it (there is one replica). Only COMPLETE is not: a lost one is written again after
markers that change nothing, and every later record of the id is behind it in the same file.

No decision about a request is taken here (source: Kafka's `TransactionStateManager`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from broker_sim.core.coordinator.codec import CorruptRecord, is_storable
from broker_sim.core.coordinator.partition_writer import PartitionWriter
from broker_sim.core.coordinator.runtime import (
    coordinator_error,
    flush_logs,
    partition_for,
)
from broker_sim.core.effects import Effects
from broker_sim.core.log import PartitionLog
from broker_sim.core.transaction.config import TransactionConfig
from broker_sim.core.transaction.log_records import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from broker_sim.core.transaction.metadata import TransactionEntry, TransactionMetadata, plan_dead
from broker_sim.core.transaction.states import TransactionState
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.records import CorruptBatch, Record, decode_records, encode_batch
from txnlog_spark.wire.topics import TRANSACTION_STATE_TOPIC, TopicPartition

TOMBSTONE_BATCH_BYTES = 16_384
"""Kafka's size of a batch of tombstones; a single one may be larger."""
TOMBSTONE_BYTES = 32
"""What a tombstone takes beside its key, at most."""


@dataclass(slots=True)
class TransactionPartition:
    """One partition of the transaction log that this broker coordinates."""

    partition: int
    coordinator_epoch: int
    entries: dict[str, TransactionEntry] = field(default_factory=dict)


class TransactionStateManager:
    """Owns the entries; the coordinator asks for them and says what to append."""

    def __init__(self, config: TransactionConfig, writer: PartitionWriter) -> None:
        self._config = config
        self._writer = writer
        self._partitions: dict[int, TransactionPartition] = {}
        self._loading: set[int] = set()

    @property
    def is_loading(self) -> bool:
        """Whether some partition is being loaded."""
        return bool(self._loading)

    def partition_for(self, transactional_id: str) -> int:
        """Which partition of `__transaction_state` coordinates this id."""
        return partition_for(transactional_id, self._config.partition_count)

    def find(self, transactional_id: str) -> TransactionPartition | ErrorCode:
        """The partition of an id, or COORDINATOR_LOAD_IN_PROGRESS, or NOT_COORDINATOR.

        INVALID_REQUEST for one that is too long for a record.
        """
        if not is_storable(transactional_id):
            return ErrorCode.INVALID_REQUEST
        partition = self.partition_for(transactional_id)
        if partition in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        owned = self._partitions.get(partition)
        return ErrorCode.NOT_COORDINATOR if owned is None else owned

    def find_entry(
        self, transactional_id: str
    ) -> tuple[TransactionPartition, TransactionEntry] | ErrorCode:
        """An id's partition and entry, or the code that all requests about it are answered with."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        owned = self.find(transactional_id)
        if isinstance(owned, ErrorCode):
            return owned
        entry = owned.entries.get(transactional_id)
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING if entry is None else (owned, entry)

    def owned(self) -> Iterator[TransactionPartition]:
        """All partitions that are loaded, in order."""
        for partition in sorted(self._partitions):
            yield self._partitions[partition]

    def begin_loading(self, partition: int) -> None:
        """From now on requests for this partition are answered COORDINATOR_LOAD_IN_PROGRESS."""
        self._partitions.pop(partition, None)
        self._loading.add(partition)

    def load(
        self, partition: int, log: PartitionLog, effects: Effects
    ) -> TransactionPartition | None:
        """Replay the partition's log; None when it holds what we cannot understand.

        A log that cannot be read to its end must not be guessed at: a wrong decision would be
        for ever. Such a partition answers NOT_COORDINATOR and the trace says why.
        """
        self.begin_loading(partition)
        loaded = TransactionPartition(partition, log.leader_epoch)
        try:
            for header, data in log.batches(log.log_start_offset):
                if header.is_control or header.record_count == 0:
                    continue
                for record in decode_records(data, 0, header):
                    self._replay_record(loaded, record, effects)
        except (CorruptBatch, CorruptRecord) as error:
            self._loading.discard(partition)
            effects.trace("transaction-load-failed", partition=partition, error=str(error))
            return None
        self._loading.discard(partition)
        self._partitions[partition] = loaded
        effects.trace(
            "transaction-loaded",
            partition=partition,
            coordinator_epoch=loaded.coordinator_epoch,
            ids=len(loaded.entries),
        )
        return loaded

    def unload(self, partition: int) -> None:
        """Forget a partition whose leadership went elsewhere."""
        self._loading.discard(partition)
        self._partitions.pop(partition, None)

    def _replay_record(self, owned: TransactionPartition, record: Record, effects: Effects) -> None:
        if record.key is None:
            raise CorruptRecord("a transaction log record has no key")
        transactional_id = decode_key(record.key)
        if transactional_id is None:
            return
        metadata = None
        if record.value is not None:
            metadata = decode_value(transactional_id, record.value)
        self._replay(owned, transactional_id, metadata, effects)

    def _replay(
        self,
        owned: TransactionPartition,
        transactional_id: str,
        metadata: TransactionMetadata | None,
        effects: Effects,
    ) -> None:
        """The only place where committed state changes; None is a tombstone."""
        if metadata is None:
            owned.entries.pop(transactional_id, None)
            return
        entry = owned.entries.setdefault(transactional_id, TransactionEntry(metadata))
        entry.note_start(metadata, effects.now_ms, effects.monotonic_ms)
        if entry.pending is not None:
            entry.complete(metadata)
        else:
            entry.committed = metadata

    def append(
        self,
        owned: TransactionPartition,
        target: TransactionMetadata,
        effects: Effects,
        *,
        keep_pending: bool = False,
        flush: bool = True,
    ) -> ErrorCode:
        """Append a prepared value and replay it; the coordinator's error code otherwise.

        On an error the pending value is dropped, so that the id is not blocked for ever, unless
        `keep_pending` (the COMPLETE of a decided transaction is tried again). `flush`: something
        that comes after rests on this record.
        """
        record = Record(
            encode_key(target.transactional_id),
            encode_value(target, self._config.transaction_version),
            effects.now_ms,
        )
        error = self._append_records(owned, [record], effects, flush=flush)
        if error is ErrorCode.NONE:
            self._replay(owned, target.transactional_id, target, effects)
        elif not keep_pending:
            entry = owned.entries.get(target.transactional_id)
            if entry is not None:
                entry.cancel()
        effects.trace(
            "transaction-state",
            transactional_id=target.transactional_id,
            state=target.state.label,
            producer_id=target.producer_id,
            producer_epoch=target.producer_epoch,
            error=error.name,
        )
        return error

    def _append_records(
        self,
        owned: TransactionPartition,
        records: list[Record],
        effects: Effects,
        *,
        flush: bool = True,
    ) -> ErrorCode:
        outcome = self._writer.append(
            TRANSACTION_STATE_TOPIC, owned.partition, encode_batch(records), effects
        )
        if outcome.error is ErrorCode.NONE and flush and self._config.flush_on_commit:
            flush_logs(
                self._writer, [TopicPartition(TRANSACTION_STATE_TOPIC, owned.partition)], effects
            )
        return coordinator_error(outcome.error)

    def ongoing(self) -> list[tuple[TransactionPartition, TransactionEntry]]:
        """Ongoing transactions with no transition under way."""
        return [
            (owned, entry)
            for owned in self.owned()
            for _, entry in sorted(owned.entries.items())
            if entry.pending is None and entry.committed.state is TransactionState.ONGOING
        ]

    def timed_out(self, monotonic_ms: int) -> list[tuple[TransactionPartition, TransactionEntry]]:
        """Those of the ongoing that are past their timeout, by the process's own clock."""
        return [
            (owned, entry)
            for owned, entry in self.ongoing()
            if entry.started_monotonic_ms is not None
            and entry.started_monotonic_ms + entry.committed.timeout_ms < monotonic_ms
        ]

    def remove_expired(self, effects: Effects) -> None:
        """Write tombstones for ids that were idle for transactional.id.expiration.ms."""
        deadline_ms = effects.now_ms - self._config.id_expiration_ms
        for owned in self.owned():
            expired = [
                transactional_id
                for transactional_id, entry in sorted(owned.entries.items())
                if entry.pending is None
                and entry.committed.state.may_expire
                and entry.committed.last_update_ms <= deadline_ms
            ]
            for batch in _tombstone_batches(expired):
                self._expire(owned, batch, effects)

    def _expire(self, owned: TransactionPartition, expired: list[str], effects: Effects) -> None:
        for transactional_id in expired:
            entry = owned.entries[transactional_id]
            entry.prepare(plan_dead(entry.committed))
        records = [Record(encode_key(each), None, effects.now_ms) for each in expired]
        error = self._append_records(owned, records, effects)
        for transactional_id in expired:
            # Whether or not the append went well, the id must not stay pending (KAFKA-7519).
            owned.entries[transactional_id].cancel()
            if error is ErrorCode.NONE:
                self._replay(owned, transactional_id, None, effects)
        effects.trace("transactional-ids-expired", count=len(expired), error=error.name)


def _tombstone_batches(expired: list[str]) -> Iterator[list[str]]:
    """Groups of ids whose tombstones fit into one batch, so that no topic's limit is met."""
    batch: list[str] = []
    size_bytes = 0
    for transactional_id in expired:
        needed_bytes = len(encode_key(transactional_id)) + TOMBSTONE_BYTES
        if batch and size_bytes + needed_bytes > TOMBSTONE_BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
        batch.append(transactional_id)
        size_bytes += needed_bytes
    if batch:
        yield batch
