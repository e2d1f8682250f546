"""ConsumerGroupDescribe (key 69): state, epochs, members and assignments of consumer groups."""

from __future__ import annotations

from typing import Any

from broker_sim.core.effects import Request
from broker_sim.core.group.consumer_group import ConsumerGroup, ConsumerMember
from broker_sim.core.group.consumer_records import EpochPartitions, Partitions
from broker_sim.core.handlers._access import add_group_operations, group_allowed, topic_allowed
from broker_sim.core.parts import BrokerParts
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey, Message

_Response = APIS[ApiKey.CONSUMER_GROUP_DESCRIBE].response
_Group = _Response.DescribedGroup
_Member = _Group.Member
_Assignment = _Member.Assignment

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""Member types: of a member that speaks the classic protocol, and of one that speaks KIP-848."""


def handle(parts: BrokerParts, request: Request) -> Message:
    """Describe each group, once."""
    message = request.message
    groups = [_group(parts, request, name) for name in dict.fromkeys(message.group_ids)]
    if message.include_authorized_operations:
        add_group_operations(parts, request, groups)
    return _Response(groups=groups)


def _group(parts: BrokerParts, request: Request, group_id: str) -> Any:
    if parts.config.integer("group.version") < 1:
        return _refused(group_id, ErrorCode.UNSUPPORTED_VERSION)
    if not group_allowed(parts, request, group_id):
        return _refused(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not group_id:
        return _refused(group_id, ErrorCode.INVALID_GROUP_ID)
    group = parts.groups.describe_consumer_group(group_id)
    if isinstance(group, ErrorCode):
        return _refused(group_id, group, _not_found(parts, group_id, group))
    if not all(topic_allowed(parts, request, name) for name in _topics(parts, group)):
        text = "The group has described topic(s) that the client is not authorized to describe."
        return _refused(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)
    return _Group(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=parts.groups.preferred_assignor(group),
        members=[_member(parts, group, member) for _, member in sorted(group.members.items())],
    )


def _not_found(parts: BrokerParts, group_id: str, error: ErrorCode) -> str | None:
    if error is not ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    is_classic = parts.groups.describe_group(group_id).error is ErrorCode.NONE
    return f"Group {group_id} " + ("is not a consumer group." if is_classic else "not found.")


def _refused(group_id: str, error: ErrorCode, text: str | None = None) -> Any:
    return _Group(error_code=int(error), error_message=text, group_id=group_id, members=[])


def _topics(parts: BrokerParts, group: ConsumerGroup) -> set[str]:
    """Names of all topics that the answer names."""
    known = parts.image.names
    names = {name for each in group.members.values() for name in each.subscription.topic_names}
    for member_id, member in group.members.items():
        for partitions in (member.current.owned, group.targets.get(member_id, {})):
            names.update(known[each] for each in partitions if each in known)
    return names


def _member(parts: BrokerParts, group: ConsumerGroup, member: ConsumerMember) -> Any:
    subscription = member.subscription
    return _Member(
        member_id=member.member_id,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        member_epoch=member.current.epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=sorted(subscription.topic_names),
        subscribed_topic_regex=subscription.topic_regex,
        assignment=_assignment(parts, member.current.owned),
        target_assignment=_assignment(parts, group.targets.get(member.member_id, {})),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _assignment(parts: BrokerParts, partitions: Partitions | EpochPartitions) -> Any:
    return _Assignment(
        topic_partitions=[
            _Assignment.TopicPartitions(
                topic_id=topic_id,
                topic_name=parts.image.names[topic_id],
                partitions=sorted(partitions[topic_id]),
            )
            for topic_id in sorted(partitions)
            if topic_id in parts.image.names
        ]
    )
