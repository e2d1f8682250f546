"""The groups and offsets by partition of `__consumer_offsets`, their log, and their load.

Offsets change by `replay` alone, live and at load. A group's membership is soft state as in
Kafka: the live group is ahead of its record, so its record is replayed at load only; a group's
tombstone removes it in both cases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from broker_sim.core.coordinator.codec import CorruptRecord, is_storable
from broker_sim.core.coordinator.partition_writer import PartitionWriter
from broker_sim.core.coordinator.runtime import (
    coordinator_error,
    flush_logs,
    partition_for,
)
from broker_sim.core.effects import Effects
from broker_sim.core.group.classic_group import ClassicGroup, Member
from broker_sim.core.group.config import GroupConfig
from broker_sim.core.group.log_records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from broker_sim.core.group.offsets import OffsetStore, StoredOffset
from broker_sim.core.group.states import GroupState
from broker_sim.core.log import PartitionLog
from txnlog_spark.wire.errors import ErrorCode
from txnlog_spark.wire.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    MarkerType,
    Record,
    decode_marker,
    decode_records,
    encode_batch,
)
from txnlog_spark.wire.topics import GROUP_METADATA_TOPIC, TopicPartition

RECORDS_PER_BATCH = 1000
"""Of tombstones, which need not be atomic; a commit's offsets always stay in one batch."""


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """A committed offset, or its tombstone."""

    key: OffsetKey
    value: OffsetValue | None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group's metadata, or its tombstone."""

    key: GroupKey
    value: GroupValue | None


GroupLogRecord = OffsetRecord | GroupRecord


@dataclass(slots=True)
class GroupShard:
    """One partition of `__consumer_offsets` that this broker coordinates."""

    partition: int
    groups: dict[str, ClassicGroup] = field(default_factory=dict)
    offsets: OffsetStore = field(default_factory=OffsetStore)


class GroupStateManager:
    """Owns the shards; says which one a group is in, appends and replays."""

    def __init__(self, config: GroupConfig, writer: PartitionWriter) -> None:
        self._config = config
        self._writer = writer
        self._shards: dict[int, GroupShard] = {}
        self._loading: set[int] = set()

    @property
    def is_loading(self) -> bool:
        """Whether some partition is being loaded."""
        return bool(self._loading)

    def partition_for(self, group_id: str) -> int:
        """Which partition of `__consumer_offsets` coordinates this group."""
        return partition_for(group_id, self._config.partition_count)

    def find(self, group_id: str) -> GroupShard | ErrorCode:
        """The shard of a group, or COORDINATOR_LOAD_IN_PROGRESS, or NOT_COORDINATOR.

        INVALID_GROUP_ID for one that is too long for a record.
        """
        if not is_storable(group_id):
            return ErrorCode.INVALID_GROUP_ID
        partition = self.partition_for(group_id)
        if partition in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        shard = self._shards.get(partition)
        return ErrorCode.NOT_COORDINATOR if shard is None else shard

    def shard(self, partition: int) -> GroupShard | None:
        """The shard of a partition, None when it is not loaded."""
        return self._shards.get(partition)

    def shards(self) -> Iterator[GroupShard]:
        """All shards, in order."""
        for partition in sorted(self._shards):
            yield self._shards[partition]

    # ---------------------------------------------------------------- load

    def begin_loading(self, partition: int) -> None:
        """From now on requests for this partition are answered COORDINATOR_LOAD_IN_PROGRESS."""
        self._shards.pop(partition, None)
        self._loading.add(partition)

    def load(self, partition: int, log: PartitionLog, effects: Effects) -> GroupShard | None:
        """Replay the partition's log; None when it holds what we cannot understand.

        Then the partition answers NOT_COORDINATOR: an older offset must never be given out for
        a newer one that cannot be read.
        """
        self.begin_loading(partition)
        shard = GroupShard(partition)
        try:
            for header, data in log.batches(log.log_start_offset):
                self._replay_batch(shard, header, data, effects)
        except (CorruptBatch, CorruptRecord) as error:
            self._loading.discard(partition)
            effects.trace("group-load-failed", partition=partition, error=str(error))
            return None
        self._loading.discard(partition)
        self._shards[partition] = shard
        effects.trace("group-loaded", partition=partition, groups=len(shard.groups))
        return shard

    def unload(self, partition: int) -> GroupShard | None:
        """Forget a partition; the shard is given back so that delayed answers can be sent."""
        self._loading.discard(partition)
        return self._shards.pop(partition, None)

    def _replay_batch(
        self, shard: GroupShard, header: BatchHeader, data: bytes, effects: Effects
    ) -> None:
        if header.is_control:
            marker = decode_marker(data, 0, header)
            if marker is not None:
                shard.offsets.replay_marker(
                    marker.producer_id, marker.marker_type is MarkerType.COMMIT
                )
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for raw in decode_records(data, 0, header) if header.record_count else ():
            record = _decode(raw)
            if isinstance(record, OffsetRecord):
                self.replay_offset(shard, record, raw.record_offset, producer_id, effects)
            elif isinstance(record, GroupRecord):
                _replay_group(shard, record, effects)

    def replay_offset(
        self,
        shard: GroupShard,
        record: OffsetRecord,
        record_offset: int,
        producer_id: int,
        effects: Effects,
    ) -> None:
        """The only place where offsets change, markers aside."""
        if record.value is None:
            shard.offsets.replay_tombstone(record.key)
            return
        if record.key.group_id not in shard.groups:
            # A committer that is not a member: the group is one of offsets only.
            group_id = record.key.group_id
            shard.groups[group_id] = ClassicGroup(group_id, effects.now_ms)
        stored = StoredOffset(record.value, record_offset)
        if producer_id == NO_PRODUCER_ID:
            shard.offsets.replay_commit(record.key, stored)
        else:
            shard.offsets.replay_pending(producer_id, record.key, stored)

    # ---------------------------------------------------------------- append

    def append(
        self,
        shard: GroupShard,
        records: Sequence[GroupLogRecord],
        effects: Effects,
        *,
        flush: bool,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        covered: Collection[TopicPartition] = (),
    ) -> ErrorCode:
        """Append the records as one batch and replay them; the coordinator's error otherwise.

        `flush`: the answer promises that they outlive a power loss. Transactional ones need it
        not: the decision of the transaction flushes them. `covered` are the partitions whose
        offsets these are: an offset that outlived the records before it would have its group skip
        new records that get the same offsets, so those records are made durable first.
        """
        is_transactional = producer_id != NO_PRODUCER_ID
        batch = encode_batch(
            [_encode(record, effects.now_ms) for record in records],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            # As Kafka's coordinators do; sequences are not checked for this origin.
            base_sequence=0 if is_transactional else NO_SEQUENCE,
            transactional=is_transactional,
        )
        if self._config.flush_on_commit:
            flush_logs(self._writer, covered, effects)
        outcome = self._writer.append(GROUP_METADATA_TOPIC, shard.partition, batch, effects)
        if outcome.error is not ErrorCode.NONE:
            return coordinator_error(outcome.error)
        if flush and self._config.flush_on_commit:
            flush_logs(
                self._writer, [TopicPartition(GROUP_METADATA_TOPIC, shard.partition)], effects
            )
        for delta, record in enumerate(records):
            if isinstance(record, OffsetRecord):
                self.replay_offset(shard, record, outcome.base_offset + delta, producer_id, effects)
            elif record.value is None:
                shard.groups.pop(record.key.group_id, None)
        return ErrorCode.NONE

    def append_all(
        self, shard: GroupShard, records: Sequence[GroupLogRecord], effects: Effects
    ) -> ErrorCode:
        """Append records that need not be atomic, in batches of bounded size, durably."""
        for start in range(0, len(records), RECORDS_PER_BATCH):
            part = records[start : start + RECORDS_PER_BATCH]
            error = self.append(shard, part, effects, flush=True)
            if error is not ErrorCode.NONE:
                return error
        return ErrorCode.NONE

    def append_group(self, shard: GroupShard, group: ClassicGroup, effects: Effects) -> ErrorCode:
        """Store a group's generation. Not flushed: members of a lost one join again."""
        record = GroupRecord(GroupKey(group.group_id), group_value(group))
        return self.append(shard, [record], effects, flush=False)


def group_value(group: ClassicGroup) -> GroupValue:
    """The group as it is, for its record."""
    return GroupValue(
        protocol_type=group.protocol_type or "",
        generation_id=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader,
        state_ms=NO_TIMESTAMP if group.state_ms is None else group.state_ms,
        members=tuple(
            MemberValue(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name),
                assignment=member.assignment,
            )
            for member in group.members.values()
        ),
    )


def _replay_group(shard: GroupShard, record: GroupRecord, effects: Effects) -> None:
    group_id, value = record.key.group_id, record.value
    if value is None:
        shard.groups.pop(group_id, None)
        return
    group = ClassicGroup(group_id, effects.now_ms)
    group.generation_id = value.generation_id
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    group.state_ms = None if value.state_ms == NO_TIMESTAMP else value.state_ms
    for member in value.members:
        group.add(_loaded_member(member, value.protocol), value.protocol_type)
    group.leader = value.leader if value.leader in group.members else group.leader
    group.state = GroupState.STABLE if group.members else GroupState.EMPTY
    group.previous_state = group.state
    group.refresh_subscribed_topics()
    shard.groups[group_id] = group


def _loaded_member(value: MemberValue, protocol: str | None) -> Member:
    return Member(
        member_id=value.member_id,
        group_instance_id=value.group_instance_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        session_timeout_ms=value.session_timeout_ms,
        protocols=((protocol or "", value.subscription),),
        assignment=value.assignment,
    )


def _encode(record: GroupLogRecord, now_ms: int) -> Record:
    if isinstance(record, OffsetRecord):
        value = None if record.value is None else encode_offset_value(record.value)
        return Record(encode_offset_key(record.key), value, now_ms)
    group = None if record.value is None else encode_group_value(record.value)
    return Record(encode_group_key(record.key.group_id), group, now_ms)


def _decode(raw: Record) -> GroupLogRecord | None:
    if raw.key is None:
        raise CorruptRecord("an offsets log record has no key")
    key = decode_key(raw.key)
    if isinstance(key, OffsetKey):
        return OffsetRecord(key, None if raw.value is None else decode_offset_value(raw.value))
    if isinstance(key, GroupKey):
        return GroupRecord(key, None if raw.value is None else decode_group_value(raw.value))
    return None
