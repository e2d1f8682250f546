"""SyncGroup, Heartbeat and LeaveGroup: what members do between two joins.

Source: Kafka's `GroupMetadataManager`, the classic part.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_sim.core.effects import Effects
from broker_sim.core.group.classic_group import ClassicGroup
from broker_sim.core.group.classic_members import ClassicMemberHandler
from broker_sim.core.group.consumer_group import ConsumerGroup
from broker_sim.core.group.rebalance import Rebalancer, synced_result
from broker_sim.core.group.requests import (
    UNKNOWN_MEMBER_ID,
    LeaveGroupResult,
    LeaveReply,
    LeavingMember,
    SyncGroup,
    SyncGroupResult,
    SyncReply,
)
from broker_sim.core.group.shard import AnyGroup, GroupRuntime, GroupShard, find_shard
from broker_sim.core.group.states import GroupState
from txnlog_kafka.wire.error_codes import ErrorCode

_S = GroupState
_E = ErrorCode


class MembershipHandler:
    """Answers SyncGroup (or delays it), Heartbeat and LeaveGroup."""

    def __init__(
        self, runtime: GroupRuntime, rebalancer: Rebalancer, classic_members: ClassicMemberHandler
    ) -> None:
        self._runtime = runtime
        self._rebalancer = rebalancer
        self._classic_members = classic_members

    def _find_group(self, group_id: str) -> tuple[GroupShard, AnyGroup] | ErrorCode:
        shard = find_shard(self._runtime, group_id, may_be_empty=False)
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.group(group_id)
        return _E.UNKNOWN_MEMBER_ID if group is None else (shard, group)

    # ---------------------------------------------------------------- SyncGroup

    def sync(self, request: SyncGroup, reply: SyncReply, effects: Effects) -> None:
        """The leader brings the assignment, everybody fetches their part."""
        found = self._find_group(request.group_id)
        if isinstance(found, ErrorCode):
            reply(SyncGroupResult(found), effects)
            return
        shard, group = found
        if isinstance(group, ConsumerGroup):
            self._classic_members.sync(shard, group, request, reply, effects)
            return
        error = _refuse_sync(group, request)
        if error is not _E.NONE:
            reply(SyncGroupResult(error), effects)
            return
        member = group.members[request.member_id]
        if group.is_in(_S.PREPARING_REBALANCE):
            reply(SyncGroupResult(_E.REBALANCE_IN_PROGRESS), effects)
            return
        if group.is_in(_S.STABLE):
            self._rebalancer.on_synced(group, request.member_id, effects)
            reply(synced_result(group, member), effects)
            return
        group.delay_sync(member, reply, effects)
        self._rebalancer.on_synced(group, request.member_id, effects)
        if group.is_leader(request.member_id):
            for each in group.members.values():
                # A member that the leader left out gets an empty assignment.
                each.assignment = request.assignments.get(each.member_id, b"")
            self._rebalancer.store_assignment(shard, group, effects)

    # ---------------------------------------------------------------- Heartbeat

    def heartbeat(
        self,
        group_id: str,
        effects: Effects,
        *,
        member_id: str,
        generation_id: int,
        group_instance_id: str | None = None,
    ) -> ErrorCode:
        """Keep the session; REBALANCE_IN_PROGRESS tells the member to join again."""
        found = self._find_group(group_id)
        if found is _E.COORDINATOR_LOAD_IN_PROGRESS:
            return _E.NONE  # as in Kafka: the member is not known yet, and has done its part
        if isinstance(found, ErrorCode):
            return found
        shard, group = found
        if isinstance(group, ConsumerGroup):
            return self._classic_members.heartbeat(
                shard, group, member_id, group_instance_id, generation_id, effects
            )
        error = group.validate_member(member_id, group_instance_id)
        if error is not _E.NONE:
            return error
        if generation_id != group.generation_id:
            return _E.ILLEGAL_GENERATION
        self._rebalancer.reset_session(shard, group, group.members[member_id], effects)
        return _E.REBALANCE_IN_PROGRESS if group.is_in(_S.PREPARING_REBALANCE) else _E.NONE

    # ---------------------------------------------------------------- LeaveGroup

    def leave(
        self, group_id: str, members: Sequence[LeavingMember], reply: LeaveReply, effects: Effects
    ) -> None:
        """Take out one member (below version 3) or several; the rest rebalances once."""
        found = self._find_group(group_id)
        if found is _E.UNKNOWN_MEMBER_ID:
            unknown = tuple((member, _E.UNKNOWN_MEMBER_ID) for member in members)
            return reply(LeaveGroupResult(_E.NONE, unknown), effects)
        if isinstance(found, ErrorCode):
            return reply(LeaveGroupResult(found), effects)
        shard, group = found
        if isinstance(group, ConsumerGroup):
            return self._classic_members.leave(shard, group, members, reply, effects)
        results = tuple((member, self._leave_one(group, member, effects)) for member in members)
        if any(error is _E.NONE for _, error in results):
            self._rebalancer.after_removal(shard, group, effects, is_expiry=False)
        return reply(LeaveGroupResult(_E.NONE, results), effects)

    def _leave_one(
        self, group: ClassicGroup, leaving: LeavingMember, effects: Effects
    ) -> ErrorCode:
        member_id = leaving.member_id
        if member_id == UNKNOWN_MEMBER_ID:
            # An administrator removes a static member by its instance id.
            instance_id = leaving.group_instance_id
            if instance_id is None or instance_id not in group.static_members:
                return _E.UNKNOWN_MEMBER_ID
            member_id = group.static_members[instance_id]
        elif member_id in group.pending_join:
            group.remove(member_id)
            self._rebalancer.cancel_session(group.group_id, member_id, effects)
            return _E.NONE
        else:
            error = group.validate_member(member_id, leaving.group_instance_id)
            if error is not _E.NONE:
                return error
        self._rebalancer.remove_member(group, group.members[member_id], effects)
        return _E.NONE


def _refuse_sync(group: ClassicGroup, request: SyncGroup) -> ErrorCode:
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not _E.NONE:
        return error
    if request.generation_id != group.generation_id:
        return _E.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type) or _differs(
        request.protocol_name, group.protocol_name
    ):
        return _E.INCONSISTENT_GROUP_PROTOCOL
    return _E.NONE


def _differs(asked: str | None, actual: str | None) -> bool:
    return asked is not None and actual is not None and asked != actual
