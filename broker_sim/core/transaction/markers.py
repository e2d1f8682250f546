"""From PREPARE to COMPLETE: a marker on every partition, then the record that says so.

A decision is in the log before this begins and cannot change. Every partition that refuses its
marker for now, or whose leader does not answer, keeps only itself waiting: it is tried again by
timer. Markers may be written twice
(after a crash, or an answer that was lost): the partition's producer state makes the second one
harmless. COMPLETE is appended when no partition is left, and only after the markers are durable:
a lost marker whose COMPLETE survived would never be written again.

Source: Kafka's `TransactionMarkerChannelManager` and its completion handler.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from broker_sim.core.config import BrokerConfig
from broker_sim.core.coordinator.marker_sender import MarkerSender
from broker_sim.core.coordinator.partition_writer import PartitionMarker, PartitionWriter
from broker_sim.core.coordinator.runtime import flush_logs
from broker_sim.core.coordinator.timers import KeyedTimers
from broker_sim.core.effects import Effects
from broker_sim.core.transaction.metadata import TransactionEntry, plan_complete
from broker_sim.core.transaction.state_manager import TransactionShard, TransactionStateManager
from broker_sim.core.transaction.states import PREPARED, TransactionState
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import check, present
from txnlog_kafka.wire.records import MarkerType, TransactionMarker
from txnlog_kafka.wire.topic_partition import TopicPartition

RETRY_TIMER = ("transaction-markers",)
MARKER_RETRY_MS = 100
"""Milliseconds until refused markers are tried once more."""

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


@dataclass(slots=True)
class _Decided:
    """Decided transaction on its way from PREPARE to COMPLETE."""

    shard: TransactionShard
    entry: TransactionEntry
    asked: set[TopicPartition] = field(default_factory=set)
    """Whose marker is on its way."""
    written: set[TopicPartition] = field(default_factory=set)
    """Whose marker is written, and perhaps not flushed."""
    is_asking: bool = False
    """More answers may come in this very step."""
    is_canceled: bool = False
    is_completing: bool = False
    """COMPLETE is appended, and not committed yet."""

    @property
    def transactional_id(self) -> str:
        return self.entry.committed.transactional_id


class MarkerManager:
    """Transactions that are decided and not yet complete."""

    def __init__(
        self,
        config: BrokerConfig,
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
        self._waiting: dict[str, _Decided] = {}

    def begin(self, shard: TransactionShard, entry: TransactionEntry, effects: Effects) -> None:
        """The entry's PREPARE is committed: prepare COMPLETE and write the markers."""
        check(entry.committed.state in PREPARED, "markers without a decision")
        entry.prepare(plan_complete(entry.committed, effects.now_ms))
        entry.unmarked = set(entry.committed.partitions)
        decided = self._waiting[entry.committed.transactional_id] = _Decided(shard, entry)
        self._advance_markers(decided, effects)
        self._schedule_retry(effects)

    def forget(self, partition: int) -> None:
        """The transaction log partition is unloaded: its new coordinator goes on."""
        for decided in list(self._waiting.values()):
            if decided.shard.partition == partition:
                self._forget_decided(decided)

    def _forget_decided(self, decided: _Decided) -> None:
        del self._waiting[decided.transactional_id]

    def _is_waiting(self, decided: _Decided) -> bool:
        """False when it was unloaded, or canceled, meanwhile."""
        return self._waiting.get(decided.transactional_id) is decided

    def _retry_markers(self, effects: Effects) -> None:
        for transactional_id in sorted(self._waiting):
            decided = self._waiting[transactional_id]
            if not decided.is_completing:
                self._advance_markers(decided, effects)
        self._schedule_retry(effects)

    def _schedule_retry(self, effects: Effects) -> None:
        if self._waiting and RETRY_TIMER not in self._timers:
            self._timers.schedule(RETRY_TIMER, MARKER_RETRY_MS, self._retry_markers, effects)

    def _advance_markers(self, decided: _Decided, effects: Effects) -> None:
        """Ask for the markers that are missing and not on their way."""
        missing = sorted(decided.entry.unmarked - decided.asked)
        decided.asked.update(missing)
        decided.is_asking = True
        for partition in missing:
            self._append_marker(decided, partition, effects)
        decided.is_asking = False
        self._complete_if_written(decided, effects)

    def _complete_if_written(self, decided: _Decided, effects: Effects) -> None:
        """Some markers are written or refused: is that all?"""
        if not self._is_waiting(decided):
            return
        if decided.written and self._config.boolean("flush.on.commit"):
            flush_logs(self._writer, decided.written, effects)
        decided.written.clear()
        if decided.is_canceled:
            # The entry stays decided and pending, as in Kafka, until the partition moves. The
            # other partitions have their markers: nobody else would end what is open there.
            self._forget_decided(decided)
        elif not decided.entry.unmarked and not decided.is_completing:
            self._append_complete(decided, effects)

    def _append_marker(
        self, decided: _Decided, partition: TopicPartition, effects: Effects
    ) -> None:
        metadata = decided.entry.committed
        commits = metadata.state is TransactionState.PREPARE_COMMIT
        marker = TransactionMarker(
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            marker_type=MarkerType.COMMIT if commits else MarkerType.ABORT,
            coordinator_epoch=decided.shard.coordinator_epoch,
        )
        what = PartitionMarker(partition, marker, metadata.client_transaction_version)
        on_marker = partial(self._on_marker, decided, partition)
        self._sender.append_marker(what, on_marker, effects)

    def _on_marker(
        self, decided: _Decided, partition: TopicPartition, error: ErrorCode, effects: Effects
    ) -> None:
        if not self._is_waiting(decided):
            return
        decided.asked.discard(partition)
        self._note_marker(decided.entry, partition, error, effects)
        if error is ErrorCode.NONE:
            decided.written.add(partition)
        decided.is_canceled |= error in _CANCELS
        if not decided.is_asking:
            self._complete_if_written(decided, effects)

    def _note_marker(
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

    def _append_complete(self, decided: _Decided, effects: Effects) -> None:
        target = present(decided.entry.pending, "a decided transaction has its COMPLETE prepared")
        decided.is_completing = True

        def on_complete(error: ErrorCode, _effects: Effects) -> None:
            if not self._is_waiting(decided):
                return
            if error is ErrorCode.NONE:
                self._forget_decided(decided)
            else:  # it stays prepared, and is tried again
                decided.is_completing = False

        self._manager.write(decided.shard, target, on_complete, effects, flush=False)
