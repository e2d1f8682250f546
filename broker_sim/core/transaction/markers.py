"""From PREPARE to COMPLETE: a marker on every partition, then the record that says so.

A decision is in the log before this begins and cannot change. Every partition that refuses its
marker for now keeps only itself waiting: it is tried again by timer. Markers may be written twice
(after a crash, or an answer that was lost): the partition's producer state makes the second one
harmless. COMPLETE is appended when no partition is left, and only after the markers are durable:
a lost marker whose COMPLETE survived would never be written again.

Source: Kafka's `TransactionMarkerChannelManager` and its completion handler.
"""

from __future__ import annotations

import functools

from broker_sim.core.coordinator.partition_writer import MarkerSender, PartitionWriter
from broker_sim.core.coordinator.runtime import flush_logs
from broker_sim.core.coordinator.timers import KeyedTimers
from broker_sim.core.effects import Effects
from broker_sim.core.replies import Ask, Reply, gather
from broker_sim.core.transaction.config import TransactionConfig
from broker_sim.core.transaction.metadata import TransactionEntry, plan_complete
from broker_sim.core.transaction.state_manager import TransactionShard, TransactionStateManager
from broker_sim.core.transaction.states import PREPARED, TransactionState
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.invariants import check
from txnlog_spark.wire.records import MarkerType, TransactionMarker
from txnlog_spark.wire.topics import TopicPartition

RETRY_TIMER = ("transaction-markers",)

_CANCELS = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""Another coordinator decided meanwhile; this one must not write COMPLETE."""
_UNSUPPORTED = frozenset({ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})
_FATAL = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_REQUIRED_ACKS,
    }
)
"""No marker can be these: our own bug."""


class MarkerManager:
    """Transactions that are decided and not yet complete."""

    def __init__(
        self,
        config: TransactionConfig,
        writer: PartitionWriter,
        sender: MarkerSender,
        manager: TransactionStateManager,
        timers: KeyedTimers,
    ) -> None:
        self._config = config
        self._writer = writer
        self._sender = sender
        self._manager = manager
        self._timers = timers
        self._waiting: dict[str, TransactionShard] = {}
        self._in_flight: set[str] = set()
        """Those of them whose markers or COMPLETE record are on their way."""

    def begin(self, shard: TransactionShard, entry: TransactionEntry, effects: Effects) -> None:
        """The entry's PREPARE is committed: prepare COMPLETE and write the markers."""
        check(entry.committed.state in PREPARED, "markers without a decision")
        entry.prepare(plan_complete(entry.committed, effects.now_ms))
        entry.unmarked = set(entry.committed.partitions)
        self._waiting[entry.committed.transactional_id] = shard
        self._advance(shard, entry, effects)
        self._schedule(effects)

    def forget(self, partition: int) -> None:
        """The transaction log partition is unloaded: its new coordinator goes on."""
        for transactional_id, shard in list(self._waiting.items()):
            if shard.partition == partition:
                self._stop(transactional_id)

    def _stop(self, transactional_id: str) -> None:
        del self._waiting[transactional_id]
        self._in_flight.discard(transactional_id)

    def _retry(self, effects: Effects) -> None:
        for transactional_id in sorted(self._waiting):
            if transactional_id not in self._in_flight:
                shard = self._waiting[transactional_id]
                self._advance(shard, shard.entries[transactional_id], effects)
        self._schedule(effects)

    def _schedule(self, effects: Effects) -> None:
        if self._waiting and RETRY_TIMER not in self._timers:
            self._timers.schedule(RETRY_TIMER, self._config.marker_retry_ms, self._retry, effects)

    def _advance(self, shard: TransactionShard, entry: TransactionEntry, effects: Effects) -> None:
        self._in_flight.add(entry.committed.transactional_id)
        asks: dict[TopicPartition, Ask[ErrorCode]] = {
            partition: functools.partial(self._append_marker, shard, entry, partition)
            for partition in sorted(entry.unmarked)
        }
        gather(asks, functools.partial(self._on_markers, shard, entry), effects)

    def _on_markers(
        self,
        shard: TransactionShard,
        entry: TransactionEntry,
        errors: dict[TopicPartition, ErrorCode],
        effects: Effects,
    ) -> None:
        transactional_id = entry.committed.transactional_id
        if self._waiting.get(transactional_id) is not shard:
            return  # unloaded meanwhile
        written = [partition for partition, error in errors.items() if error is ErrorCode.NONE]
        if written and self._config.flush_on_commit:
            flush_logs(self._writer, written, effects)
        if not _CANCELS.isdisjoint(errors.values()):
            # The entry stays decided and pending, as in Kafka, until the partition moves. The
            # other partitions have their markers: nobody else would end what is open there.
            self._stop(transactional_id)
        elif not entry.unmarked:
            self._append_complete(shard, entry, effects)
        else:
            self._in_flight.discard(transactional_id)

    def _append_marker(
        self,
        shard: TransactionShard,
        entry: TransactionEntry,
        partition: TopicPartition,
        reply: Reply[ErrorCode],
        effects: Effects,
    ) -> None:
        decided = entry.committed
        commits = decided.state is TransactionState.PREPARE_COMMIT
        marker = TransactionMarker(
            producer_id=decided.producer_id,
            producer_epoch=decided.producer_epoch,
            marker_type=MarkerType.COMMIT if commits else MarkerType.ABORT,
            coordinator_epoch=shard.coordinator_epoch,
        )

        def on_marker(error: ErrorCode, effects: Effects) -> None:
            self._note(entry, partition, error, effects)
            reply(error, effects)

        self._sender.append_marker(
            *partition,
            marker,
            on_marker,
            effects,
            transaction_version=decided.client_transaction_version,
        )

    def _note(
        self, entry: TransactionEntry, partition: TopicPartition, error: ErrorCode, effects: Effects
    ) -> None:
        check(error not in _FATAL, "a marker cannot be refused so", error=error.name)
        is_deleted = (
            error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._writer.log(*partition) is None
        )
        if error is ErrorCode.NONE or error in _UNSUPPORTED or is_deleted:
            entry.unmarked.discard(partition)
        if error is not ErrorCode.NONE:
            effects.trace(
                "marker-refused",
                transactional_id=entry.committed.transactional_id,
                topic=partition[0],
                partition=partition[1],
                error=error.name,
                deleted=is_deleted,
            )

    def _append_complete(
        self, shard: TransactionShard, entry: TransactionEntry, effects: Effects
    ) -> None:
        target = entry.pending
        check(target is not None, "a decided transaction has its COMPLETE prepared")
        if target is None:
            return

        def on_complete(error: ErrorCode, effects: Effects) -> None:
            del effects
            if self._waiting.get(target.transactional_id) is not shard:
                return  # unloaded meanwhile
            if error is ErrorCode.NONE:
                self._stop(target.transactional_id)
            else:  # it stays prepared, and is tried again
                self._in_flight.discard(target.transactional_id)

        self._manager.write(shard, target, on_complete, effects, flush=False)
