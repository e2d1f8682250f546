"""The records of `__consumer_offsets`: OffsetCommit and GroupMetadata, key and value.

Layouts (source: Kafka's OffsetCommitKey.json, OffsetCommitValue.json, GroupMetadataKey.json,
GroupMetadataValue.json). The key's version tells the kind:

    0, 1  OffsetCommitKey    string group, string topic, int32 partition
    2     GroupMetadataKey   string group

    OffsetCommitValue    int64 offset; v3+ int32 leader epoch; string metadata; int64 commit
                         timestamp ms; v1 int64 expire timestamp ms; v4 is compact, tag 0: the
                         topic's UUID, absent when it is zero
    GroupMetadataValue   string protocol type, int32 generation, nullable string protocol,
                         nullable string leader; v2+ int64 state timestamp ms; array of members:
                         string member id; v3+ nullable string instance id; string client id,
                         string client host; v1+ int32 rebalance timeout ms; int32 session
                         timeout ms, bytes subscription, bytes assignment; v4 is compact

A null value is a tombstone. Values are written as Kafka 4.3 does: offsets in version 4 (1 when
they carry an expire timestamp), group metadata in version 3.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from broker_sim.core.coordinator.codec import CorruptRecord, RecordReader, RecordWriter
from txnlog_spark.wire.records import NO_LEADER_EPOCH, NO_TIMESTAMP

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 4
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
GROUP_VALUE_VERSION = 3
VALUE_VERSION_MAX = 4
TOPIC_ID_TAG = 0
NO_TOPIC_ID = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """Whose offset, of which partition."""

    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Which group's metadata."""

    group_id: str


@dataclass(frozen=True, slots=True)
class OffsetValue:
    """A committed offset. Times in ms since the epoch; -1 is "none".

    `topic_id` tells a topic from an earlier one of its name; zero in transactional commits.
    """

    committed_offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_ms: int = NO_TIMESTAMP
    expire_ms: int = NO_TIMESTAMP
    topic_id: uuid.UUID = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class MemberValue:
    """One member of a generation."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupValue:
    """A generation of a group. An empty `protocol_type` is a group without group management."""

    protocol_type: str
    generation_id: int
    protocol: str | None
    leader: str | None
    state_ms: int
    members: tuple[MemberValue, ...]


def encode_offset_key(key: OffsetKey) -> bytes:
    """The key of one committed offset."""
    writer = RecordWriter(OFFSET_KEY_VERSION)
    writer.string(key.group_id)
    writer.string(key.topic)
    writer.int32(key.partition)
    return writer.finish()


def encode_group_key(group_id: str) -> bytes:
    """The key of a group's metadata."""
    writer = RecordWriter(GROUP_KEY_VERSION)
    writer.string(group_id)
    return writer.finish()


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """The key; None for a kind we do not know, which a load skips. Raises CorruptRecord."""
    reader = RecordReader(data)
    if 0 <= reader.version <= OFFSET_KEY_VERSION:
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    if reader.version == GROUP_KEY_VERSION:
        return GroupKey(reader.string())
    return None


def encode_offset_value(value: OffsetValue) -> bytes:
    """A committed offset. An expire timestamp (version 1) has no field for epoch and topic id."""
    if value.expire_ms != NO_TIMESTAMP:
        writer = RecordWriter(OFFSET_VALUE_VERSION_WITH_EXPIRY)
        writer.int64(value.committed_offset)
        writer.string(value.metadata)
        writer.int64(value.commit_ms)
        writer.int64(value.expire_ms)
        return writer.finish()
    writer = RecordWriter(OFFSET_VALUE_VERSION, flexible=True)
    writer.int64(value.committed_offset)
    writer.int32(value.leader_epoch)
    writer.string(value.metadata)
    writer.int64(value.commit_ms)
    has_id = value.topic_id != NO_TOPIC_ID
    writer.tagged_fields({TOPIC_ID_TAG: value.topic_id.bytes} if has_id else None)
    return writer.finish()


def decode_offset_value(data: bytes) -> OffsetValue:
    """A committed offset of any version. Raises CorruptRecord."""
    reader = _value_reader(data)
    committed_offset = reader.int64()
    leader_epoch = reader.int32() if reader.version >= 3 else NO_LEADER_EPOCH
    metadata, commit_ms = reader.string(), reader.int64()
    expire_ms = reader.int64() if reader.version == 1 else NO_TIMESTAMP
    topic_id = _topic_id(reader.tagged_fields().get(TOPIC_ID_TAG))
    return OffsetValue(committed_offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id)


def _topic_id(field: bytes | None) -> uuid.UUID:
    if field is None:
        return NO_TOPIC_ID
    if len(field) != len(NO_TOPIC_ID.bytes):
        raise CorruptRecord(f"a topic id has {len(field)} bytes")
    return uuid.UUID(bytes=field)


def _value_reader(data: bytes) -> RecordReader:
    reader = RecordReader(data)
    if not 0 <= reader.version <= VALUE_VERSION_MAX:
        raise CorruptRecord(f"offsets log value version {reader.version} is not known")
    reader.set_flexible(reader.version == VALUE_VERSION_MAX)
    return reader


def encode_group_value(value: GroupValue) -> bytes:
    """A generation."""
    writer = RecordWriter(GROUP_VALUE_VERSION)
    writer.string(value.protocol_type)
    writer.int32(value.generation_id)
    writer.string(value.protocol)
    writer.string(value.leader)
    writer.int64(value.state_ms)
    writer.array_length(len(value.members))
    for member in value.members:
        writer.string(member.member_id)
        writer.string(member.group_instance_id)
        writer.string(member.client_id)
        writer.string(member.client_host)
        writer.int32(member.rebalance_timeout_ms)
        writer.int32(member.session_timeout_ms)
        writer.data(member.subscription)
        writer.data(member.assignment)
    return writer.finish()


def decode_group_value(data: bytes) -> GroupValue:
    """A generation of any version. Raises CorruptRecord."""
    reader = _value_reader(data)
    protocol_type, generation_id = reader.string(), reader.int32()
    protocol, leader = reader.nullable_string(), reader.nullable_string()
    state_ms = reader.int64() if reader.version >= 2 else NO_TIMESTAMP
    members = tuple(_read_member(reader) for _ in range(reader.array_length() or 0))
    reader.tagged_fields()
    return GroupValue(protocol_type, generation_id, protocol, leader, state_ms, members)


def _read_member(reader: RecordReader) -> MemberValue:
    member_id = reader.string()
    group_instance_id = reader.nullable_string() if reader.version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.int32() if reader.version >= 1 else -1
    session_timeout_ms = reader.int32()
    subscription, assignment = reader.data(), reader.data()
    reader.tagged_fields()
    return MemberValue(
        member_id,
        group_instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms if rebalance_timeout_ms >= 0 else session_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )
