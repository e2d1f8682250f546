"""JoinGroup: the members that may join, their ids, and what a join sets off.

Rules for this file: JoinGroup only. Every path answers or delays exactly once. Source: Kafka's
`GroupMetadataManager.classicGroupJoinToClassicGroup` and what it calls.
"""

from __future__ import annotations

from dataclasses import replace

from broker_sim.core.config import BrokerConfig
from broker_sim.core.coordinator.codec import is_storable
from broker_sim.core.effects import Effects
from broker_sim.core.group.classic_group import ClassicGroup, Member
from broker_sim.core.group.classic_members import ClassicMemberHandler
from broker_sim.core.group.rebalance import Rebalancer, joined_result
from broker_sim.core.group.requests import (
    UNKNOWN_MEMBER_ID,
    JoinGroup,
    JoinGroupResult,
    JoinReply,
    NewUuid,
)
from broker_sim.core.group.shard import GroupRuntime, GroupShard, find_shard, write_group
from broker_sim.core.group.states import GroupState
from txnlog_kafka.wire.error_codes import ErrorCode

UUID_LENGTH = 36
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""Milliseconds that a new member's JoinGroup may be delayed (Kafka's constant of this name)."""

_S = GroupState
_E = ErrorCode


class JoinHandler:
    """Answers or delays JoinGroup."""

    def __init__(
        self,
        config: BrokerConfig,
        new_uuid: NewUuid,
        runtime: GroupRuntime,
        rebalancer: Rebalancer,
        classic_members: ClassicMemberHandler,
    ) -> None:
        self._config = config
        self._new_uuid = new_uuid
        self._runtime = runtime
        self._rebalancer = rebalancer
        self._classic_members = classic_members

    def handle(self, request: JoinGroup, reply: JoinReply, effects: Effects) -> None:
        """Check in Kafka's order, then join."""
        shard: GroupShard | ErrorCode = self._refuse_join(request)
        if shard is _E.NONE:
            shard = find_shard(self._runtime, request.group_id)
        if isinstance(shard, ErrorCode):
            return reply(JoinGroupResult(shard, request.member_id), effects)
        group = shard.groups.get(request.group_id)
        if group is not None:
            return self._join_group(shard, group, request, reply, effects)
        consumers = shard.consumer_groups.get(request.group_id)
        if consumers is not None and not consumers.is_empty:
            return self._classic_members.join(shard, consumers, request, reply, effects)
        if request.member_id != UNKNOWN_MEMBER_ID:
            return reply(JoinGroupResult(_E.UNKNOWN_MEMBER_ID, request.member_id), effects)
        return self._create_group(shard, request, reply, effects)

    def _create_group(
        self, shard: GroupShard, request: JoinGroup, reply: JoinReply, effects: Effects
    ) -> None:
        group = ClassicGroup(request.group_id, effects.now_ms)

        def on_written(error: ErrorCode, effects: Effects) -> None:
            if error is not _E.NONE:
                return reply(JoinGroupResult(error, request.member_id), effects)
            if request.group_id in shard.consumer_groups:
                # A member of KIP-848 created its group behind this record.
                return self.handle(request, reply, effects)
            # Another JoinGroup may have created it meanwhile.
            created = shard.groups.setdefault(request.group_id, group)
            return self._join_group(shard, created, request, reply, effects)

        write_group(self._runtime, shard, group, on_written, effects)

    def _join_group(
        self,
        shard: GroupShard,
        group: ClassicGroup,
        request: JoinGroup,
        reply: JoinReply,
        effects: Effects,
    ) -> None:
        if not self._accepts(group, request.member_id):
            group.remove(request.member_id)
            reply(JoinGroupResult(_E.GROUP_MAX_SIZE_REACHED), effects)
        elif not group.supports(request.protocol_type, (name for name, _ in request.protocols)):
            reply(JoinGroupResult(_E.INCONSISTENT_GROUP_PROTOCOL, request.member_id), effects)
        elif request.member_id == UNKNOWN_MEMBER_ID:
            self._join_new(shard, group, request, reply, effects)
        else:
            self._join_known(shard, group, request, reply, effects)

    def _refuse_join(self, request: JoinGroup) -> ErrorCode:
        if not request.group_id:
            return _E.INVALID_GROUP_ID
        if not _is_storable(request):
            return _E.INVALID_REQUEST
        low = self._config.integer("group.min.session.timeout.ms")
        high = self._config.integer("group.max.session.timeout.ms")
        if not low <= request.session_timeout_ms <= high:
            return _E.INVALID_SESSION_TIMEOUT
        return _E.NONE

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """group.max.size; while members rejoin, those who are back count."""
        limit = self._config.integer("group.max.size")
        member = group.members.get(member_id)
        if group.is_in(_S.PREPARING_REBALANCE):
            is_back = member is not None and member.join_reply is not None
            return is_back or group.awaiting_join_count < limit
        if group.is_in(_S.COMPLETING_REBALANCE, _S.STABLE):
            return member is not None or len(group.members) < limit
        return True

    # ---------------------------------------------------------------- without a member id

    def _join_new(
        self,
        shard: GroupShard,
        group: ClassicGroup,
        request: JoinGroup,
        reply: JoinReply,
        effects: Effects,
    ) -> None:
        member_id = f"{_member_prefix(request)}-{self._new_uuid()}"
        if request.group_instance_id is not None:
            if request.group_instance_id in group.static_members:
                self._replace_static(shard, group, request, (member_id, reply), effects)
            else:
                self._add_member(shard, group, request, (member_id, reply), effects)
        elif request.requires_known_member_id:
            # KIP-394: a client that never saw its member id would leave a ghost behind.
            self._rebalancer.await_pending_member(
                shard, group, member_id, request.session_timeout_ms, effects
            )
            reply(JoinGroupResult(_E.MEMBER_ID_REQUIRED, member_id), effects)
        else:
            self._add_member(shard, group, request, (member_id, reply), effects)

    def _add_member(
        self,
        shard: GroupShard,
        group: ClassicGroup,
        request: JoinGroup,
        joiner: tuple[str, JoinReply],
        effects: Effects,
    ) -> None:
        member_id, reply = joiner
        member = Member(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.own_rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            is_new=True,
            join_reply=reply,
        )
        if group.is_in(_S.PREPARING_REBALANCE) and group.previous_state is _S.EMPTY:
            group.new_member_added = True
        group.add(member, request.protocol_type)
        # Until it is answered the member cannot heartbeat; a dead client must not block the
        # group's rebalances for ever.
        self._rebalancer.reset_session(shard, group, member, effects, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalancer.maybe_prepare(shard, group, effects)

    def _replace_static(
        self,
        shard: GroupShard,
        group: ClassicGroup,
        request: JoinGroup,
        joiner: tuple[str, JoinReply],
        effects: Effects,
    ) -> None:
        """KIP-345: the instance is back. In a stable group nobody else needs to notice."""
        member_id, reply = joiner
        instance_id = request.group_instance_id or ""
        old_leader = group.leader
        old = group.members[group.static_members[instance_id]]
        before = (old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms)
        self._rebalancer.cancel_session(group.group_id, old.member_id, effects)
        member = group.replace_static_member(instance_id, member_id, effects)
        # As Kafka: the session that it asks for now begins with its next sign of life.
        self._rebalancer.reset_session(shard, group, member, effects)
        _update_member(member, request)
        group.delay_join(member, reply, effects)
        if group.is_in(_S.COMPLETING_REBALANCE):
            # The leader may be assigning to the old member id.
            self._rebalancer.prepare(shard, group, effects)
            return
        if not group.is_in(_S.STABLE) or group.select_protocol() != group.protocol_name:
            self._rebalancer.maybe_prepare(shard, group, effects)
            return

        def on_written(error: ErrorCode, effects: Effects) -> None:
            if group.members.get(member_id) is not member or member.join_reply is not reply:
                return None  # it left, was replaced or rebalanced meanwhile, and has been answered
            if error is not _E.NONE:
                member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms = before
                member.join_reply = None
                restored = group.replace_static_member(instance_id, old.member_id, effects)
                self._rebalancer.cancel_session(group.group_id, member_id, effects)
                self._rebalancer.reset_session(shard, group, restored, effects)
                return reply(JoinGroupResult(error), effects)
            result = _replaced_result(group, member, request, old_leader)
            group.complete_join(member, result, effects)
            return None

        write_group(self._runtime, shard, group, on_written, effects)

    # ---------------------------------------------------------------- with a member id

    def _join_known(
        self,
        shard: GroupShard,
        group: ClassicGroup,
        request: JoinGroup,
        reply: JoinReply,
        effects: Effects,
    ) -> None:
        member_id = request.member_id
        if member_id in group.pending_join:
            if request.group_instance_id is not None:
                # A member id that waits to join was given to a dynamic member. Kafka fails over
                # it (an IllegalStateException), and this is what clients are answered.
                reply(JoinGroupResult(_E.UNKNOWN_SERVER_ERROR), effects)
            else:
                self._add_member(shard, group, request, (member_id, reply), effects)
            return
        error = group.validate_member(member_id, request.group_instance_id)
        if error is not _E.NONE or group.is_in(_S.EMPTY, _S.DEAD):
            error = _E.UNKNOWN_MEMBER_ID if error is _E.NONE else error
            reply(JoinGroupResult(error, member_id), effects)
            return
        member = group.members[member_id]
        if self._needs_rebalance(group, member, request):
            _update_member(member, request)
            group.delay_join(member, reply, effects)
            self._rebalancer.maybe_prepare(shard, group, effects)
        else:
            # Nothing changed: it lost the answer of the present generation.
            reply(joined_result(group, member), effects)

    @staticmethod
    def _needs_rebalance(group: ClassicGroup, member: Member, request: JoinGroup) -> bool:
        if group.is_in(_S.PREPARING_REBALANCE):
            return True
        # In a stable group the leader's JoinGroup means that it saw something that the members'
        # metadata does not show, such as new partitions.
        leads_stable = group.is_in(_S.STABLE) and group.is_leader(member.member_id)
        return leads_stable or member.protocols != request.protocols


def _replaced_result(
    group: ClassicGroup, member: Member, request: JoinGroup, old_leader: str | None
) -> JoinGroupResult:
    result = joined_result(group, member)
    if request.supports_skipping_assignment:
        return replace(result, skip_assignment=group.is_leader(member.member_id))
    # A client that does not know skip_assignment must not believe it is the leader: it would make
    # an assignment that nobody asked for.
    return replace(result, leader=old_leader or "", members=())


def _update_member(member: Member, request: JoinGroup) -> None:
    member.protocols = request.protocols
    member.rebalance_timeout_ms = request.own_rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms


def _member_prefix(request: JoinGroup) -> str:
    """Return the prefix of a new member's id, as in Kafka."""
    if request.group_instance_id is not None:
        return request.group_instance_id
    return request.client_id


def _is_storable(request: JoinGroup) -> bool:
    """True if the group's record, written much later, can hold the member's strings."""
    names = (request.protocol_type, *(name for name, _ in request.protocols))
    member_id = _member_prefix(request) + "-" + " " * UUID_LENGTH
    return all(is_storable(text) for text in (*names, member_id))
