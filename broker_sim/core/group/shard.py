"""Shard of the group coordinator: its state for a partition of `__consumer_offsets`, and
records.

Offsets change by `replay` alone, live and at load. A group's membership is soft state as in
Kafka: the live group is ahead of its record, so its record is replayed at load only; a group's
tombstone removes it in both cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from broker_sim.core.config import BrokerConfig
from broker_sim.core.coordinator.codec import CorruptRecord, batches_of
from broker_sim.core.coordinator.partition_writer import PartitionWriter
from broker_sim.core.coordinator.runtime import CoordinatorResult, CoordinatorRuntime, Logged
from broker_sim.core.coordinator.timers import KeyedTimers
from broker_sim.core.effects import Effects
from broker_sim.core.group.classic_group import ClassicGroup, Member
from broker_sim.core.group.consumer_group import ConsumerGroup
from broker_sim.core.group.consumer_records import (
    ConsumerGroupRecord,
    RecordKind,
    decode_record,
    encode_record,
)
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
from broker_sim.core.replies import Reply, gather
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import NO_PRODUCER_ID, NO_TIMESTAMP, Record
from txnlog_kafka.wire.topic_partition import GROUP_METADATA_TOPIC

T = TypeVar("T")
TOMBSTONE_BATCH_BYTES = 500_000
"""Bytes of tombstones in one batch; a commit's offsets always stay in one batch."""
TOMBSTONE_BYTES = 20
"""Upper bound of a tombstone's bytes besides its key."""


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """A committed offset, or its tombstone."""

    key: OffsetKey
    value: OffsetValue | None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group's metadata, or its tombstone. `is_applied`: the group was replaced already, when the
    tombstone was appended."""

    key: GroupKey
    value: GroupValue | None
    is_applied: bool = False


GroupLogRecord = OffsetRecord | GroupRecord | ConsumerGroupRecord
AnyGroup = ClassicGroup | ConsumerGroup


@dataclass(slots=True)
class GroupShard:
    """State of a partition of `__consumer_offsets` that this broker coordinates."""

    partition: int
    groups: dict[str, ClassicGroup] = field(default_factory=dict)
    consumer_groups: dict[str, ConsumerGroup] = field(default_factory=dict)
    """Groups of KIP-848. A group id is in one of the two."""
    offsets: OffsetStore = field(default_factory=OffsetStore)
    is_loaded: bool = False

    def group(self, group_id: str) -> AnyGroup | None:
        """The group of either kind."""
        return self.groups.get(group_id) or self.consumer_groups.get(group_id)

    def install(self, group_id: str, group: AnyGroup | None) -> None:
        """Put a group in place of the one that has its id; None ends that one."""
        self.groups.pop(group_id, None)
        self.consumer_groups.pop(group_id, None)
        if isinstance(group, ConsumerGroup):
            self.consumer_groups[group_id] = group
        elif group is not None:
            self.groups[group_id] = group

    def encode(self, record: GroupLogRecord, now_ms: int) -> Record:
        """Encode the record with the functions of `log_records` and `consumer_records`."""
        if isinstance(record, ConsumerGroupRecord):
            return Record(*encode_record(record), now_ms)
        if isinstance(record, OffsetRecord):
            value = None if record.value is None else encode_offset_value(record.value)
            return Record(encode_offset_key(record.key), value, now_ms)
        group = None if record.value is None else encode_group_value(record.value)
        return Record(encode_group_key(record.key.group_id), group, now_ms)

    def decode(self, raw: Record) -> GroupLogRecord | None:
        """Decode the record; None for a key of another version. Raises CorruptRecord."""
        if raw.key is None:
            raise CorruptRecord("an offsets log record has no key")
        key = decode_key(raw.key)
        if isinstance(key, OffsetKey):
            return OffsetRecord(key, None if raw.value is None else decode_offset_value(raw.value))
        if isinstance(key, GroupKey):
            return GroupRecord(key, None if raw.value is None else decode_group_value(raw.value))
        return decode_record(raw.key, raw.value)

    def replay(self, logged: Logged[GroupLogRecord], effects: Effects) -> None:
        """The only place where offsets change, markers aside."""
        record, offset, producer_id = logged
        if isinstance(record, ConsumerGroupRecord):
            self._replay_consumer_group(record)
            return
        if isinstance(record, GroupRecord):
            self._replay_group(record, effects)
            return
        if record.value is None:
            self.offsets.replay_tombstone(record.key)
            return
        group_id = record.key.group_id
        if self.group(group_id) is None:
            # A committer that is not a member: the group is one of offsets only.
            self.groups[group_id] = ClassicGroup(group_id, effects.now_ms)
        stored = StoredOffset(record.value, offset)
        if producer_id == NO_PRODUCER_ID:
            self.offsets.replay_commit(record.key, stored)
        else:
            self.offsets.replay_pending(producer_id, record.key, stored)

    def replay_marker(self, producer_id: int, committed: bool) -> int:
        """The producer's pending offsets count now, or go; how many."""
        return self.offsets.replay_marker(producer_id, committed)

    def on_loaded(self, effects: Effects) -> None:
        """From now on live groups are ahead of their records."""
        self.is_loaded = True
        effects.trace("group-loaded", partition=self.partition, groups=len(self.groups))

    def _replay_group(self, record: GroupRecord, effects: Effects) -> None:
        group_id, value = record.key.group_id, record.value
        if record.is_applied:
            return
        if value is None:
            group = self.groups.get(group_id)
            if group is not None and not (self.is_loaded and group.members):
                # Members that joined while the tombstone was waiting have the group go on.
                del self.groups[group_id]
        elif not self.is_loaded:
            self.groups[group_id] = _loaded_group(group_id, value, effects)
            self.consumer_groups.pop(group_id, None)

    def _replay_consumer_group(self, record: ConsumerGroupRecord) -> None:
        """At load only: a live group was replaced when the record was appended."""
        group_id = record.group_id
        if self.is_loaded:
            return
        if record.value is None and group_id not in self.consumer_groups:
            return
        if record.kind is RecordKind.GROUP_EPOCH and record.value is None:
            del self.consumer_groups[group_id]
            return
        self.groups.pop(group_id, None)
        group = self.consumer_groups.setdefault(group_id, ConsumerGroup(group_id))
        group.apply(record)


GroupRuntime = CoordinatorRuntime[GroupShard, GroupLogRecord]


def group_runtime(
    config: BrokerConfig, writer: PartitionWriter, timers: KeyedTimers
) -> GroupRuntime:
    """The runtime of the group coordinator."""
    return CoordinatorRuntime(
        "group",
        GROUP_METADATA_TOPIC,
        config.integer("offsets.topic.num.partitions"),
        writer,
        lambda partition, _log: GroupShard(partition),
        timers,
        replay_marker=GroupShard.replay_marker,
        flushes=config.boolean("flush.on.commit"),
    )


def find_shard(
    runtime: GroupRuntime, group_id: str, *, may_be_empty: bool = True
) -> GroupShard | ErrorCode:
    """The shard of a group, or NOT_COORDINATOR; INVALID_GROUP_ID for one that is too long."""
    if not group_id and not may_be_empty:
        return ErrorCode.INVALID_GROUP_ID
    return runtime.find(group_id, too_long=ErrorCode.INVALID_GROUP_ID)


def write_all(
    runtime: GroupRuntime,
    shard: GroupShard,
    records: Sequence[GroupLogRecord],
    reply: Reply[ErrorCode],
    effects: Effects,
) -> None:
    """Append tombstones, which need not be atomic, in batches of bounded size, durably."""

    def write(part: Sequence[GroupLogRecord], reply: Reply[ErrorCode], effects: Effects) -> None:
        result = CoordinatorResult(records=part, reply=reply, flush=True)
        runtime.write(shard, result, effects)

    def on_written(errors: dict[int, ErrorCode], effects: Effects) -> None:
        failed = [error for error in errors.values() if error is not ErrorCode.NONE]
        reply(failed[0] if failed else ErrorCode.NONE, effects)

    def tombstone_bytes(record: GroupLogRecord) -> int:
        return TOMBSTONE_BYTES + len(shard.encode(record, 0).key or b"")

    # By bytes: each tombstone repeats the group id and the topic name.
    parts = enumerate(batches_of(records, tombstone_bytes, TOMBSTONE_BATCH_BYTES))
    gather({number: partial(write, part) for number, part in parts}, on_written, effects)


def answer_with(reply: Reply[T], result: T, refused: Callable[[ErrorCode], T]) -> Reply[ErrorCode]:
    """Reply with the result when the records are committed, else with an answer for the error."""

    def on_written(error: ErrorCode, effects: Effects) -> None:
        reply(result if error is ErrorCode.NONE else refused(error), effects)

    return on_written


def ignore(_error: ErrorCode, _effects: Effects) -> None:
    """The reply to records that no request waits for; a lost removal is repeated later."""


def write_group(
    runtime: GroupRuntime,
    shard: GroupShard,
    group: ClassicGroup,
    reply: Reply[ErrorCode],
    effects: Effects,
) -> None:
    """Store a group's generation. Not flushed: members of a lost one join again.

    An empty consumer group of its name ends with it.
    """
    group_id = group.group_id
    former = shard.consumer_groups.pop(group_id, None)
    records: list[GroupLogRecord] = [] if former is None else [*former.tombstones()]
    records.append(GroupRecord(GroupKey(group_id), group_value(group)))
    result = CoordinatorResult(records=records, reply=reply, flush=False)
    if not runtime.write(shard, result, effects) and former is not None:
        shard.consumer_groups[group_id] = former


def deletion(
    shard: GroupShard, group: AnyGroup, reply: Reply[ErrorCode]
) -> tuple[list[GroupLogRecord], Reply[ErrorCode]]:
    """Return the tombstones of an empty group, and the reply to give when they are written.

    A consumer group is gone at once, as a member that joins now must begin a new group behind the
    tombstones. If they cannot be written, the group is back.
    """
    if isinstance(group, ClassicGroup):
        return [GroupRecord(GroupKey(group.group_id), None)], reply
    del shard.consumer_groups[group.group_id]

    def on_written(error: ErrorCode, effects: Effects) -> None:
        if error is not ErrorCode.NONE:
            shard.consumer_groups.setdefault(group.group_id, group)
        reply(error, effects)

    return [*group.tombstones()], on_written


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


def _loaded_group(group_id: str, value: GroupValue, effects: Effects) -> ClassicGroup:
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
    return group


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
