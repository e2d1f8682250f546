"""Coordinator writes: batches to their own partition, markers to partitions led by this broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker_sim.core.effects import Effects
from broker_sim.core.log import AppendOrigin, AppendResult, PartitionLog
from broker_sim.core.replica.log_manager import LogManager
from broker_sim.core.replica.replica_manager import ReplicaManager
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import MarkerType, TransactionMarker
from txnlog_kafka.wire.topic_partition import GROUP_METADATA_TOPIC, TopicPartition

MarkerListener = Callable[[int, int, bool, Effects], None]
"""(partition of __consumer_offsets, producer id, committed, effects)."""


@dataclass(frozen=True, slots=True)
class PartitionMarker:
    """A marker for one partition, and the version of the transaction that it ends."""

    place: TopicPartition
    marker: TransactionMarker
    transaction_version: int


class PartitionWriter:
    """The partitions of the internal topics that this broker leads (Kafka's `PartitionWriter`)."""

    def __init__(self, logs: LogManager, replicas: ReplicaManager) -> None:
        self._logs = logs
        self._replicas = replicas

    def log(self, topic: str, partition: int) -> PartitionLog | None:
        """The partition's log, None when there is no such partition (any more)."""
        return self._logs.get(topic, partition)

    def append(
        self,
        topic: str,
        partition: int,
        records: bytes,
        effects: Effects,
        *,
        guard: int | None = None,
    ) -> AppendResult:
        """Append one batch with origin COORDINATOR; `guard` of a batch that was verified."""
        log = self._logs.get(topic, partition)
        if log is None:
            return AppendResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        origin = AppendOrigin.COORDINATOR
        return self._replicas.append(log, records, effects, origin=origin, guard=guard)

    def when_committed(
        self,
        topic: str,
        partition: int,
        last_offset: int,
        reply: Reply[ErrorCode],
        effects: Effects,
    ) -> None:
        """Call `reply` when an append of this partition is committed; on an error it never is."""
        log = self._logs.get(topic, partition)
        if log is None:
            reply(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, effects)
        else:
            self._replicas.when_committed(log, last_offset, reply, effects)


class MarkerWriter:
    """Appends markers to the partitions that this broker leads: what WriteTxnMarkers does."""

    def __init__(
        self,
        replicas: ReplicaManager,
        on_offsets_marker: MarkerListener,
        is_loading: Callable[[int], bool],
    ) -> None:
        """`on_offsets_marker` is called for each marker in a partition of `__consumer_offsets`,
        before its answer; `is_loading` says whether its groups are being loaded."""
        self._replicas = replicas
        self._on_offsets_marker = on_offsets_marker
        self._is_loading = is_loading

    def append_marker(
        self, sent: PartitionMarker, reply: Reply[ErrorCode], effects: Effects
    ) -> None:
        """Append a marker; `reply` is called when it is committed.

        For a partition of `__consumer_offsets` the group coordinator has materialised or dropped
        the pending offsets before the reply; while it loads the partition it could not.
        UNKNOWN_TOPIC_OR_PARTITION: there is no such partition (any more), on no broker.
        """
        # Find the log; refuse without a leader here, or while the group coordinator loads offsets.
        (topic, partition), marker = sent.place, sent.marker
        found = self._replicas.lookup(topic, partition)
        if not isinstance(found, ErrorCode) and topic == GROUP_METADATA_TOPIC:
            found = ErrorCode.NOT_LEADER_OR_FOLLOWER if self._is_loading(partition) else found
        if isinstance(found, ErrorCode):
            reply(found, effects)
            return
        # Append the marker, unless the log refuses it.
        log = found.log
        result = self._replicas.append_marker(
            log, marker, effects, transaction_version=sent.transaction_version
        )
        effects.trace(
            "marker",
            topic=topic,
            partition=partition,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            kind=marker.marker_type.name,
            error=result.error.name,
            offset=result.base_offset,
        )
        if result.error is not ErrorCode.NONE:
            reply(result.error, effects)
            return

        # Answer when the marker is committed, after the pending offsets of the group are decided.
        def on_committed(error: ErrorCode, effects: Effects) -> None:
            if error is ErrorCode.NONE and topic == GROUP_METADATA_TOPIC:
                committed = marker.marker_type is MarkerType.COMMIT
                self._on_offsets_marker(partition, marker.producer_id, committed, effects)
            reply(error, effects)

        self._replicas.when_committed(log, result.last_offset, on_committed, effects)
