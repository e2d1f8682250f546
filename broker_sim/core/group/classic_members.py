"""Requests of the classic protocol to consumer groups: members of both kinds live side by side.

A JoinGroup is a heartbeat of KIP-848 in other words: it brings the subscription and the partitions
that the member still owns, and the answer has the member's epoch as the generation. SyncGroup
answers the member's assignment, and Heartbeat tells the member when to join again. The coordinator
alone assigns, so no member leads. Source: Kafka's `GroupMetadataManager`, the methods with
`ToConsumerGroup` in their names.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_sim.core.controller.image import ClusterImage
from broker_sim.core.effects import Effects
from broker_sim.core.group.classic_group import CONSUMER_PROTOCOL_TYPE
from broker_sim.core.group.consumer_changes import GroupChange, refuse_static
from broker_sim.core.group.consumer_group import ConsumerGroup, ConsumerMember
from broker_sim.core.group.consumer_records import ClassicMetadata, MemberState
from broker_sim.core.group.consumer_sessions import ConsumerSessions
from broker_sim.core.group.migration import encode_assignment, join
from broker_sim.core.group.requests import (
    UNKNOWN_MEMBER_ID,
    JoinGroup,
    JoinGroupResult,
    JoinReply,
    LeaveGroupResult,
    LeaveReply,
    LeavingMember,
    NewUuid,
    SyncGroup,
    SyncGroupResult,
    SyncReply,
)
from broker_sim.core.group.shard import GroupRuntime, GroupShard, answer_with
from txnlog_kafka.wire.error_codes import ErrorCode

_E = ErrorCode
_S = MemberState


class ClassicMemberHandler:
    """Answers classic members of consumer groups."""

    def __init__(
        self,
        image: ClusterImage,
        new_uuid: NewUuid,
        runtime: GroupRuntime,
        sessions: ConsumerSessions,
    ) -> None:
        self._image = image
        self._new_uuid = new_uuid
        self._runtime = runtime
        self._sessions = sessions

    def join(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        request: JoinGroup,
        reply: JoinReply,
        effects: Effects,
    ) -> None:
        """JoinGroup: a member joins, or joins again to give up partitions or to get more."""
        change = GroupChange(group)
        member_id = request.member_id or self._new_uuid()
        member = join(change, request, member_id, self._sessions.settings(group.group_id, effects))
        if isinstance(member, ErrorCode):
            # As Kafka: a refusal does not repeat the member's id.
            answered_id = member_id if member is _E.MEMBER_ID_REQUIRED else UNKNOWN_MEMBER_ID
            return reply(JoinGroupResult(member, answered_id), effects)
        result = JoinGroupResult(
            _E.NONE,
            member_id,
            generation_id=member.current.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0][0],
        )
        answer = answer_with(reply, result, lambda error: JoinGroupResult(error, request.member_id))
        written = self._sessions.write(shard, change, answer, effects)
        if written and change.classic is None:
            self._sessions.await_sync(shard, group.group_id, member, effects)
        return None

    def sync(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        request: SyncGroup,
        reply: SyncReply,
        effects: Effects,
    ) -> None:
        """SyncGroup: answer the member's assignment."""
        found = _find(group, request.member_id, request.group_instance_id, request.generation_id)
        if isinstance(found, ErrorCode):
            return reply(SyncGroupResult(found), effects)
        member, classic = found
        name, metadata = classic.protocols[0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or (
            request.protocol_name not in (None, name)
        ):
            return reply(SyncGroupResult(_E.INCONSISTENT_GROUP_PROTOCOL), effects)
        current = member.current
        if group.target_epoch > current.epoch and current.state is not _S.UNREVOKED:
            self._sessions.await_join(shard, group.group_id, member, effects)
            return reply(SyncGroupResult(_E.REBALANCE_IN_PROGRESS), effects)
        result = SyncGroupResult(
            _E.NONE,
            request.protocol_type,
            request.protocol_name,
            encode_assignment(current.assigned, self._image.names, metadata),
        )
        self._sessions.cancel("sync", group.group_id, member.member_id, effects)
        self._sessions.touch(shard, group.group_id, member, effects)
        answer = answer_with(reply, result, SyncGroupResult)
        return self._runtime.settle(shard, answer, effects)

    def heartbeat(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
        effects: Effects,
    ) -> ErrorCode:
        """Heartbeat: REBALANCE_IN_PROGRESS tells the member that joining again gets it further."""
        found = _find(group, member_id, instance_id, generation_id)
        if isinstance(found, ErrorCode):
            return found
        member, current = found[0], found[0].current
        self._sessions.touch(shard, group.group_id, member, effects)
        if (
            current.epoch >= group.target_epoch
            and current.state is not _S.UNREVOKED
            and (current.state is not _S.UNRELEASED or group.waits_for_others(member))
        ):
            return _E.NONE
        self._sessions.await_join(shard, group.group_id, member, effects)
        return _E.REBALANCE_IN_PROGRESS

    def leave(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        members: Sequence[LeavingMember],
        reply: LeaveReply,
        effects: Effects,
    ) -> None:
        """LeaveGroup: remove members of either kind, as an administrator may."""
        results = [(each, _find_leaving(group, each)) for each in members]
        answers = tuple(
            (each, found if isinstance(found, ErrorCode) else _E.NONE) for each, found in results
        )
        gone = [found for _, found in results if isinstance(found, ConsumerMember)]
        answer = answer_with(reply, LeaveGroupResult(_E.NONE, answers), LeaveGroupResult)
        if not gone:
            return answer(_E.NONE, effects)
        names = list(dict.fromkeys(member.member_id for member in gone))
        self._sessions.remove(shard, group, names, answer, effects)
        return None


def _find(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
) -> tuple[ConsumerMember, ClassicMetadata] | ErrorCode:
    """The classic member of a request and its settings, or the error that refuses the request."""
    if instance_id is None:
        member = group.members.get(member_id)
    else:
        member = group.static_member(instance_id)
        refused = refuse_static(member, member_id)
        if refused is not None:
            return refused
    if member is None or member.subscription.classic is None:
        return _E.UNKNOWN_MEMBER_ID
    if generation_id != member.current.epoch:
        return _E.ILLEGAL_GENERATION
    return member, member.subscription.classic


def _find_leaving(group: ConsumerGroup, leaving: LeavingMember) -> ConsumerMember | ErrorCode:
    if leaving.group_instance_id is None:
        return group.members.get(leaving.member_id) or _E.UNKNOWN_MEMBER_ID
    member = group.static_member(leaving.group_instance_id)
    if not leaving.member_id:
        return member or _E.UNKNOWN_MEMBER_ID
    return refuse_static(member, leaving.member_id) or member or _E.UNKNOWN_MEMBER_ID
