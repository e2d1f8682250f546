"""The group coordinator beside a dumb model: same answers, in any order, over time and crashes.

Whatever is parked is parked in the model, and released by the same request or timer with the same
answer. After a crash in any state the group is what was stored of it, and offsets, committed and
pending, are what they were.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.core.coordinators import World
from support.models.group import (
    INITIAL_DELAY_MS,
    PREPARING,
    REBALANCE_MS,
    SESSION_MS,
    GroupModel,
    Joined,
    Synced,
)

from broker_sim.core.group.requests import (
    LeavingMember,
)
from txnlog_kafka.wire.error_codes import ErrorCode

E = ErrorCode
MEMBERS_MAX = 5
CONFIG = {
    "group.initial.rebalance.delay.ms": INITIAL_DELAY_MS,
    # Expiry of empty groups has tests of its own.
    "offsets.retention.check.interval.ms": 2**40,
}
INSTANCES = st.sampled_from([None, None, None, "i0", "i1"])
WHO = st.integers(0, 5)
DRIFT = st.sampled_from([0, 0, 0, 0, 1, -1])


class GroupMachine(RuleBasedStateMachine):
    """A state machine of one coordinator with one group, `g`."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(CONFIG)
        self.model = GroupModel()
        self.ids = ["nobody"]
        self.tokens: dict[int, list[Any]] = {}
        self.next_token = 0
        self.committed: dict[str, int] = {}
        self.pending: dict[int, dict[str, int]] = {}

    def member_id(self, who: int) -> str:
        """The newest id for 0, the one before for 1, ..."""
        return self.ids[max(len(self.ids) - 1 - who, 0)]

    def remember(self, answers: list[Any]) -> int:
        """A token for a request whose answer may come later."""
        self.next_token += 1
        self.tokens[self.next_token] = answers
        return self.next_token

    @initialize(count=st.integers(0, 3), instances=st.booleans(), settled=st.booleans())
    def begin(self, count: int, instances: bool, settled: bool) -> None:
        """Most runs begin with a group at work."""
        for number in range(count):
            self.come_in(f"i{number}" if instances else None, b"a")
        if settled:
            self.finish_the_rebalance(leader_first=True)

    # ------------------------------------------------------------------ members

    @rule(who=st.none() | WHO, instance=INSTANCES, metadata=st.sampled_from([b"a", b"a", b"b"]))
    def join(self, who: int | None, instance: str | None, metadata: bytes) -> None:
        member_id = "" if who is None else self.member_id(who)
        new_id = f"{instance or ''}-{self.world.next_uuid()}"
        if not member_id:
            self.ids.append(new_id)
        answers = self.world.join(
            member_id=member_id,
            group_instance_id=instance,
            protocols=(("range", metadata),),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
        )
        self.model.join(self.remember(answers), member_id, instance, metadata, new_id)

    @rule(who=WHO, instance=INSTANCES, drift=DRIFT, own=st.booleans())
    def sync(self, who: int, instance: str | None, drift: int, own: bool) -> None:
        member_id = self.member_id(who)
        instance = self.own_instance(member_id) if own else instance
        generation = self.model.generation + drift
        parts = {each: each.encode() for each in self.model.members}
        answers = self.world.sync(
            member_id=member_id,
            group_instance_id=instance,
            generation_id=generation,
            assignments=parts,
        )
        self.model.sync(self.remember(answers), member_id, instance, generation, parts)

    def own_instance(self, member_id: str) -> str | None:
        """The instance id that goes with a member id."""
        member = self.model.members.get(member_id)
        return None if member is None else member.instance

    @rule(who=WHO, instance=INSTANCES, drift=DRIFT, own=st.booleans())
    def heartbeat(self, who: int, instance: str | None, drift: int, own: bool) -> None:
        member_id = self.member_id(who)
        instance = self.own_instance(member_id) if own else instance
        generation = self.model.generation + drift
        told = self.world.heartbeat(member_id, generation, instance)
        assert told is self.model.heartbeat(member_id, instance, generation)

    @rule(who=st.none() | WHO, instance=INSTANCES)
    def leave(self, who: int | None, instance: str | None) -> None:
        member_id = "" if who is None else self.member_id(who)
        (told,) = self.world.leave(LeavingMember(member_id, instance))
        assert told is self.model.leave(member_id, instance)

    # ------------------------------------------------------------------ clients that do their duty

    @precondition(lambda self: len(self.model.members) < MEMBERS_MAX)
    @rule(instance=INSTANCES, metadata=st.sampled_from([b"a", b"a", b"b"]))
    def come_in(self, instance: str | None, metadata: bytes) -> None:
        """A new client joins, with the id that it is told to use."""
        self.join(None, instance, metadata)
        if instance is None:
            self.join(0, None, metadata)

    @rule(leader_first=st.booleans())
    def finish_the_rebalance(self, leader_first: bool) -> None:
        """Let missing members join, delays pass, and every member ask for its assignment."""
        for member in [*self.model.members.values()]:
            is_there = member.member_id in self.model.members
            if is_there and member.join_token is None and self.model.state == PREPARING:
                self.join(self.who(member.member_id), member.instance, member.metadata)
        while self.model.join_at is not None:
            self.wait(self.model.join_at - self.model.now)
        self.all_sync(leader_first)

    @rule(leader_first=st.booleans())
    def all_sync(self, leader_first: bool) -> None:
        """Every member asks for its assignment."""
        members = sorted(
            self.model.members, key=lambda each: (each == self.model.leader) != leader_first
        )
        for member_id in members:
            self.sync(self.who(member_id), None, 0, own=True)

    @rule()
    def all_heartbeat(self) -> None:
        """Every member shows that it lives."""
        for member_id in self.model.members:
            self.heartbeat(self.who(member_id), None, 0, own=True)

    @rule()
    def nobody_but_heartbeats(self) -> None:
        """A rebalance timeout passes while all live."""
        for _ in range(REBALANCE_MS // 10_000 + 1):
            self.all_heartbeat()
            self.wait(10_000)

    def who(self, member_id: str) -> int:
        """The number by which `member_id` gives this id."""
        return len(self.ids) - 1 - self.ids.index(member_id)

    # ------------------------------------------------------------------ offsets

    @rule(who=st.none() | WHO, instance=INSTANCES, drift=DRIFT, topic=st.sampled_from("xy"))
    def commit(self, who: int | None, instance: str | None, drift: int, topic: str) -> None:
        member = self.committer(who, instance, drift)
        offset = self.next_token = self.next_token + 1
        told = self.world.commit_offset(
            offset, topic=topic, knows_group_id_not_found=True, **member
        )
        expected = self.model.commit(*expected_of(member))
        assert told is expected
        if expected is E.NONE:
            self.model.exists = True
            self.committed[topic] = offset

    @rule(
        who=st.none() | WHO,
        instance=INSTANCES,
        drift=DRIFT,
        topic=st.sampled_from("xy"),
        producer_id=st.integers(1, 2),
    )
    def txn_commit(
        self, who: int | None, instance: str | None, drift: int, topic: str, producer_id: int
    ) -> None:
        member = self.committer(who, instance, drift)
        offset = self.next_token = self.next_token + 1
        told = self.world.commit_pending(offset, producer_id, topic, **member)
        expected = self.model.txn_commit(*expected_of(member))
        assert told is expected
        if expected is E.NONE:
            self.model.exists = True
            self.pending.setdefault(producer_id, {})[topic] = offset

    def committer(self, who: int | None, instance: str | None, drift: int) -> dict[str, Any]:
        """Return the fields that name the committing member; `who` None is a consumer without a
        group."""
        if who is None:
            return {"member_id": "", "generation_id": -1, "group_instance_id": None}
        member_id = self.member_id(who)
        own = self.own_instance(member_id)
        return {
            "member_id": member_id,
            "generation_id": self.model.generation + drift,
            "group_instance_id": instance if instance and drift else own,
        }

    @rule(producer_id=st.integers(1, 2), commits=st.booleans())
    def end_transaction(self, producer_id: int, commits: bool) -> None:
        self.world.mark(commit=commits, producer_id=producer_id)
        for topic, offset in self.pending.pop(producer_id, {}).items():
            # Offsets rise with each commit, as their records' places in the log do.
            if commits:
                self.committed[topic] = max(offset, self.committed.get(topic, -1))

    # ------------------------------------------------------------------ time and crashes

    @rule(duration=st.sampled_from([1, 2_999, 3_000, 3_001, 10_000, 19_999, 20_001, 30_001]))
    def wait(self, duration: int) -> None:
        self.world.advance(duration)
        self.model.advance(duration)

    @rule()
    def crash(self) -> None:
        """A new coordinator on the same log."""
        self.world.kill()
        self.tokens.clear()
        has_offsets = bool(self.committed or self.pending) or self.model.exists
        self.model = self.model.load(has_offsets=has_offsets)

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def the_same_requests_are_answered_alike(self) -> None:
        for token, answers in [*self.tokens.items()]:
            expected = self.model.released.pop(token, None)
            if expected is None:
                assert answers == [], (token, answers)
                continue
            (told,) = answers
            del self.tokens[token]
            if isinstance(expected, Synced):
                assert (told.error, told.assignment) == (expected.error, expected.assignment)
            else:
                assert self.joined(told) == expected
        assert not self.model.released

    @staticmethod
    def joined(told: Any) -> Joined:
        """The part of an answer that the model has."""
        members = frozenset(member.member_id for member in told.members)
        return Joined(
            told.error,
            told.member_id,
            told.generation_id,
            told.leader,
            members,
            told.skip_assignment,
        )

    @invariant()
    def the_group_is_the_models(self) -> None:
        described = self.world.groups.describe_group("g")
        if not self.model.exists:
            assert described.error is E.GROUP_ID_NOT_FOUND
            return
        assert described.state == self.model.state
        assert {m.member_id: (m.group_instance_id, m.assignment) for m in described.members} == {
            m.member_id: (m.instance, m.assignment) for m in self.model.members.values()
        }

    @invariant()
    def offsets_are_the_committed_ones_and_undecided_ones_unstable(self) -> None:
        undecided = {topic for offsets in self.pending.values() for topic in offsets}
        for topic in "xy":
            plain = self.world.offset(topic=topic)
            assert plain == (self.committed.get(topic, -1), E.NONE)
            error = E.UNSTABLE_OFFSET_COMMIT if topic in undecided else E.NONE
            assert self.world.offset(topic=topic, stable=True)[1] is error


def expected_of(member: dict[str, Any]) -> tuple[str, str | None, int]:
    """A committer as the model takes it."""
    return member["member_id"], member["group_instance_id"], member["generation_id"]


TestGroupModel = GroupMachine.TestCase
TestGroupModel.settings = settings(max_examples=100, stateful_step_count=40)
