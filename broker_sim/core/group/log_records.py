"""The records of `__consumer_offsets`: OffsetCommit and GroupMetadata, key and value.

Their fields are in `broker_sim.schemas`. The key's version tells the kind: 0 and 1 an offset, 2 a
group. A null value is a tombstone. Values are written as Kafka 4.3 does: offsets in version 4 (1
when they carry an expire timestamp), group metadata in version 3.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from broker_sim.core.coordinator.codec import decode_fields, encode_fields, version_of
from broker_sim.schemas import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from txnlog_kafka.wire.records import NO_LEADER_EPOCH, NO_TIMESTAMP

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 4
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
GROUP_VALUE_VERSION = 3
ZERO_ID = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """Whose offset, of which partition."""

    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Key of a group's metadata."""

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
    topic_id: uuid.UUID = ZERO_ID


@dataclass(frozen=True, slots=True)
class MemberValue:
    """Member of a generation."""

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
    fields = OffsetCommitKey(group=key.group_id, topic=key.topic, partition=key.partition)
    return encode_fields(fields, OFFSET_KEY_VERSION)


def encode_group_key(group_id: str) -> bytes:
    """The key of a group's metadata."""
    return encode_fields(GroupMetadataKey(group=group_id), GROUP_KEY_VERSION)


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """The key; None for a kind we do not know, which a load skips. Raises CorruptRecord."""
    version = version_of(data)
    if 0 <= version <= OFFSET_KEY_VERSION:
        fields = decode_fields(OffsetCommitKey, data)
        return OffsetKey(fields.group, fields.topic, fields.partition)
    if version == GROUP_KEY_VERSION:
        return GroupKey(decode_fields(GroupMetadataKey, data).group)
    return None


def encode_offset_value(value: OffsetValue) -> bytes:
    """A committed offset. One that expires has version 1, which has neither epoch nor topic id."""
    fields = OffsetCommitValue(
        offset=value.committed_offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp=value.commit_ms,
        expire_timestamp=value.expire_ms,
        topic_id=None if value.topic_id == ZERO_ID else value.topic_id,
    )
    expires = value.expire_ms != NO_TIMESTAMP
    version = OFFSET_VALUE_VERSION_WITH_EXPIRY if expires else OFFSET_VALUE_VERSION
    return encode_fields(fields, version)


def decode_offset_value(data: bytes) -> OffsetValue:
    """A committed offset of any version. Raises CorruptRecord."""
    fields = decode_fields(OffsetCommitValue, data)
    return OffsetValue(
        fields.offset,
        fields.leader_epoch,
        fields.metadata,
        fields.commit_timestamp,
        fields.expire_timestamp,
        fields.topic_id or ZERO_ID,
    )


def encode_group_value(value: GroupValue) -> bytes:
    """A generation."""
    members = [
        GroupMetadataValue.MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in value.members
    ]
    fields = GroupMetadataValue(
        protocol_type=value.protocol_type,
        generation=value.generation_id,
        protocol=value.protocol,
        leader=value.leader,
        current_state_timestamp=value.state_ms,
        members=members,
    )
    return encode_fields(fields, GROUP_VALUE_VERSION)


def decode_group_value(data: bytes) -> GroupValue:
    """A generation of any version. Raises CorruptRecord."""
    fields = decode_fields(GroupMetadataValue, data)
    return GroupValue(
        fields.protocol_type,
        fields.generation,
        fields.protocol,
        fields.leader,
        fields.current_state_timestamp,
        tuple(_member(each) for each in fields.members),
    )


def _member(fields: Any) -> MemberValue:
    # Version 0 has no rebalance timeout: it was the session timeout.
    has_timeout = fields.rebalance_timeout >= 0
    return MemberValue(
        fields.member_id,
        fields.group_instance_id,
        fields.client_id,
        fields.client_host,
        fields.rebalance_timeout if has_timeout else fields.session_timeout,
        fields.session_timeout,
        fields.subscription,
        fields.assignment,
    )
