"""The course of a rebalance: prepare, wait for the members, begin the generation, wait for syncs.

Rules for this file: it knows groups and timers, not requests. Timers of a group, by key:
`group-heartbeat` (a member's session, or its delayed first JoinGroup), `group-join` (the initial
delay, or the rebalance timeout), `group-sync` (members that got the generation and never asked
for their assignment). Source: Kafka's `GroupMetadataManager`, the classic part.
"""

from __future__ import annotations

from functools import partial

from broker_sim.core.config import BrokerConfig
from broker_sim.core.coordinator.timers import KeyedTimers
from broker_sim.core.effects import Effects
from broker_sim.core.group.classic_group import ClassicGroup, Member
from broker_sim.core.group.requests import JoinGroupResult, SyncGroupResult
from broker_sim.core.group.shard import GroupRuntime, GroupShard, ignore, write_group
from broker_sim.core.group.states import GroupState
from txnlog_kafka.wire.error_codes import ErrorCode

_S = GroupState


class Rebalancer:
    """Moves groups through their states."""

    def __init__(self, config: BrokerConfig, runtime: GroupRuntime, timers: KeyedTimers) -> None:
        self._config = config
        self._runtime = runtime
        self._timers = timers

    # ---------------------------------------------------------------- sessions

    def reset_session(
        self,
        shard: GroupShard,
        group: ClassicGroup,
        member: Member,
        effects: Effects,
        timeout_ms: int | None = None,
    ) -> None:
        """The member is alive: give it its session timeout (or `timeout_ms`) from now."""
        self._timers.schedule(
            heartbeat_key(group.group_id, member.member_id),
            member.session_timeout_ms if timeout_ms is None else timeout_ms,
            partial(self._expire_session, shard, group.group_id, member.member_id),
            effects,
        )

    def await_pending_member(
        self,
        shard: GroupShard,
        group: ClassicGroup,
        member_id: str,
        timeout_ms: int,
        effects: Effects,
    ) -> None:
        """A member id was given out: its owner must come back with it within `timeout_ms`."""
        group.pending_join.add(member_id)
        self._timers.schedule(
            heartbeat_key(group.group_id, member_id),
            timeout_ms,
            partial(self._expire_session, shard, group.group_id, member_id),
            effects,
        )

    def cancel_session(self, group_id: str, member_id: str, effects: Effects) -> None:
        """The member is gone."""
        self._timers.cancel(heartbeat_key(group_id, member_id), effects)

    def cancel_all(self, group: ClassicGroup, effects: Effects) -> None:
        """The group is gone, or another broker's."""
        for member_id in (*group.members, *sorted(group.pending_join)):
            self.cancel_session(group.group_id, member_id, effects)
        self._timers.cancel(join_key(group.group_id), effects)
        self._timers.cancel(sync_key(group.group_id), effects)

    def end(self, group: ClassicGroup, effects: Effects) -> None:
        """A consumer group has taken the members over: those that wait are to join again."""
        self.cancel_all(group, effects)
        again = ErrorCode.REBALANCE_IN_PROGRESS
        for member in group.members.values():
            group.complete_join(member, JoinGroupResult(again, member.member_id), effects)
            group.complete_sync(member, SyncGroupResult(again), effects)
        group.transition_to(_S.DEAD, effects.now_ms)

    def _expire_session(
        self, shard: GroupShard, group_id: str, member_id: str, effects: Effects
    ) -> None:
        group = shard.groups.get(group_id)
        if group is None:
            return
        if member_id in group.pending_join:
            group.remove(member_id)
            if group.is_in(_S.PREPARING_REBALANCE) and group.have_all_joined:
                self._complete_join_phase(shard, group, effects)
            return
        member = group.members.get(member_id)
        if member is None or member.has_satisfied_heartbeat:
            return
        effects.trace("group-member-expired", group_id=group_id, member_id=member_id)
        self.remove_member(group, member, effects)
        self.after_removal(shard, group, effects, is_expiry=True)

    def remove_member(self, group: ClassicGroup, member: Member, effects: Effects) -> None:
        """Take it out; a delayed JoinGroup is answered, so that a live client joins again."""
        self.cancel_session(group.group_id, member.member_id, effects)
        group.complete_join(member, JoinGroupResult(ErrorCode.UNKNOWN_MEMBER_ID), effects)
        group.complete_sync(member, SyncGroupResult(ErrorCode.UNKNOWN_MEMBER_ID), effects)
        group.remove(member.member_id)

    def after_removal(
        self, shard: GroupShard, group: ClassicGroup, effects: Effects, *, is_expiry: bool
    ) -> None:
        """Members left or failed: rebalance the rest, or see whether all others are back."""
        if group.is_in(_S.STABLE, _S.COMPLETING_REBALANCE):
            self.maybe_prepare(shard, group, effects)
        elif not group.is_in(_S.PREPARING_REBALANCE):
            return
        elif not is_expiry:
            self._maybe_complete_join_phase(shard, group, effects)
        elif group.have_all_joined:
            self._complete_join_phase(shard, group, effects)

    # ---------------------------------------------------------------- join phase

    def maybe_prepare(self, shard: GroupShard, group: ClassicGroup, effects: Effects) -> None:
        """Begin a rebalance, or, when one is under way, see whether all have joined."""
        if group.can_rebalance:
            self.prepare(shard, group, effects)
        else:
            self._maybe_complete_join_phase(shard, group, effects)

    def prepare(self, shard: GroupShard, group: ClassicGroup, effects: Effects) -> None:
        """Begin a rebalance. An empty group waits a little for more members first."""
        if group.is_in(_S.COMPLETING_REBALANCE):
            self.propagate_error(shard, group, ErrorCode.REBALANCE_IN_PROGRESS, effects)
        self.cancel_sync_expiration(group, effects)
        is_initial = group.is_in(_S.EMPTY)
        if is_initial:
            delay_ms = self._config.integer("group.initial.rebalance.delay.ms")
            remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._schedule_initial(shard, group, delay_ms, remaining_ms, effects)
        group.transition_to(_S.PREPARING_REBALANCE, effects.now_ms)
        if not is_initial:
            if group.have_all_joined:
                self._complete_join_phase(shard, group, effects)
            else:
                self._schedule_join_timeout(shard, group, effects)

    def _schedule_initial(
        self,
        shard: GroupShard,
        group: ClassicGroup,
        delay_ms: int,
        remaining_ms: int,
        effects: Effects,
    ) -> None:
        self._timers.schedule(
            join_key(group.group_id),
            delay_ms,
            partial(self._end_initial_delay, shard, group.group_id, delay_ms, remaining_ms),
            effects,
        )

    def _end_initial_delay(
        self,
        shard: GroupShard,
        group_id: str,
        delay_ms: int,
        remaining_ms: int,
        effects: Effects,
    ) -> None:
        group = shard.groups.get(group_id)
        if group is None or not group.is_in(_S.PREPARING_REBALANCE):
            return
        if group.new_member_added and remaining_ms != 0:
            group.new_member_added = False
            next_delay_ms = min(
                self._config.integer("group.initial.rebalance.delay.ms"), remaining_ms
            )
            next_remaining_ms = max(remaining_ms - delay_ms, 0)
            self._schedule_initial(shard, group, next_delay_ms, next_remaining_ms, effects)
        else:
            self._complete_join_phase(shard, group, effects)

    def _schedule_join_timeout(
        self, shard: GroupShard, group: ClassicGroup, effects: Effects
    ) -> None:
        self._timers.schedule(
            join_key(group.group_id),
            group.rebalance_timeout_ms,
            partial(self._expire_join, shard, group.group_id),
            effects,
        )

    def _expire_join(self, shard: GroupShard, group_id: str, effects: Effects) -> None:
        group = shard.groups.get(group_id)
        if group is not None and group.is_in(_S.PREPARING_REBALANCE):
            self._complete_join_phase(shard, group, effects)

    def _maybe_complete_join_phase(
        self, shard: GroupShard, group: ClassicGroup, effects: Effects
    ) -> None:
        if not group.is_in(_S.PREPARING_REBALANCE) or group.previous_state is _S.EMPTY:
            # The initial rebalance always waits for its delay.
            return
        if group.have_all_joined:
            self._complete_join_phase(shard, group, effects)

    def _complete_join_phase(
        self, shard: GroupShard, group: ClassicGroup, effects: Effects
    ) -> None:
        """A member that has not come is out (a static one may stay away); begin the generation."""
        self._timers.cancel(join_key(group.group_id), effects)
        absent = [m for m in group.members.values() if m.join_reply is None and not m.is_static]
        for member in absent:
            group.remove(member.member_id)
            self.cancel_session(group.group_id, member.member_id, effects)
        if group.members and not group.elect_joined_leader():
            # Static members only, none of them here: wait until their sessions end.
            self._schedule_join_timeout(shard, group, effects)
            return
        group.begin_next_generation(effects.now_ms)
        effects.trace(
            "group-generation",
            group_id=group.group_id,
            generation_id=group.generation_id,
            members=len(group.members),
        )
        if group.is_in(_S.EMPTY):
            # A failure to store this is harmless: the old generation's members would expire.
            write_group(self._runtime, shard, group, ignore, effects)
        else:
            self._answer_joins(shard, group, effects)

    def _answer_joins(self, shard: GroupShard, group: ClassicGroup, effects: Effects) -> None:
        for member in group.members.values():
            group.complete_join(member, joined_result(group, member), effects)
            self.reset_session(shard, group, member, effects)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        self._timers.schedule(
            sync_key(group.group_id),
            group.rebalance_timeout_ms,
            partial(self._expire_sync, shard, group.group_id, group.generation_id),
            effects,
        )

    # ---------------------------------------------------------------- sync phase

    def store_assignment(self, shard: GroupShard, group: ClassicGroup, effects: Effects) -> None:
        """The leader's assignment is in the members: store it, then answer all."""
        generation_id = group.generation_id

        def on_written(error: ErrorCode, effects: Effects) -> None:
            if not group.is_in(_S.COMPLETING_REBALANCE) or group.generation_id != generation_id:
                return  # the group went on meanwhile, and has answered
            if error is not ErrorCode.NONE:
                self.propagate_error(shard, group, error, effects)
                self.maybe_prepare(shard, group, effects)
                return
            group.transition_to(_S.STABLE, effects.now_ms)
            for member in group.members.values():
                if group.complete_sync(member, synced_result(group, member), effects):
                    self.reset_session(shard, group, member, effects)

        write_group(self._runtime, shard, group, on_written, effects)

    def propagate_error(
        self, shard: GroupShard, group: ClassicGroup, error: ErrorCode, effects: Effects
    ) -> None:
        """There is no assignment for this generation: members that wait for one get the reason."""
        for member in group.members.values():
            member.assignment = b""
            if group.complete_sync(member, SyncGroupResult(error), effects):
                self.reset_session(shard, group, member, effects)

    def on_synced(self, group: ClassicGroup, member_id: str, effects: Effects) -> None:
        """A member asked for its assignment; when all have, nobody is waited for."""
        group.pending_sync.discard(member_id)
        if group.is_in(_S.COMPLETING_REBALANCE, _S.STABLE) and not group.pending_sync:
            self.cancel_sync_expiration(group, effects)

    def cancel_sync_expiration(self, group: ClassicGroup, effects: Effects) -> None:
        """Nobody's SyncGroup is waited for any more."""
        group.pending_sync.clear()
        self._timers.cancel(sync_key(group.group_id), effects)

    def _expire_sync(
        self, shard: GroupShard, group_id: str, generation_id: int, effects: Effects
    ) -> None:
        group = shard.groups.get(group_id)
        if group is None or group.generation_id != generation_id or not group.pending_sync:
            return
        if not group.is_in(_S.COMPLETING_REBALANCE, _S.STABLE):
            return
        for member_id in sorted(group.pending_sync):
            group.remove(member_id)
            self.cancel_session(group_id, member_id, effects)
        self.prepare(shard, group, effects)


def heartbeat_key(group_id: str, member_id: str) -> tuple[str, ...]:
    """The timer of a member's session."""
    return ("group-heartbeat", group_id, member_id)


def join_key(group_id: str) -> tuple[str, ...]:
    """The timer of a group's join phase."""
    return ("group-join", group_id)


def sync_key(group_id: str) -> tuple[str, ...]:
    """The timer of a group's sync phase."""
    return ("group-sync", group_id)


def joined_result(group: ClassicGroup, member: Member) -> JoinGroupResult:
    """The present generation, for one member; the leader learns who is in it."""
    is_leader = group.is_leader(member.member_id)
    return JoinGroupResult(
        ErrorCode.NONE,
        member.member_id,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        members=group.joined_members() if is_leader else (),
    )


def synced_result(group: ClassicGroup, member: Member) -> SyncGroupResult:
    """Return the answer with the member's assignment."""
    return SyncGroupResult(
        ErrorCode.NONE, group.protocol_type, group.protocol_name, member.assignment
    )
