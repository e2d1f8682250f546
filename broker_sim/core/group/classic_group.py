"""Group of the classic protocol: members, generation, leader, and the members that wait.

Rules for this file: no record, no timer, no request; it answers questions about the group and keeps
its own parts consistent. `joining` and `rebalance` handle the requests. A member's delayed answers
are its `join_reply` and `sync_reply`. Source: Kafka's `ClassicGroup` and `ClassicGroupMember`.
Members keep the order in which they joined, so that a run can be repeated; Kafka's order is that of
a hash map.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from broker_sim.core.coordinator.codec import CorruptRecord, decode_fields, version_of
from broker_sim.core.coordinator.runtime import java_hash_code
from broker_sim.core.effects import Effects
from broker_sim.core.group.requests import (
    JoinGroupMember,
    JoinGroupResult,
    JoinReply,
    SyncGroupResult,
    SyncReply,
)
from broker_sim.core.group.states import VALID_PREVIOUS_GROUP_STATES, GroupState
from broker_sim.schemas import ConsumerProtocolSubscription
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import check

Protocols = tuple[tuple[str, bytes], ...]

JAVA_MAP_CAPACITY = 16
JAVA_MAP_LOAD = 0.75


@dataclass(slots=True)
class Member:
    """Member of a group. `protocols` are (name, subscription) in its order of preference."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """Its first JoinGroup is still delayed: it knows no member id, so it cannot heartbeat."""
    join_reply: JoinReply | None = None
    sync_reply: SyncReply | None = None

    @property
    def is_static(self) -> bool:
        """True if the member has an instance id: it may be away for a session timeout (KIP-345)."""
        return self.group_instance_id is not None

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """A waiting member need not heartbeat; a new one is timed out all the same."""
        is_waiting = self.join_reply is not None or self.sync_reply is not None
        return is_waiting and not self.is_new

    def metadata(self, protocol_name: str | None) -> bytes:
        """Its subscription for the chosen protocol."""
        return dict(self.protocols).get(protocol_name or "", b"")

    def vote(self, candidates: set[str]) -> str:
        """The first of its protocols that everybody supports."""
        names = [name for name, _ in self.protocols if name in candidates]
        check(bool(names), "a member supports none of the common protocols", member=self.member_id)
        return names[0]


def java_map_order(key: str, size: int) -> int:
    """Return the bucket of a string in a Java `HashMap` of so many keys, which iterates its buckets
    in order."""
    capacity = JAVA_MAP_CAPACITY
    while size > capacity * JAVA_MAP_LOAD:
        capacity *= 2
    code = java_hash_code(key) & 0xFFFFFFFF
    return (code ^ code >> 16) & (capacity - 1)


class ClassicGroup:
    """The group; see the module's docstring."""

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.EMPTY
        self.state_ms: int | None = now_ms
        """When it got into its state; None for one loaded from an old record."""
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_join: set[str] = set()
        """Member ids given out with MEMBER_ID_REQUIRED that did not come back yet."""
        self.pending_sync: set[str] = set()
        self.new_member_added = False
        """Somebody joined during the initial delay, so it may be extended."""
        self.subscribed_topics: frozenset[str] | None = None

    # ---------------------------------------------------------------- questions

    def is_in(self, *states: GroupState) -> bool:
        """True if the group's state is one of these."""
        return self.state in states

    @property
    def is_empty(self) -> bool:
        """True if the group has no member, and no rebalance is under way."""
        return self.state is GroupState.EMPTY

    @property
    def can_rebalance(self) -> bool:
        """True if a rebalance may begin now."""
        return self.state in VALID_PREVIOUS_GROUP_STATES[GroupState.PREPARING_REBALANCE]

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of its members'."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def awaiting_join_count(self) -> int:
        """Number of members that wait in JoinGroup."""
        return sum(member.join_reply is not None for member in self.members.values())

    @property
    def have_all_joined(self) -> bool:
        """True if all members wait, and no client with a fresh member id is still to come."""
        return self.awaiting_join_count == len(self.members) and not self.pending_join

    @property
    def uses_consumer_protocol(self) -> bool:
        """Its members are consumers (and not, say, Connect workers)."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_leader(self, member_id: str) -> bool:
        """True if this member makes the assignment."""
        return self.leader == member_id

    def is_subscribed_to(self, topic: str) -> bool:
        """True if some member reads it; a subscription that cannot be read counts as all topics."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """True if a member with these protocols may join."""
        offered = set(names)
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(offered)
        if self.protocol_type != protocol_type:
            return False
        # A rebalance that all members left goes on with no vote, hence none against it.
        return bool(offered & self._candidates() if self.members else offered)

    def validate_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID (another process has the instance id) or NONE."""
        if group_instance_id is not None:
            existing = self.static_members.get(group_instance_id)
            if existing is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if existing != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def select_protocol(self) -> str:
        """The common protocol with the most votes.

        Of equals the one that comes first in a Java hash map, as in Kafka: with two members of
        opposite preferences, "range" wins over "roundrobin" in either order.
        """
        check(bool(self.members), "no protocol for an empty group", group_id=self.group_id)
        candidates = self._candidates()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return min(votes, key=lambda name: (-votes[name], java_map_order(name, len(votes))))

    def _candidates(self) -> set[str]:
        sets = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*sets) if sets else set()

    def joined_members(self) -> tuple[JoinGroupMember, ...]:
        """Return the members for the leader's answer."""
        return tuple(
            JoinGroupMember(
                member.member_id, member.group_instance_id, member.metadata(self.protocol_name)
            )
            for member in self.members.values()
        )

    # ---------------------------------------------------------------- changes

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        """Change the state; the table is checked."""
        check(
            self.state in VALID_PREVIOUS_GROUP_STATES[state],
            "illegal group transition",
            group_id=self.group_id,
            current=self.state,
            target=state,
        )
        self.previous_state, self.state, self.state_ms = self.state, state, now_ms

    def add(self, member: Member, protocol_type: str) -> None:
        """A member joins; the first one becomes the leader."""
        if not self.members:
            self.protocol_type = protocol_type
        if member.group_instance_id is not None:
            check(
                member.group_instance_id not in self.static_members,
                "an instance id joins twice",
                group_id=self.group_id,
            )
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.pending_join.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """A member, or a member id that waits to join, is gone; the leader may change."""
        member = self.members.pop(member_id, None)
        if member is not None and member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        if self.is_leader(member_id):
            self.leader = next(iter(self.members), None)
        self.pending_join.discard(member_id)
        self.pending_sync.discard(member_id)

    def replace_static_member(
        self, group_instance_id: str, new_member_id: str, effects: Effects
    ) -> Member:
        """The instance came back under a new member id: fence what the old one waits for."""
        old = self.members.pop(self.static_members[group_instance_id])
        self.complete_join(
            old, JoinGroupResult(ErrorCode.FENCED_INSTANCE_ID, old.member_id), effects
        )
        self.complete_sync(old, SyncGroupResult(ErrorCode.FENCED_INSTANCE_ID), effects)
        new = Member(
            member_id=new_member_id,
            group_instance_id=group_instance_id,
            client_id=old.client_id,
            client_host=old.client_host,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            session_timeout_ms=old.session_timeout_ms,
            protocols=old.protocols,
            assignment=old.assignment,
        )
        self.members[new_member_id] = new
        self.static_members[group_instance_id] = new_member_id
        if self.is_leader(old.member_id):
            self.leader = new_member_id
        return new

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader waits in JoinGroup; False when nobody is."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_reply is not None:
            return True
        for member in self.members.values():
            if member.join_reply is not None:
                self.leader = member.member_id
                return True
        return False

    def begin_next_generation(self, now_ms: int) -> None:
        """Begin a new generation when all members that count have joined, or an empty group."""
        self.generation_id += 1
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition_to(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.transition_to(GroupState.EMPTY, now_ms)
        self.refresh_subscribed_topics()
        self.pending_sync.clear()

    def refresh_subscribed_topics(self) -> None:
        """Work out from the chosen protocol what the group reads; None when it cannot be known."""
        if not self.uses_consumer_protocol:
            self.subscribed_topics = None
        elif not self.members:
            self.subscribed_topics = frozenset()
        elif self.protocol_name is None:
            self.subscribed_topics = None
        else:
            self.subscribed_topics = subscribed_topics(
                member.metadata(self.protocol_name) for member in self.members.values()
            )

    # ---------------------------------------------------------------- delayed answers

    def delay_join(self, member: Member, reply: JoinReply, effects: Effects) -> None:
        """Answer later. A JoinGroup that the member sent before is answered now."""
        self.complete_join(
            member, JoinGroupResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id), effects
        )
        member.join_reply = reply

    def delay_sync(self, member: Member, reply: SyncReply, effects: Effects) -> None:
        """Answer later. A SyncGroup that the member sent before is answered now."""
        self.complete_sync(member, SyncGroupResult(ErrorCode.REBALANCE_IN_PROGRESS), effects)
        member.sync_reply = reply

    def complete_join(self, member: Member, result: JoinGroupResult, effects: Effects) -> bool:
        """Answer a delayed JoinGroup, if there is one."""
        reply, member.join_reply = member.join_reply, None
        if reply is not None:
            reply(result, effects)
        return reply is not None

    def complete_sync(self, member: Member, result: SyncGroupResult, effects: Effects) -> bool:
        """Answer a delayed SyncGroup, if there is one."""
        reply, member.sync_reply = member.sync_reply, None
        if reply is not None:
            reply(result, effects)
        return reply is not None


CONSUMER_PROTOCOL_TYPE = "consumer"


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return all topics of these subscriptions; None when a subscription cannot be read."""
    topics: set[str] = set()
    try:
        for subscription in subscriptions:
            version_of(subscription)
            fields = decode_fields(ConsumerProtocolSubscription, subscription, version=0)
            topics.update(fields.topics)
    except CorruptRecord:
        return None
    return frozenset(topics)
