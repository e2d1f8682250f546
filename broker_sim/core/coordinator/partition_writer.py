"""How coordinators write: batches to their own partition, markers to those of a transaction."""

from __future__ import annotations

from collections.abc import Callable

from broker_sim.core.effects import Effects
from broker_sim.core.log import AppendOrigin, AppendResult, PartitionLog
from broker_sim.core.replica.log_manager import LogManager
from broker_sim.core.replica.replica_manager import ReplicaManager
from broker_sim.core.replies import Reply
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.records import MarkerType, TransactionMarker
from txnlog_spark.wire.topics import GROUP_METADATA_TOPIC

MarkerListener = Callable[[int, int, bool, Effects], None]
"""(partition of __consumer_offsets, producer id, committed, effects)."""


class PartitionWriter:
    """The partitions of the internal topics that this broker leads (Kafka's `PartitionWriter`)."""

    def __init__(self, logs: LogManager, replicas: ReplicaManager) -> None:
        self._logs = logs
        self._replicas = replicas

    def log(self, topic: str, partition: int) -> PartitionLog | None:
        """The partition's log, None when there is no such partition (any more)."""
        return self._logs.get(topic, partition)

    def append(self, topic: str, partition: int, records: bytes, effects: Effects) -> AppendResult:
        """Append one batch with origin COORDINATOR."""
        log = self._logs.get(topic, partition)
        if log is None:
            return AppendResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self._replicas.append(log, records, effects, origin=AppendOrigin.COORDINATOR)

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


class MarkerSender:
    """Brings markers to the leaders of their partitions, which are all on this broker."""

    def __init__(
        self, logs: LogManager, replicas: ReplicaManager, on_offsets_marker: MarkerListener
    ) -> None:
        """`on_offsets_marker` is called for each marker in a partition of `__consumer_offsets`,
        before its answer."""
        self._logs = logs
        self._replicas = replicas
        self._on_offsets_marker = on_offsets_marker

    def append_marker(
        self,
        topic: str,
        partition: int,
        marker: TransactionMarker,
        reply: Reply[ErrorCode],
        effects: Effects,
        *,
        transaction_version: int,
    ) -> None:
        """Append a marker at the partition's leader, as WriteTxnMarkers would; `reply` is called
        when it is committed.

        For a partition of `__consumer_offsets` the group coordinator has materialised or dropped
        the pending offsets before the reply. UNKNOWN_TOPIC_OR_PARTITION for a partition
        without a log means that the topic was deleted. Any other error is retried, or cancels.
        """
        log = self._logs.get(topic, partition)
        if log is None:
            reply(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, effects)
            return
        result = self._replicas.append_marker(
            log, marker, effects, transaction_version=transaction_version
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

        def on_committed(error: ErrorCode, effects: Effects) -> None:
            if error is ErrorCode.NONE and topic == GROUP_METADATA_TOPIC:
                committed = marker.marker_type is MarkerType.COMMIT
                self._on_offsets_marker(partition, marker.producer_id, committed, effects)
            reply(error, effects)

        self._replicas.when_committed(log, result.last_offset, on_committed, effects)
