"""What the broker does with its replicas: append, delete records, say which partitions changed.

Kafka's `ReplicaManager` with one replica a partition: an append is committed as soon as it is in
the log, so the high watermark follows the log end at once. All appends go through here, so that
delayed fetches are looked at again, whoever appended.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_sim.core.controller.image import Topic
from broker_sim.core.effects import Effects
from broker_sim.core.free_space import NO_FREE_SPACE, FreeSpace
from broker_sim.core.log import AppendOrigin, AppendResult, PartitionLog
from broker_sim.core.replica.log_manager import LogManager, name_of
from broker_sim.core.replica.partition import Partition
from broker_sim.core.replies import Reply
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.records import TransactionMarker
from txnlog_spark.wire.topics import TopicPartition

HIGH_WATERMARK = -1
"""As the offset of DeleteRecords: all that is committed."""

NO_ROOM = AppendResult(ErrorCode.KAFKA_STORAGE_ERROR, NO_FREE_SPACE)


class ReplicaManager:
    """Appends to the partitions this broker leads."""

    def __init__(self, logs: LogManager, space: FreeSpace) -> None:
        self._logs = logs
        self._space = space
        self._partitions: dict[TopicPartition, Partition] = {}
        """Those that something was waited for."""
        self._changed: set[TopicPartition] = set()
        """Partitions with something new to read, or gone, since `take_changed`."""

    def delete_topic(self, topic: Topic, effects: Effects) -> None:
        """Remove the partitions of a topic that is no longer in the image."""
        self._logs.delete(topic, effects)
        for number in range(topic.partition_count):
            name = TopicPartition(topic.name, number)
            self._changed.add(name)
            partition = self._partitions.pop(name, None)
            if partition is not None:
                partition.delete(effects)

    def append(
        self,
        log: PartitionLog,
        records: bytes,
        effects: Effects,
        *,
        origin: AppendOrigin,
    ) -> AppendResult:
        """Append batches; the log commits them, there is one replica."""
        if not self._space.allows_append(effects):
            return NO_ROOM
        result = log.append_as_leader(records, origin=origin, effects=effects)
        if result.error is ErrorCode.NONE and not result.duplicate:
            self._changed.add(name_of(log))
        return result

    def append_marker(
        self,
        log: PartitionLog,
        marker: TransactionMarker,
        effects: Effects,
        *,
        transaction_version: int,
    ) -> AppendResult:
        """Append a marker; what it decides is readable at once."""
        result = log.append_marker(marker, effects=effects, transaction_version=transaction_version)
        if result.error is ErrorCode.NONE:
            self._changed.add(name_of(log))
        return result

    def when_committed(
        self, log: PartitionLog, last_offset: int, reply: Reply[ErrorCode], effects: Effects
    ) -> None:
        """Call `reply` when the high watermark has passed an append of this log (acks=all).

        With one replica that is at once. UNKNOWN_TOPIC_OR_PARTITION when the topic goes before.
        """
        name = name_of(log)
        partition = self._partitions.get(name)
        if partition is None:
            partition = self._partitions[name] = Partition(log)
        partition.when_committed(last_offset, reply, effects)

    def advance_high_watermark(
        self, name: TopicPartition, next_offset: int, effects: Effects
    ) -> None:
        """All below `next_offset` is replicated: answer who waited for it, and wake readers."""
        partition = self._partitions[name]
        partition.log.advance_high_watermark(next_offset, effects)
        self._changed.add(name)
        partition.release(effects)

    def delete_records(
        self, wanted: Iterable[tuple[PartitionLog, int]], effects: Effects
    ) -> list[tuple[ErrorCode, int]]:
        """Move each log's start up to its offset (-1: the high watermark); the low watermarks then.

        The new starts are durable before a file goes, so that they never move back. Kafka writes
        its checkpoint once a minute; here a deletion that was answered survives any crash.
        """
        results: list[tuple[ErrorCode, int]] = []
        moved: list[PartitionLog] = []
        for log, asked_offset in wanted:
            before_offset = log.high_watermark if asked_offset == HIGH_WATERMARK else asked_offset
            if log.config.compacts and not log.config.deletes:
                results.append((ErrorCode.POLICY_VIOLATION, -1))
            elif not 0 <= before_offset <= log.high_watermark:
                results.append((ErrorCode.OFFSET_OUT_OF_RANGE, -1))
            else:
                if log.increase_log_start(before_offset, effects):
                    moved.append(log)
                results.append((ErrorCode.NONE, log.log_start_offset))
        if moved:
            # So no log ever ends below its start: if it does, one of the two is damaged.
            self._logs.flush(moved, effects)
            self._logs.keep_log_starts(moved, effects)
            for log in moved:
                log.remove_below_start(effects)
                self._changed.add(name_of(log))
        return results

    def take_changed(self) -> set[TopicPartition]:
        """Partitions that changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed
