"""The cache of transactions by partition of `__transaction_state`, and the one way to change it.

Every change is: prepare (in `TransactionEntry`) -> append its record -> replay once that is
committed. `replay` is also what a load does with each record, so live and recovered state are the
same by construction. Durability: an append here is flushed before anything after it, since the
answer and the markers rest on it, and there may be no other replica. Only COMPLETE is not: a lost
one is written again after markers that change nothing, and every later record of the id is behind
it in the same file.

No decision about a request is taken here (source: Kafka's `TransactionStateManager`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from broker_sim.core.config import BrokerConfig
from broker_sim.core.coordinator.codec import CorruptRecord, batches_of
from broker_sim.core.coordinator.partition_writer import PartitionWriter
from broker_sim.core.coordinator.runtime import CoordinatorResult, CoordinatorRuntime, Logged
from broker_sim.core.coordinator.timers import KeyedTimers
from broker_sim.core.effects import Effects
from broker_sim.core.log import PartitionLog
from broker_sim.core.replies import Reply
from broker_sim.core.transaction.log_records import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from broker_sim.core.transaction.metadata import TransactionEntry, TransactionMetadata, plan_dead
from broker_sim.core.transaction.states import EXPIRABLE, TransactionState
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import NO_PRODUCER_EPOCH, Record
from txnlog_kafka.wire.topic_partition import TRANSACTION_STATE_TOPIC

TOMBSTONE_BATCH_BYTES = 16_384
"""Kafka's size of a batch of tombstones, so that no topic's limit is met."""
TOMBSTONE_BYTES = 32
"""Bytes that a tombstone takes beside its key, at most."""


class TransactionRecord(NamedTuple):
    """The value of a transactional id, None for its tombstone."""

    transactional_id: str
    metadata: TransactionMetadata | None


@dataclass(slots=True)
class TransactionShard:
    """State of a partition of the transaction log that this broker coordinates."""

    partition: int
    coordinator_epoch: int
    value_version: int
    """The transaction.version that records are written for."""
    entries: dict[str, TransactionEntry] = field(default_factory=dict)

    def encode(self, record: TransactionRecord, now_ms: int) -> Record:
        """Encode the record with the functions of `log_records`."""
        value = None
        if record.metadata is not None:
            value = encode_value(record.metadata, self.value_version)
        return Record(encode_key(record.transactional_id), value, now_ms)

    def decode(self, raw: Record) -> TransactionRecord | None:
        """Decode the record; None for a key of another version. Raises CorruptRecord."""
        if raw.key is None:
            raise CorruptRecord("a transaction log record has no key")
        transactional_id = decode_key(raw.key)
        if transactional_id is None:
            return None
        metadata = None if raw.value is None else decode_value(transactional_id, raw.value)
        return TransactionRecord(transactional_id, metadata)

    def replay(self, logged: Logged[TransactionRecord], effects: Effects) -> None:
        """The only place where committed state changes."""
        transactional_id, metadata = logged.record
        if metadata is None:
            self.entries.pop(transactional_id, None)
            return
        entry = self.entries.setdefault(transactional_id, TransactionEntry(metadata))
        entry.note_start(metadata, effects.now_ms, effects.monotonic_ms)
        if entry.pending is not None:
            entry.complete(metadata)
        else:
            entry.committed = metadata

    def on_loaded(self, effects: Effects) -> None:
        """Only to be traced."""
        effects.trace(
            "transaction-loaded",
            partition=self.partition,
            coordinator_epoch=self.coordinator_epoch,
            ids=len(self.entries),
        )


Found = tuple[TransactionShard, TransactionEntry]
"""Shard of a transactional id, and its entry there."""


class TransactionStateManager:
    """Owns the entries; the coordinator asks for them and says what to append."""

    def __init__(self, config: BrokerConfig, writer: PartitionWriter, timers: KeyedTimers) -> None:
        self._config = config
        self.runtime: CoordinatorRuntime[TransactionShard, TransactionRecord] = CoordinatorRuntime(
            "transaction",
            TRANSACTION_STATE_TOPIC,
            config.integer("transaction.state.log.num.partitions"),
            writer,
            self._new_shard,
            timers,
            replay_marker=None,  # no transaction writes to this topic
            flushes=config.boolean("flush.on.commit"),
        )

    def _new_shard(self, partition: int, log: PartitionLog) -> TransactionShard:
        return TransactionShard(
            partition, log.leader_epoch, self._config.integer("transaction.version")
        )

    def find(self, transactional_id: str) -> TransactionShard | ErrorCode:
        """The shard of an id, or NOT_COORDINATOR; INVALID_REQUEST for one that is too long."""
        return self.runtime.find(transactional_id, too_long=ErrorCode.INVALID_REQUEST)

    def find_entry(self, transactional_id: str) -> Found | ErrorCode:
        """An id's shard and entry, or the code that all requests about it are answered with."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        shard = self.find(transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
        entry = shard.entries.get(transactional_id)
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING if entry is None else (shard, entry)

    # ---------------------------------------------------------------- changes

    def change(
        self,
        shard: TransactionShard,
        entry: TransactionEntry,
        target: TransactionMetadata,
        reply: Reply[ErrorCode],
        effects: Effects,
    ) -> None:
        """Prepare `target` and append it; NONE is replied when it is the committed value.

        On an error, and whatever is raised before it is appended, the change is cancelled, so
        that the id is not blocked for ever.
        """

        def on_written(error: ErrorCode, effects: Effects) -> None:
            if error is not ErrorCode.NONE:
                self._cancel_entry(shard, entry)
            reply(error, effects)

        entry.prepare(target)
        is_written = False
        try:
            shard.entries.setdefault(target.transactional_id, entry)
            self.write(shard, target, on_written, effects)
            is_written = True
        finally:
            if not is_written:
                self._cancel_entry(shard, entry)

    @staticmethod
    def _cancel_entry(shard: TransactionShard, entry: TransactionEntry) -> None:
        entry.cancel()
        if entry.committed.producer_epoch == NO_PRODUCER_EPOCH:
            # It has never had a value in the log.
            shard.entries.pop(entry.committed.transactional_id, None)

    def write(
        self,
        shard: TransactionShard,
        target: TransactionMetadata,
        reply: Reply[ErrorCode],
        effects: Effects,
        *,
        flush: bool = True,
    ) -> None:
        """Append a value that is prepared. `flush`: what comes after rests on this record."""

        def on_committed(error: ErrorCode, effects: Effects) -> None:
            effects.trace(
                "transaction-state",
                transactional_id=target.transactional_id,
                state=target.state.label,
                producer_id=target.producer_id,
                producer_epoch=target.producer_epoch,
                error=error.name,
            )
            reply(error, effects)

        record = TransactionRecord(target.transactional_id, target)
        result = CoordinatorResult(records=[record], reply=on_committed, flush=flush)
        self.runtime.write(shard, result, effects)

    def ongoing(self) -> list[Found]:
        """Ongoing transactions with no transition under way."""
        return [
            (shard, entry)
            for shard in self.runtime.shards()
            for _, entry in sorted(shard.entries.items())
            if entry.pending is None and entry.committed.state is TransactionState.ONGOING
        ]

    def timed_out(self, monotonic_ms: int) -> list[Found]:
        """Return the ongoing transactions past their timeout, by the process's own clock."""
        return [
            (shard, entry)
            for shard, entry in self.ongoing()
            if entry.started_monotonic_ms is not None
            and entry.started_monotonic_ms + entry.committed.timeout_ms < monotonic_ms
        ]

    def remove_expired(self, effects: Effects) -> None:
        """Write tombstones for ids that were idle for transactional.id.expiration.ms."""
        deadline_ms = effects.now_ms - self._config.integer("transactional.id.expiration.ms")
        for shard in self.runtime.shards():
            expired = [
                transactional_id
                for transactional_id, entry in sorted(shard.entries.items())
                if entry.pending is None
                and entry.committed.state in EXPIRABLE
                and entry.committed.last_update_ms <= deadline_ms
            ]
            for batch in batches_of(expired, _tombstone_bytes, TOMBSTONE_BATCH_BYTES):
                self._expire_ids(shard, batch, effects)

    def _expire_ids(self, shard: TransactionShard, expired: list[str], effects: Effects) -> None:
        for transactional_id in expired:
            entry = shard.entries[transactional_id]
            entry.prepare(plan_dead(entry.committed))
        is_written = False
        try:
            result = CoordinatorResult(
                records=[TransactionRecord(each, None) for each in expired],
                reply=partial(self._on_expired, shard, expired),
                flush=True,
            )
            self.runtime.write(shard, result, effects)
            is_written = True
        finally:
            if not is_written:
                self._cancel_all(shard, expired)

    def _on_expired(
        self, shard: TransactionShard, expired: list[str], error: ErrorCode, effects: Effects
    ) -> None:
        # Those that are still there must not stay pending (KAFKA-7519).
        self._cancel_all(shard, expired)
        effects.trace("transactional-ids-expired", count=len(expired), error=error.name)

    @staticmethod
    def _cancel_all(shard: TransactionShard, transactional_ids: Sequence[str]) -> None:
        for transactional_id in transactional_ids:
            entry = shard.entries.get(transactional_id)
            if entry is not None:
                entry.cancel()


def _tombstone_bytes(transactional_id: str) -> int:
    return len(encode_key(transactional_id)) + TOMBSTONE_BYTES
