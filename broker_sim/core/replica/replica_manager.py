"""Work of the broker on its replicas: append, delete records, report changed partitions.

Kafka's `ReplicaManager`. With one replica, an append is committed as soon as it is in the log, so
the high watermark follows the log end at once. The additional work for several replicas is in
`replication`. All appends go through here, so that delayed fetches are looked at after each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.image import ClusterImage, Topic
from broker_sim.core.effects import Effects, TimerKey
from broker_sim.core.free_space import NO_FREE_SPACE, FreeSpace
from broker_sim.core.log import AppendOrigin, AppendResult, PartitionLog
from broker_sim.core.replica.changes import Changes
from broker_sim.core.replica.delayed_produce import PRODUCE_TIMER, DelayedProduces, Outcomes
from broker_sim.core.replica.log_manager import LogManager
from broker_sim.core.replica.partition import Partition
from broker_sim.core.replies import Reply
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import TransactionMarker
from txnlog_kafka.wire.topic_partition import TopicPartition

HIGH_WATERMARK = -1
"""Offset of DeleteRecords that means all committed records."""

STORAGE_FULL = AppendResult(ErrorCode.KAFKA_STORAGE_ERROR, NO_FREE_SPACE)


NOT_LEADER = AppendResult(
    ErrorCode.NOT_LEADER_OR_FOLLOWER, "Another broker leads the partition, or none."
)
TOO_FEW_IN_SYNC = AppendResult(
    ErrorCode.NOT_ENOUGH_REPLICAS, "Fewer replicas are in sync than min.insync.replicas asks for."
)
ALL_REPLICAS = -1
"""Value of acks that lets the append wait for all replicas that are in sync."""


class ReplicaManager:
    """Appends to the partitions this broker leads."""

    def __init__(
        self, config: BrokerConfig, image: ClusterImage, logs: LogManager, space: FreeSpace
    ) -> None:
        self._config = config
        self._image = image
        self._logs = logs
        self._space = space
        self._partitions: dict[TopicPartition, Partition] = {}
        """Partitions that were asked for."""
        self._flushes_transactions = config.boolean("flush.on.commit")
        self._delayed = DelayedProduces()

    def delete_topic(self, topic: Topic, effects: Effects) -> None:
        """Remove the partitions of a topic that is no longer in the image."""
        self._logs.delete(topic, effects)
        for number in range(topic.partition_count):
            name = TopicPartition(topic.name, number)
            self._end_partition(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, effects)

    # ------------------------------------------------------------------ partitions

    def partition(self, log: PartitionLog) -> Partition:
        """The replica that has this log."""
        name = log.name
        partition = self._partitions.get(name)
        if partition is None or partition.log is not log:
            partition = self._partitions[name] = Partition(log)
        return partition

    def find(self, topic: Topic, number: int) -> Partition | ErrorCode:
        """The replica of a topic's partition, a leader or not; else why it is not here."""
        log = self._logs.get(topic.name, number)
        if log is not None:
            return self.partition(log)
        elsewhere = 0 <= number < len(topic.partitions)
        return (
            ErrorCode.NOT_LEADER_OR_FOLLOWER if elsewhere else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )

    def lookup(self, topic: str, number: int) -> Partition | ErrorCode:
        """Return the partition like `find`, by the name of the topic."""
        known = self._image.topics.get(topic)
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known is None else self.find(known, number)

    def delete_partition(self, name: TopicPartition, effects: Effects) -> None:
        """A reassignment has removed this broker's replica."""
        self._logs.delete_partition(name, effects)
        self._end_partition(name, ErrorCode.NOT_LEADER_OR_FOLLOWER, effects)

    def _end_partition(self, name: TopicPartition, error: ErrorCode, effects: Effects) -> None:
        """The replica is gone: nothing that waits for it will be committed here."""
        self._logs.changes.add(name)
        partition = self._partitions.pop(name, None)
        if partition is not None:
            partition.fail(error, effects)

    def wake(self, name: TopicPartition) -> None:
        """Mark the partition as changed, so that its delayed fetches are looked at."""
        self._logs.changes.add(name)

    # ------------------------------------------------------------------ what is committed

    @property
    def lag_max_ms(self) -> int:
        """A replica that has not caught up for longer leaves the ISR."""
        return self._config.integer("replica.lag.time.max.ms")

    def is_eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """True if the broker may be in an ISR: it is up, in the epoch of its fetches (KIP-903)."""
        registered = self._image.brokers.get(broker_id)
        return registered is not None and registered.epoch == broker_epoch

    def advance(self, partition: Partition, effects: Effects) -> None:
        """Move the high watermark after a change of the log or of the followers.

        Answer the requests that waited for it, and wake readers. Do nothing where this broker is
        alone.

        Acknowledged records of a transaction rest on two replicas or on the disk. So a leader that
        is alone in the ISR flushes them, because a later commit says that all of them are there.
        """
        if self._flushes_transactions and self._rests_on_disk(partition):
            partition.log.flush(effects)
        if partition.advance(effects, self.lag_max_ms, self.is_eligible):
            self._logs.changes.committed(partition.log.name)
            partition.release(effects)
        partition.release_deleted(self._image.brokers, effects)

    @staticmethod
    def _rests_on_disk(partition: Partition) -> bool:
        leader = partition.leader
        is_alone = leader is not None and leader.is_alone_in_isr
        return is_alone and partition.log.first_unstable_offset is not None

    def when_all_committed(
        self,
        wanted: Mapping[TopicPartition, tuple[PartitionLog, int]],
        timeout_ms: int,
        reply: Reply[Outcomes],
        effects: Effects,
    ) -> None:
        """Call `reply` like `when_committed`, for appends to several partitions with a time limit.

        Partitions that are not committed by then get REQUEST_TIMED_OUT.
        """
        appends = {name: (self.partition(log), last) for name, (log, last) in wanted.items()}
        self._delayed.wait(appends, timeout_ms, reply, effects)

    def on_timer(self, key: TimerKey, effects: Effects) -> bool:
        """Handle the timer of a delayed produce request; return True if it is one."""
        if key[0] == PRODUCE_TIMER:
            self._delayed.on_timer(key, effects)
        return key[0] == PRODUCE_TIMER

    # ------------------------------------------------------------------ appending

    def allows_append(self, effects: Effects) -> bool:
        """True if logs may grow in this step."""
        return self._space.allows_append(effects)

    def append(
        self,
        log: PartitionLog,
        records: bytes,
        effects: Effects,
        *,
        origin: AppendOrigin,
        acks: int = ALL_REPLICAS,
        guard: int | None = None,
    ) -> AppendResult:
        """Append batches; where there is one replica the log commits them at once. `guard` is as
        `PartitionLog.append_as_leader` has it."""
        refused = self._refused(log, acks)
        if refused is not None:
            return refused
        if not self.allows_append(effects):
            return STORAGE_FULL
        result = log.append_as_leader(records, origin=origin, effects=effects, guard=guard)
        if result.error is ErrorCode.NONE and not result.duplicate:
            self._appended(log, effects)
        return result

    def _refused(self, log: PartitionLog, acks: int) -> AppendResult | None:
        """Why nothing may be appended here now."""
        partition = self.partition(log)
        if partition.check_leader(-1) is not ErrorCode.NONE:
            return NOT_LEADER
        if acks == ALL_REPLICAS and partition.check_enough_replicas() is not ErrorCode.NONE:
            return TOO_FEW_IN_SYNC
        return None

    def _appended(self, log: PartitionLog, effects: Effects) -> None:
        name = log.name
        self._logs.changes.appended(name)
        if log.single_replica:
            self._logs.changes.committed(name)
        self.advance(self.partition(log), effects)

    def append_marker(
        self,
        log: PartitionLog,
        marker: TransactionMarker,
        effects: Effects,
        *,
        transaction_version: int,
    ) -> AppendResult:
        """Append a marker; where there is one replica, what it decides is readable at once."""
        refused = self._refused(log, ALL_REPLICAS)
        if refused is not None:
            return refused
        result = log.append_marker(marker, effects=effects, transaction_version=transaction_version)
        if result.error is ErrorCode.NONE:
            self._appended(log, effects)
        return result

    def when_committed(
        self, log: PartitionLog, last_offset: int, reply: Reply[ErrorCode], effects: Effects
    ) -> None:
        """Call `reply` when the high watermark has passed an append of this log (acks=all).

        With one replica that is at once. UNKNOWN_TOPIC_OR_PARTITION when the topic goes before,
        otherwise as `Partition.when_committed`.
        """
        partition = self.partition(log)
        if partition.check_leader(-1) is ErrorCode.NONE:
            partition.when_committed(last_offset, reply, effects)
        else:
            reply(ErrorCode.NOT_LEADER_OR_FOLLOWER, effects)

    def advance_high_watermark(
        self, name: TopicPartition, next_offset: int, effects: Effects
    ) -> None:
        """Move the high watermark to `next_offset`; answer waiting requests, and wake readers."""
        partition = self._partitions[name]
        partition.log.advance_high_watermark(next_offset, effects)
        self._logs.changes.committed(name)
        partition.release(effects)

    def delete_records(
        self, wanted: Iterable[tuple[PartitionLog, int]], effects: Effects
    ) -> list[tuple[ErrorCode, int]]:
        """Move each log's start up to its offset (-1: the high watermark); which that is.

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
                results.append((ErrorCode.NONE, before_offset))
        if moved:
            self._logs.remove_below_starts(moved, effects)
        return results

    def when_all_deleted(
        self,
        wanted: Mapping[TopicPartition, tuple[PartitionLog, int]],
        timeout_ms: int,
        reply: Reply[Outcomes],
        effects: Effects,
    ) -> None:
        """Call `reply` when all replicas that are up begin at the offsets, or above;
        REQUEST_TIMED_OUT for those that do not in time (Kafka's `DelayedDeleteRecords`)."""
        starts = {name: (self.partition(log), start) for name, (log, start) in wanted.items()}

        def begin(
            partition: Partition, start: int, reply: Reply[ErrorCode], effects: Effects
        ) -> None:
            partition.when_deleted(start, reply)
            partition.release_deleted(self._image.brokers, effects)

        self._delayed.wait(starts, timeout_ms, reply, effects, begin)

    def low_watermark(self, log: PartitionLog) -> int:
        """No replica that is up has anything below it."""
        return self.partition(log).low_watermark(self._image.brokers)

    def take_changes(self) -> Changes:
        """Return the partitions that have changed since the last call."""
        changes, self._logs.changes = self._logs.changes, Changes()
        return changes
