"""Groups that change their protocol while members live: classic to KIP-848, and back.

A member of KIP-848 that joins a classic group of consumers upgrades it; the classic members stay,
with what they said in JoinGroup in their records. When the last member of KIP-848 goes, the group
is a classic group again.

Rules for this file: pure functions; the records of a change are in a `GroupChange`. Source: Kafka's
`ConsumerGroup.fromClassicGroup`, `ClassicGroup.fromConsumerGroup` and `GroupMetadataManager`.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from broker_sim.core.coordinator.codec import (
    CorruptRecord,
    decode_fields,
    encode_fields,
    version_of,
)
from broker_sim.core.group.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, Member
from broker_sim.core.group.consumer_changes import (
    GroupChange,
    Settings,
    Topics,
    advance,
    fence,
    give,
    is_full,
    refuse_static,
    replace_static,
    subscribe,
    topics_hash,
)
from broker_sim.core.group.consumer_group import ConsumerGroup, ConsumerMember
from broker_sim.core.group.consumer_records import (
    ClassicMetadata,
    Current,
    GroupEpoch,
    Partitions,
    RecordKind,
    Subscription,
    Target,
    TargetEpoch,
)
from broker_sim.core.group.requests import JoinGroup
from broker_sim.core.group.states import GroupState
from broker_sim.schemas import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import present

_K = RecordKind
_E = ErrorCode


@dataclass(frozen=True, slots=True)
class ClassicSubscription:
    """Contents of the subscription that a classic consumer sends in JoinGroup."""

    topic_names: frozenset[str]
    owned: Partitions
    rack_id: str | None


def _decode(fields_class: Any, data: bytes) -> Any:
    """Fields at the version in front; a later version begins like the last that is known."""
    first, last = fields_class.SCHEMA.versions
    version = version_of(data)
    if version < first:
        raise CorruptRecord(f"{fields_class.__name__} version {version} is not known")
    return decode_fields(fields_class, data, version=min(version, last))


def decode_subscription(data: bytes, topics: Topics) -> ClassicSubscription:
    """The subscription of a classic consumer. Raises CorruptRecord."""
    fields = _decode(ConsumerProtocolSubscription, data)
    owned = _partitions(fields.owned_partitions or (), topics)
    return ClassicSubscription(frozenset(fields.topics), owned, fields.rack_id or None)


def decode_assignment(data: bytes, topics: Topics) -> Partitions | None:
    """The assignment of a classic consumer; None if its assignor put data of its own into it."""
    if not data:
        return {}
    fields = _decode(ConsumerProtocolAssignment, data)
    return None if fields.user_data else _partitions(fields.assigned_partitions, topics)


def encode_assignment(
    partitions: Mapping[uuid.UUID, Iterable[int]], names: Mapping[uuid.UUID, str], metadata: bytes
) -> bytes:
    """An assignment in the version of the member's subscription, `metadata`; topics that are gone
    are left out."""
    topic_class = ConsumerProtocolAssignment.TopicPartition
    assigned = [
        topic_class(topic=names[topic_id], partitions=sorted(partitions[topic_id]))
        for topic_id in sorted(partitions)
        if topic_id in names
    ]
    fields = ConsumerProtocolAssignment(assigned_partitions=assigned)
    return encode_fields(fields, _assignment_version(metadata))


def _assignment_version(metadata: bytes) -> int:
    """The version to answer in. Bytes that no consumer sends get the first version."""
    last: int = ConsumerProtocolAssignment.SCHEMA.versions[1]
    try:
        return max(0, min(version_of(metadata), last))
    except CorruptRecord:
        return 0


def _partitions(found: Iterable[Any], topics: Topics) -> Partitions:
    """Partitions by topic id; topics that do not exist are left out."""
    return {
        topics[each.topic].topic_id: frozenset(each.partitions)
        for each in found
        if each.topic in topics and each.partitions
    }


# -------------------------------------------------------------------------------- upgrade


def upgrade(change: GroupChange, classic: ClassicGroup, settings: Settings) -> str | None:
    """Begin the consumer group that takes over the members of a classic group with members.

    Return the reason if that is not possible. Members that wait in JoinGroup are to join again.
    """
    reason = _refuse_upgrade(classic, settings)
    if reason is not None:
        return reason
    members: list[ConsumerMember] = []
    for each in classic.members.values():
        try:
            assigned = decode_assignment(each.assignment, settings.topics)
            decoded = decode_subscription(_metadata(classic, each), settings.topics)
        except CorruptRecord as error:
            return f"subscription or assignment of {each.member_id} cannot be read: {error}"
        if assigned is None:
            return "its assignor is not one of Kafka's: its data for the members would be lost"
        members.append(_upgraded(each, assigned, decoded, classic.generation_id))
    _add_members(change, members, classic.generation_id, settings)
    return None


def _refuse_upgrade(classic: ClassicGroup, settings: Settings) -> str | None:
    if settings.migration not in ("bidirectional", "upgrade"):
        return f"group.consumer.migration.policy is {settings.migration}"
    if not classic.uses_consumer_protocol:
        return f"it is a group of {classic.protocol_type}, not of consumers"
    if len(classic.members) > settings.max_size:
        return f"it has more members than group.consumer.max.size, {settings.max_size}"
    return None


def _metadata(classic: ClassicGroup, member: Member) -> bytes:
    """The member's subscription. A group in its first rebalance has not chosen a protocol yet."""
    return member.metadata(classic.protocol_name) or member.protocols[0][1]


def _upgraded(
    member: Member, assigned: Partitions, decoded: ClassicSubscription, epoch: int
) -> ConsumerMember:
    subscription = Subscription(
        instance_id=member.group_instance_id,
        rack_id=decoded.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=decoded.topic_names,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMetadata(member.session_timeout_ms, member.protocols),
    )
    epochs = {each: dict.fromkeys(sorted(assigned[each]), epoch) for each in assigned}
    return ConsumerMember(member.member_id, subscription, Current(epoch, epoch, assigned=epochs))


def _add_members(
    change: GroupChange, members: list[ConsumerMember], epoch: int, settings: Settings
) -> None:
    """Add the records of a group whose members have what they were assigned, in Kafka's order."""
    for member in members:
        change.add(_K.MEMBER, member.member_id, member.subscription)
    change.add(_K.GROUP_EPOCH, "", GroupEpoch(epoch, topics_hash(change.group, settings)))
    for member in members:
        assigned = member.current.assigned
        target = {topic_id: frozenset(assigned[topic_id]) for topic_id in assigned}
        change.add(_K.TARGET, member.member_id, Target(target))
    change.add(_K.TARGET_EPOCH, "", TargetEpoch(epoch))
    for member in members:
        change.add(_K.CURRENT, member.member_id, member.current)


# -------------------------------------------------------------------------------- JoinGroup


def join(
    change: GroupChange, request: JoinGroup, member_id: str, settings: Settings
) -> ConsumerMember | ErrorCode:
    """A classic member joins a consumer group, or joins again: return it as it is now, or the error
    that refuses it. Checks come in Kafka's order."""
    group = change.group
    former_epoch, replaced = group.epoch, group.static_member(request.group_instance_id or "")
    refused = _refuse_join(group, request, member_id, settings)
    if refused is not _E.NONE:
        return refused
    is_last = replaced is not None and replaces_last(group, replaced, settings)
    member = _joining(change, request, member_id, replaced)
    if isinstance(member, ErrorCode):
        return member
    try:
        decoded = decode_subscription(request.protocols[0][1], settings.topics)
    except CorruptRecord:
        return _E.INCONSISTENT_GROUP_PROTOCOL
    subscription = _joined(member.subscription, request, decoded)
    if not is_last:
        return advance(change, member, subscription, decoded.owned, settings)
    changed = subscribe(change, member, subscription, settings)
    if isinstance(changed, ErrorCode):
        return changed
    rebalances = group.target_epoch < group.epoch
    if not rebalances:
        give(change, member_id, decoded.owned, settings, subscription_changed=changed)
    member = group.members[member_id]
    downgrade(change, [*group.members.values()], former_epoch, settings, rebalances=rebalances)
    return member


def _refuse_join(
    group: ConsumerGroup, request: JoinGroup, member_id: str, settings: Settings
) -> ErrorCode:
    if settings.migration == "disabled":
        return _E.INCONSISTENT_GROUP_PROTOCOL
    if is_full(group, member_id, request.group_instance_id, settings):
        return _E.GROUP_MAX_SIZE_REACHED
    if not _supports(group, request):
        return _E.INCONSISTENT_GROUP_PROTOCOL
    is_dynamic = request.group_instance_id is None
    if request.requires_known_member_id and is_dynamic and not request.member_id:
        return _E.MEMBER_ID_REQUIRED
    return _E.NONE


def _supports(group: ConsumerGroup, request: JoinGroup) -> bool:
    """True if the member has a protocol that all classic members have."""
    classic = [each.subscription.classic for each in group.members.values()]
    known = [{name for name, _ in each.protocols} for each in classic if each is not None]
    offered = {name for name, _ in request.protocols}
    return request.protocol_type == CONSUMER_PROTOCOL_TYPE and bool(offered.intersection(*known))


def _joining(
    change: GroupChange, request: JoinGroup, member_id: str, existing: ConsumerMember | None
) -> ConsumerMember | ErrorCode:
    """The member, which may be new. A client without a member id takes the place of the member that
    has its instance id."""
    if request.group_instance_id is not None and request.member_id:
        return refuse_static(existing, member_id) or change.group.members[member_id]
    if existing is not None:
        return replace_static(change, existing, member_id)
    return change.group.members.get(member_id) or ConsumerMember(member_id)


def _joined(known: Subscription, request: JoinGroup, decoded: ClassicSubscription) -> Subscription:
    instance_id = request.group_instance_id
    return replace(
        known,
        instance_id=known.instance_id if instance_id is None else instance_id,
        rack_id=decoded.rack_id or known.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topic_names=decoded.topic_names,
        topic_regex="",
        rebalance_timeout_ms=request.own_rebalance_timeout_ms,
        classic=ClassicMetadata(request.session_timeout_ms, request.protocols),
    )


# -------------------------------------------------------------------------------- downgrade


def remove(change: GroupChange, member_ids: Collection[str], settings: Settings) -> None:
    """Remove members; a group that has classic members only is then a classic group again."""
    group = change.group
    staying = [each for each in group.members.values() if each.member_id not in member_ids]
    if _may_downgrade(staying, settings):
        downgrade(change, staying, group.epoch, settings, rebalances=True)
    else:
        fence(change, member_ids, settings)


def replaces_last(group: ConsumerGroup, replaced: ConsumerMember, settings: Settings) -> bool:
    """True if the group becomes a classic group when a classic member replaces this one."""
    staying = [each for each in group.members.values() if each is not replaced]
    others = len(staying) + 1 <= settings.classic_max_size
    is_last = not replaced.is_classic and all(each.is_classic for each in staying)
    return is_last and others and _allows_downgrade(settings)


def _may_downgrade(staying: list[ConsumerMember], settings: Settings) -> bool:
    return (
        0 < len(staying) <= settings.classic_max_size
        and all(member.is_classic for member in staying)
        and _allows_downgrade(settings)
    )


def _allows_downgrade(settings: Settings) -> bool:
    return settings.migration in ("bidirectional", "downgrade")


def downgrade(
    change: GroupChange,
    members: Iterable[ConsumerMember],
    generation_id: int,
    settings: Settings,
    *,
    rebalances: bool,
) -> None:
    """Delete the consumer group, and begin the classic group of these members with their targets.

    `rebalances` tells if the targets are not those of the present members.
    """
    group = change.group
    classic = ClassicGroup(group.group_id, settings.now_ms)
    classic.state = classic.previous_state = GroupState.STABLE
    classic.generation_id = generation_id
    for member in members:
        classic.add(_downgraded(member), CONSUMER_PROTOCOL_TYPE)
    classic.protocol_name = classic.select_protocol()
    classic.refresh_subscribed_topics()
    names = {topic.topic_id: name for name, topic in settings.topics.items()}
    for each in classic.members.values():
        target = group.targets.get(each.member_id, {})
        metadata = each.metadata(classic.protocol_name)
        each.assignment = encode_assignment(target, names, metadata)
    for record in group.tombstones():
        change.add(record.kind, record.name, None)
    change.classic, change.rebalances = classic, rebalances


def _downgraded(member: ConsumerMember) -> Member:
    subscription = member.subscription
    classic = present(
        subscription.classic, "a classic group takes a member of KIP-848", member=member.member_id
    )
    return Member(
        member_id=member.member_id,
        group_instance_id=subscription.instance_id,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        rebalance_timeout_ms=subscription.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        protocols=classic.protocols,
    )
