"""What both coordinators ask of the broker: logs, appends, markers, blocks of producer ids."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker_sim.core.effects import Effects
from broker_sim.core.log import AppendOrigin, AppendResult, PartitionLog
from broker_sim.core.metadata import GROUP_METADATA_TOPIC, MetadataLog
from broker_sim.core.partitions import PartitionTable
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.records import MarkerType, TransactionMarker

if TYPE_CHECKING:
    from random import Random

MarkerListener = Callable[[int, int, bool, Effects], None]
"""(partition of __consumer_offsets, producer id, committed, effects)."""


class LocalHost:
    """The only broker: every partition is here, markers are appended at once."""

    def __init__(self, metadata: MetadataLog, partitions: PartitionTable, rng: Random) -> None:
        self._metadata = metadata
        self._rng = rng
        self._partitions = partitions
        self.on_offsets_marker: MarkerListener | None = None
        """Called for each marker in a partition of `__consumer_offsets`, before its answer."""

    def log(self, topic: str, partition: int) -> PartitionLog | None:
        """The partition's log, None when there is no such partition (any more)."""
        return self._partitions.get(topic, partition)

    def append(self, topic: str, partition: int, records: bytes, effects: Effects) -> AppendResult:
        """Append one batch with origin COORDINATOR, commit it, wake readers."""
        log = self._partitions.get(topic, partition)
        if log is None:
            return AppendResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self._partitions.append(log, records, effects, origin=AppendOrigin.COORDINATOR)

    def append_marker(
        self,
        topic: str,
        partition: int,
        marker: TransactionMarker,
        effects: Effects,
        *,
        transaction_version: int,
    ) -> ErrorCode:
        """Append a marker at the partition's leader, as WriteTxnMarkers would."""
        log = self._partitions.get(topic, partition)
        if log is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        result = self._partitions.append_marker(
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
        if result.error is ErrorCode.NONE and topic == GROUP_METADATA_TOPIC:
            self._tell_groups(partition, marker, effects)
        return result.error

    def allocate_producer_id_block(self, effects: Effects) -> tuple[int, int] | None:
        """(first id, count) of a fresh block, durable before any id of it is used.

        None when there is no free space to write that down.
        """
        if not self._partitions.has_room(effects):
            return None
        return self._metadata.allocate_producer_id_block(effects)

    def random_uuid(self) -> str:
        """A fresh random UUID as text, part of member ids."""
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    def _tell_groups(self, partition: int, marker: TransactionMarker, effects: Effects) -> None:
        if self.on_offsets_marker is not None:
            committed = marker.marker_type is MarkerType.COMMIT
            self.on_offsets_marker(partition, marker.producer_id, committed, effects)
