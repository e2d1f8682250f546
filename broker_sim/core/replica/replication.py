"""The partitions of this broker that have several replicas: their roles, ISRs and fetchers.

A broker that is alone has none of them, and this module then does nothing. Sources: the parts of
Kafka's `ReplicaManager` that deal with leaders, followers and ISRs.
"""

from __future__ import annotations

from broker_sim.core.config import BrokerConfig
from broker_sim.core.controller.image import ClusterImage
from broker_sim.core.controller.registrations import NO_LEADER, PartitionRegistration
from broker_sim.core.effects import Effects, TimerKey
from broker_sim.core.log import PartitionLog
from broker_sim.core.peers import Peers
from broker_sim.core.replica.fetch_session import UNKNOWN, FetchSession
from broker_sim.core.replica.fetcher import (
    REPLICA_FETCH_TIMER,
    FollowerActions,
    ReplicaFetchers,
)
from broker_sim.core.replica.leader import AlterPartition, FetchPosition
from broker_sim.core.replica.log_cleaner import LogCleaner
from broker_sim.core.replica.log_manager import LogManager
from broker_sim.core.replica.replica_manager import ReplicaManager
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import HEADER_BYTES, parse_header
from txnlog_kafka.wire.topic_partition import TopicPartition

ISR_TIMER = "isr-expiration"
HIGH_WATERMARK_TIMER = "highwatermark-checkpoint"
BELOW_HIGH_WATERMARK = "truncated-below-high-watermark"
"""The kind of the trace (Kafka's ReplicaFetcherThread warns as well)."""


class Replication:
    """See the module."""

    def __init__(
        self,
        config: BrokerConfig,
        image: ClusterImage,
        logs: LogManager,
        replicas: ReplicaManager,
        peers: Peers,
        cleaner: LogCleaner,
        *,
        alter_partition: AlterPartition,
    ) -> None:
        self._alter_partition = alter_partition
        self._config = config
        self._image = image
        self._logs = logs
        self._replicas = replicas
        self._cleaner = cleaner
        actions = FollowerActions(
            self._append_batches, self._truncate_log, self._begin_at, self._take_leader_offsets
        )
        self._fetchers = ReplicaFetchers(config, image, peers, actions)
        self._led_before: dict[TopicPartition, int] = {}
        """Leader epochs in which this broker led before it started; they are over."""
        self._checks_isr = False
        self._checkpoints = False
        """The timer for the next checkpoint of the high watermarks is set."""

    def fence(
        self, name: TopicPartition, registration: PartitionRegistration, effects: Effects
    ) -> None:
        """Apply the registration; where this broker led before, it leads only in another epoch.

        It may have lost records that were not flushed, and must not write other batches with the
        same epoch.
        """
        if registration.leader == self._image.node_id:
            self._led_before[name] = registration.leader_epoch
        self.apply(name, registration, effects)

    def apply(
        self, name: TopicPartition, registration: PartitionRegistration, effects: Effects
    ) -> None:
        """The partition, whose log is here if it has a replica here, is led as this says."""
        log = self._logs.get(*name)
        if log is None:
            return
        self._schedule_checkpoint(effects)
        self._replicas.wake(name)
        partition, node_id = self._replicas.partition(log), self._image.node_id
        led_before = self._led_before.get(name, -1)
        if registration.leader == node_id and registration.leader_epoch > led_before:
            self._fetchers.forget(name)
            partition.lead(node_id, registration, effects)
            self._replicas.advance(partition, effects)
            self._schedule(effects)
            return
        partition.follow(registration, effects)
        if registration.leader in (node_id, NO_LEADER):
            self._fetchers.forget(name)
        else:
            self._fetchers.follow(log, registration.leader, registration.leader_epoch, effects)

    def delete(self, name: TopicPartition, effects: Effects) -> None:
        """Its replica is not here any more."""
        self.forget(name)
        self._replicas.delete_partition(name, effects)

    def forget(self, name: TopicPartition) -> None:
        """Its topic is gone."""
        self._fetchers.forget(name)
        self._led_before.pop(name, None)

    def on_timer(self, key: TimerKey, effects: Effects) -> bool:
        """Handle the timer; return True if it belongs to this module."""
        if key[0] == REPLICA_FETCH_TIMER:
            self._fetchers.on_timer(key, effects)
        elif key[0] == ISR_TIMER:
            self._checks_isr = False
            self._check_isrs(effects)
        elif key[0] == HIGH_WATERMARK_TIMER:
            self._checkpoints = False
            self._logs.checkpoint_high_watermarks(effects)
            self._schedule_checkpoint(effects)
        return key[0] in (REPLICA_FETCH_TIMER, ISR_TIMER, HIGH_WATERMARK_TIMER)

    # ------------------------------------------------------------------ the leader

    def on_fetch(
        self,
        name: TopicPartition,
        replica: tuple[int, int],
        at: FetchPosition,
        session: FetchSession | None,
        effects: Effects,
    ) -> None:
        """A follower, by id and broker epoch, has all below the offset that it fetches from."""
        log = self._logs.get(*name)
        partition = None if log is None else self._replicas.partition(log)
        leader = None if partition is None else partition.leader
        if partition is None or leader is None:
            return
        replica_id, broker_epoch = replica
        end_offset, now_ms = partition.log.log_end_offset, effects.monotonic_ms
        follower = leader.followers[replica_id]
        if follower.log_start_offset == UNKNOWN:
            self._replicas.wake(name)  # consumers may be sent to it
        follower.on_fetch(at, broker_epoch, end_offset, now_ms, session)
        wanted = leader.expanded_isr(
            replica_id, partition.log.high_watermark, self._replicas.is_eligible
        )
        if wanted is not None:
            partition.propose(wanted, self._alter_partition, effects)
        self._replicas.advance(partition, effects)

    def on_forgotten(self, name: TopicPartition, replica_id: int) -> None:
        """A follower's session goes on without this partition."""
        log = self._logs.get(*name)
        leader = None if log is None else self._replicas.partition(log).leader
        follower = None if leader is None else leader.followers.get(replica_id)
        if follower is not None:
            follower.forget_session()

    def _check_isrs(self, effects: Effects) -> None:
        """Propose ISRs without the replicas that lag."""
        lag_max_ms, now_ms = self._replicas.lag_max_ms, effects.monotonic_ms
        for _, log in list(self._logs.items()):
            partition = self._replicas.partition(log)
            leader = partition.leader
            if leader is None or not leader.followers:
                continue
            self._schedule(effects)
            wanted = leader.shrunk_isr(log.log_end_offset, now_ms, lag_max_ms)
            if wanted is not None:
                partition.propose(wanted, self._alter_partition, effects)
            # A replica that was waited for, that it may join, is not any more.
            self._replicas.advance(partition, effects)

    def _schedule(self, effects: Effects) -> None:
        """Kafka looks twice in replica.lag.time.max.ms."""
        if not self._checks_isr:
            self._checks_isr = True
            effects.set_timer(ISR_TIMER, after_ms=max(1, self._replicas.lag_max_ms // 2))

    def _schedule_checkpoint(self, effects: Effects) -> None:
        """From the first partition with several replicas on."""
        if not self._checkpoints:
            self._checkpoints = True
            interval_ms = self._config.integer("replica.high.watermark.checkpoint.interval.ms")
            effects.set_timer(HIGH_WATERMARK_TIMER, after_ms=interval_ms)

    # ------------------------------------------------------------------ the follower

    def _append_batches(self, log: PartitionLog, data: bytes, effects: Effects) -> ErrorCode:
        """Append the leader's next batches.

        The first batch must begin where this log ends, or above it where the leader has compacted.
        """
        name = log.name
        if not self._replicas.allows_append(effects):
            return ErrorCode.KAFKA_STORAGE_ERROR
        if len(data) < HEADER_BYTES or parse_header(data).base_offset < log.log_end_offset:
            return ErrorCode.CORRUPT_MESSAGE
        if log.config.compacts and name not in self._logs.cleaned.offsets:
            # Before the first gap: from now on recovery knows that offsets may be missing.
            self._logs.cleaned.put({name: 0}, effects)
        return log.append_as_follower(data, effects).error

    def _truncate_log(self, log: PartitionLog, offset: int, effects: Effects) -> None:
        committed = log.high_watermark
        if offset < committed:
            # After an unclean election, or where a damaged log is fetched again.
            effects.trace(BELOW_HIGH_WATERMARK, log=log.directory, offset=offset, hw=committed)
        self._prepare_truncation(log, offset, effects)
        log.truncate_to(offset, effects)
        self._replicas.wake(log.name)

    def _begin_at(self, log: PartitionLog, offset: int, effects: Effects) -> None:
        self._prepare_truncation(log, offset, effects)
        log.truncate_fully_and_start_at(offset, effects)
        self._replicas.wake(log.name)

    def _prepare_truncation(self, log: PartitionLog, offset: int, effects: Effects) -> None:
        self._cleaner.abandon(log, effects)
        self._logs.lower_checkpoints(log.name, offset, effects)

    def _take_leader_offsets(
        self, log: PartitionLog, high_watermark: int, log_start_offset: int, effects: Effects
    ) -> None:
        """The high watermark as far as this log has it, and the log start as far as that is."""
        before = log.high_watermark
        log.advance_high_watermark(high_watermark, effects)
        if log.high_watermark > before:
            self._replicas.wake(log.name)
        start_offset = min(log_start_offset, log.high_watermark)
        if log.increase_log_start(start_offset, effects):
            self._logs.remove_below_starts([log], effects)
