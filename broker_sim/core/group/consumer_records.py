"""The records of a consumer group (KIP-848) in `__consumer_offsets`: one table by key version.

The key's version tells the kind. A null value is a tombstone. Kafka's records of kind 4 (metadata
of partitions) are neither written nor read: Kafka 4.1 replaced them by the hash in kind 3. Topics
and partitions are written in order, so that equal values have equal bytes.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker_sim import schemas
from broker_sim.core.coordinator.codec import (
    CorruptRecord,
    decode_fields,
    encode_fields,
    version_of,
)

Partitions = Mapping[uuid.UUID, frozenset[int]]
"""Partitions by topic id. A topic without partitions is left out."""
EpochPartitions = Mapping[uuid.UUID, Mapping[int, int]]
"""The epoch at which each partition was assigned, by topic id and partition."""

VALUE_VERSION = 0


class RecordKind(enum.IntEnum):
    """Version of the key."""

    GROUP_EPOCH = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16


class MemberState(enum.IntEnum):
    """Progress of a member toward its target assignment.

    STABLE: it has its target. A new target -> any state.
    UNREVOKED: it must give up partitions first. It reports that it no longer owns them -> STABLE or
      UNRELEASED; the rebalance timeout -> it is removed.
    UNRELEASED: it waits for partitions that other members still own. They are free -> STABLE.
    UNKNOWN: a newer broker wrote another state; the member is fenced.
    """

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """The group's epoch, and the hash of the topics that its members read."""

    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class ClassicMetadata:
    """Settings of a member that speaks the classic protocol: its session timeout, and (name,
    subscription bytes) of its protocols in its order of preference."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Subscription:
    """Settings and subscription of a member, as its requests gave them. `classic` is None for a
    member that speaks KIP-848."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMetadata | None = None


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    """The group epoch that the target assignment is for, and the time when it was made."""

    epoch: int
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """Target assignment of a member."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Current:
    """Epoch, state and partitions of a member as the coordinator last answered the member."""

    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: EpochPartitions = field(default_factory=dict)
    pending_revocation: EpochPartitions = field(default_factory=dict)

    @property
    def owned(self) -> Partitions:
        """Partitions that the member has, also those that it must give up."""
        found: dict[uuid.UUID, frozenset[int]] = {}
        for partitions in (self.assigned, self.pending_revocation):
            for topic_id, each in partitions.items():
                found[topic_id] = found.get(topic_id, frozenset()).union(each)
        return found


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """Topics that matched a regular expression at a time."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


RecordValue = GroupEpoch | Subscription | TargetEpoch | Target | Current | ResolvedRegex


@dataclass(frozen=True, slots=True)
class ConsumerGroupRecord:
    """A record of a consumer group; `name` is a member id, or a regular expression."""

    kind: RecordKind
    group_id: str
    name: str
    value: RecordValue | None


def encode_record(record: ConsumerGroupRecord) -> tuple[bytes, bytes | None]:
    """Key and value."""
    codec = _CODECS[record.kind]
    fields = {"group_id": record.group_id}
    if codec.name_field is not None:
        fields[codec.name_field] = record.name
    key = encode_fields(codec.key_class(**fields), int(record.kind))
    if record.value is None:
        return key, None
    fields_of_value = codec.value_class(**codec.to_fields(record.value))
    return key, encode_fields(fields_of_value, VALUE_VERSION)


def decode_record(key: bytes, value: bytes | None) -> ConsumerGroupRecord | None:
    """The record; None if the key is not a consumer group's. Raises CorruptRecord."""
    version = version_of(key)
    if version not in _CODECS:
        return None
    kind = RecordKind(version)
    codec = _CODECS[kind]
    fields = decode_fields(codec.key_class, key)
    name = "" if codec.name_field is None else getattr(fields, codec.name_field)
    if value is None:
        return ConsumerGroupRecord(kind, fields.group_id, name, None)
    decoded = codec.from_fields(decode_fields(codec.value_class, value))
    return ConsumerGroupRecord(kind, fields.group_id, name, decoded)


def _topics(topic_class: Any, partitions: Partitions) -> list[Any]:
    return [
        topic_class(topic_id=topic_id, partitions=sorted(partitions[topic_id]))
        for topic_id in sorted(partitions)
    ]


def _epoch_topics(topic_class: Any, partitions: EpochPartitions) -> list[Any]:
    return [
        topic_class(
            topic_id=topic_id,
            partitions=sorted(partitions[topic_id]),
            assignment_epochs=[partitions[topic_id][each] for each in sorted(partitions[topic_id])],
        )
        for topic_id in sorted(partitions)
    ]


def _epoch_partitions(topics: Iterable[Any], member_epoch: int) -> EpochPartitions:
    """Partitions with their epochs. Before Kafka 4.3 the epochs were not stored: the member's."""
    found: dict[uuid.UUID, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None:
            epochs = [member_epoch] * len(topic.partitions)
        if len(epochs) != len(topic.partitions):
            raise CorruptRecord(
                f"topic {topic.topic_id} has {len(topic.partitions)} partitions and {len(epochs)} "
                "assignment epochs"
            )
        found.setdefault(topic.topic_id, {}).update(zip(topic.partitions, epochs, strict=True))
    return found


def _subscription_fields(value: Subscription) -> dict[str, Any]:
    classic = None if value.classic is None else _classic_fields(value.classic)
    return {
        "instance_id": value.instance_id,
        "rack_id": value.rack_id,
        "client_id": value.client_id,
        "client_host": value.client_host,
        "subscribed_topic_names": sorted(value.topic_names),
        "subscribed_topic_regex": value.topic_regex,
        "rebalance_timeout_ms": value.rebalance_timeout_ms,
        "server_assignor": value.server_assignor,
        "classic_member_metadata": classic,
    }


def _classic_fields(value: ClassicMetadata) -> Any:
    fields = schemas.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata
    protocols = [
        fields.ClassicProtocol(name=name, metadata=metadata) for name, metadata in value.protocols
    ]
    return fields(session_timeout_ms=value.session_timeout_ms, supported_protocols=protocols)


def _classic(fields: Any) -> ClassicMetadata:
    protocols = tuple((each.name, each.metadata) for each in fields.supported_protocols)
    return ClassicMetadata(fields.session_timeout_ms, protocols)


def _subscription(fields: Any) -> Subscription:
    return Subscription(
        fields.instance_id,
        fields.rack_id,
        fields.client_id,
        fields.client_host,
        frozenset(fields.subscribed_topic_names),
        fields.subscribed_topic_regex or "",
        fields.rebalance_timeout_ms,
        fields.server_assignor,
        None if (classic := fields.classic_member_metadata) is None else _classic(classic),
    )


def _target_fields(value: Target) -> dict[str, Any]:
    topic_class = schemas.ConsumerGroupTargetAssignmentMemberValue.TopicPartition
    return {"topic_partitions": _topics(topic_class, value.partitions)}


def _target(fields: Any) -> Target:
    topics = fields.topic_partitions
    return Target({topic.topic_id: frozenset(topic.partitions) for topic in topics})


def _current_fields(value: Current) -> dict[str, Any]:
    topic_class = schemas.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
    return {
        "member_epoch": value.epoch,
        "previous_member_epoch": value.previous_epoch,
        "state": int(value.state),
        "assigned_partitions": _epoch_topics(topic_class, value.assigned),
        "partitions_pending_revocation": _epoch_topics(topic_class, value.pending_revocation),
    }


def _current(fields: Any) -> Current:
    known = set(MemberState)
    return Current(
        fields.member_epoch,
        fields.previous_member_epoch,
        MemberState(fields.state) if fields.state in known else MemberState.UNKNOWN,
        _epoch_partitions(fields.assigned_partitions, fields.member_epoch),
        _epoch_partitions(fields.partitions_pending_revocation, fields.member_epoch),
    )


@dataclass(frozen=True, slots=True)
class _Codec:
    """Classes and conversions of a kind; `name_field` is the second field of the key."""

    key_class: Any
    name_field: str | None
    value_class: Any
    to_fields: Callable[[Any], dict[str, Any]]
    from_fields: Callable[[Any], RecordValue]


_K = RecordKind
_CODECS: Mapping[int, _Codec] = {
    _K.GROUP_EPOCH: _Codec(
        schemas.ConsumerGroupMetadataKey, None,
        schemas.ConsumerGroupMetadataValue,
        lambda value: {"epoch": value.epoch, "metadata_hash": value.metadata_hash},
        lambda fields: GroupEpoch(fields.epoch, fields.metadata_hash),
    ),
    _K.MEMBER: _Codec(
        schemas.ConsumerGroupMemberMetadataKey, "member_id",
        schemas.ConsumerGroupMemberMetadataValue, _subscription_fields, _subscription,
    ),
    _K.TARGET_EPOCH: _Codec(
        schemas.ConsumerGroupTargetAssignmentMetadataKey, None,
        schemas.ConsumerGroupTargetAssignmentMetadataValue,
        lambda value: {
            "assignment_epoch": value.epoch, "assignment_timestamp": value.timestamp_ms,
        },
        lambda fields: TargetEpoch(fields.assignment_epoch, fields.assignment_timestamp),
    ),
    _K.TARGET: _Codec(
        schemas.ConsumerGroupTargetAssignmentMemberKey, "member_id",
        schemas.ConsumerGroupTargetAssignmentMemberValue, _target_fields, _target,
    ),
    _K.CURRENT: _Codec(
        schemas.ConsumerGroupCurrentMemberAssignmentKey, "member_id",
        schemas.ConsumerGroupCurrentMemberAssignmentValue, _current_fields, _current,
    ),
    _K.REGEX: _Codec(
        schemas.ConsumerGroupRegularExpressionKey, "regular_expression",
        schemas.ConsumerGroupRegularExpressionValue,
        lambda value: {
            "topics": sorted(value.topics),
            "version": value.version,
            "timestamp": value.timestamp_ms,
        },
        lambda fields: ResolvedRegex(frozenset(fields.topics), fields.version, fields.timestamp),
    ),
}  # fmt: skip
