"""Random histories of a consumer group against a small model; the steps of a reconciliation.

The members of the model do as clients do: they own what they were answered, give up what the answer
no longer has, and report it. The model knows only this: no partition has two owners that believe in
it, all of the log gives the same group, and a group that is left alone becomes stable.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.core.consumers import subscription
from support.core.coordinators import contents

from broker_sim.core.controller.image import Topic
from broker_sim.core.controller.registrations import PartitionRegistration
from broker_sim.core.group.classic_group import ClassicGroup
from broker_sim.core.group.consumer_changes import (
    GroupChange,
    Settings,
    beat,
    fence,
    leaving_member,
    matching,
    refuse_request,
    resolve,
    set_away,
)
from broker_sim.core.group.consumer_group import (
    ConsumerGroup,
    ConsumerGroupState,
    ConsumerMember,
    topic_digest,
)
from broker_sim.core.group.consumer_records import (
    Current,
    MemberState,
    decode_record,
    encode_record,
)
from broker_sim.core.group.migration import join, remove, upgrade
from broker_sim.core.group.requests import ConsumerHeartbeat, JoinGroup
from txnlog_kafka.wire.error_codes import ErrorCode

E, M, S = ErrorCode, MemberState, ConsumerGroupState
A, B = uuid.UUID(int=1), uuid.UUID(int=2)


def topics(**counts: int) -> dict[str, Topic]:
    ids = {"a": A, "b": B}
    return {name: Topic(name, ids[name], count, {}, 0) for name, count in counts.items()}


def check_owners(group: ConsumerGroup) -> None:
    """Each partition has one owner, and the group knows it."""
    owned = {
        member_id: [*places(member.current.assigned), *places(member.current.pending_revocation)]
        for member_id, member in group.members.items()
    }
    assert sum(map(len, owned.values())) == len(group.owners)
    assert {place: name for name, found in owned.items() for place in found} == group.owners


def heartbeat(member_id: str, epoch: int, **more) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(group_id="g", member_id=member_id, member_epoch=epoch, **more)


class Life:
    """A group, its log, and clients of both protocols as they see themselves."""

    def __init__(self, *, interval_ms: int = 0, **counts: int) -> None:
        self.group = ConsumerGroup("g")
        self.log: list = []
        self.topics = topics(**(counts or {"a": 4}))
        self.now_ms = 1_000
        self.interval_ms = interval_ms
        self.kinds = 0
        """Number of times that the group was a classic group for a while."""
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, dict] = {}

    def run(self, step) -> object:
        """Take a step on a copy, and keep the copy unless the step is refused."""
        change = GroupChange(self.group)
        answer = step(change)
        if not (isinstance(answer, ErrorCode) and answer is not E.NONE):
            self.group = change.group
            self.log += change.records
            if change.classic is not None:
                self.upgrade_again(change.classic)
            check_owners(self.group)
        return answer

    def upgrade_again(self, classic: ClassicGroup) -> None:
        """The group has become a classic group: its members get their assignments, and a member of
        KIP-848 upgrades it."""
        assert self.replayed().members == {}
        change = GroupChange(ConsumerGroup("g"))
        assert upgrade(change, classic, self.settings) is None
        self.group, self.log, self.kinds = change.group, [*change.records], self.kinds + 1
        for member_id in sorted(self.epochs):
            if member_id in classic.members:
                self.learn(member_id, self.group.members[member_id])
        self.join("m1")

    @property
    def settings(self) -> Settings:
        return Settings(
            topics=self.topics, now_ms=self.now_ms, assignment_interval_ms=self.interval_ms
        )

    def send(self, member_id: str, epoch: int, **more) -> object:
        request = heartbeat(member_id, epoch, **more)
        assert refuse_request(request, ("uniform", "range"))[0] is E.NONE
        if epoch < 0:
            return self.run(lambda change: self.leave(change, request))
        return self.run(lambda change: beat(change, request, self.settings))

    def leave(self, change: GroupChange, request: ConsumerHeartbeat) -> object:
        member = leaving_member(change.group, request)
        if isinstance(member, ErrorCode):
            return member
        if request.member_epoch == -2:
            set_away(change, member)
        else:
            remove(change, [member.member_id], self.settings)
        return E.NONE

    def classic_join(self, member_id: str, names: str = "a") -> object:
        """JoinGroup of a classic consumer, which owns what it was answered last."""
        named = {topic.topic_id: name for name, topic in self.topics.items()}
        found = self.owned.get(member_id, {}).items()
        owned = {named[topic]: sorted(numbers) for topic, numbers in found if topic in named}
        protocols = (("range", subscription(*names, owned=owned)),)
        asked = JoinGroup(group_id="g", member_id=member_id, protocols=protocols)
        answer = self.run(lambda change: join(change, asked, member_id, self.settings))
        self.learn(member_id, answer)
        return answer

    def join(self, member_id: str, names: str = "a", **more) -> object:
        fields = {"topic_names": frozenset(names), "rebalance_timeout_ms": 100, "owned": {}} | more
        answer = self.send(member_id, 0, **fields)
        self.learn(member_id, answer)
        return answer

    def beat(self, member_id: str, *, loses_answer: bool = False, **more) -> object:
        owned = {topic: frozenset(found) for topic, found in self.owned[member_id].items()}
        answer = self.send(member_id, self.epochs[member_id], owned=owned, **more)
        if not loses_answer:
            self.learn(member_id, answer)
        return answer

    def learn(self, member_id: str, answer) -> None:
        if isinstance(answer, ErrorCode):
            if answer in (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID):
                self.epochs.pop(member_id, None)
                self.owned.pop(member_id, None)
            return
        self.epochs[member_id] = answer.current.epoch
        self.owned[member_id] = {
            topic: set(found) for topic, found in answer.current.assigned.items()
        }

    def replayed(self) -> ConsumerGroup:
        group = ConsumerGroup("g")
        for record in self.log:
            key, value = encode_record(record)
            read = decode_record(key, value)
            assert read == record
            group.apply(read)
        return group

    def check(self) -> None:
        assert contents(self.replayed()) == contents(self.group)
        believed = [
            (topic, number)
            for member_id, found in self.owned.items()
            if member_id in self.group.members
            for topic, numbers in found.items()
            for number in numbers
        ]
        assert len(believed) == len(set(believed)), "two clients own a partition"

    def settle(self) -> None:
        """Heartbeats of all clients until nothing changes."""
        for _ in range(12):
            self.now_ms += 1_000
            for member_id in sorted(self.group.members):
                # Clients that are away, fenced or told nothing are removed as their sessions end.
                if member_id in self.group.members and member_id not in self.epochs:
                    self.run(lambda change, name=member_id: remove(change, [name], self.settings))
            for member_id in sorted(self.epochs):
                if self.group.members[member_id].is_classic:
                    names = self.group.members[member_id].subscription.topic_names
                    self.classic_join(member_id, "".join(sorted(names)))
                else:
                    self.beat(member_id)
            self.check()


def current(life: Life, member_id: str) -> Current:
    return life.group.members[member_id].current


def test_a_second_member_gets_partitions_when_the_first_has_given_them_up() -> None:
    life = Life(a=4)
    assert life.group.state is S.EMPTY
    life.join("m1")
    assert current(life, "m1") == Current(2, 0, M.STABLE, {A: {0: 2, 1: 2, 2: 2, 3: 2}})
    life.join("m2")
    assert life.group.state is S.RECONCILING
    assert current(life, "m2") == Current(3, 0, M.UNRELEASED)
    owned = dict(life.owned["m1"])
    life.beat("m1")
    assert current(life, "m1") == Current(2, 2, M.UNREVOKED, {A: {0: 2, 1: 2}}, {A: {2: 2, 3: 2}})
    # It still owns them, and then does not say what it owns: the coordinator waits.
    life.owned["m1"] = owned
    life.beat("m1")
    life.send("m1", 2)
    assert current(life, "m1").state is M.UNREVOKED
    life.beat("m2")
    assert current(life, "m2").assigned == {}
    life.beat("m1")
    assert current(life, "m1") == Current(3, 2, M.STABLE, {A: {0: 2, 1: 2}})
    life.beat("m2")
    assert current(life, "m2") == Current(3, 3, M.STABLE, {A: {2: 3, 3: 3}})
    assert life.group.state is S.STABLE
    life.check()


def test_the_epoch_before_passes_with_a_part_of_the_assignment_alone() -> None:
    life = Life(a=2)
    life.join("m1")
    life.join("m2")
    life.beat("m1")
    life.beat("m1", loses_answer=True)
    assert (current(life, "m1").epoch, life.epochs["m1"]) == (3, 2)
    assert life.send("m1", 2) is E.FENCED_MEMBER_EPOCH
    assert life.send("m1", 2, owned={B: frozenset({0})}) is E.FENCED_MEMBER_EPOCH
    assert life.send("m1", 4) is E.FENCED_MEMBER_EPOCH
    assert not isinstance(life.send("m1", 2, owned={A: frozenset({0})}), ErrorCode)
    assert life.send("m9", 1) is E.UNKNOWN_MEMBER_ID


def test_a_static_member_comes_back_under_another_id_and_keeps_its_partitions() -> None:
    life = Life(a=4)
    life.join("m1", instance_id="i")
    assert life.send("m2", 0, **JOINING, instance_id="i") is E.UNRELEASED_INSTANCE_ID
    assert life.send("m2", 1, instance_id="i") is E.FENCED_INSTANCE_ID
    assert life.send("m2", -2, instance_id="i") is E.FENCED_INSTANCE_ID
    assert life.send("m2", 1, instance_id="j") is E.UNKNOWN_MEMBER_ID
    life.send("m1", -2, instance_id="i")
    away = current(life, "m1")
    assert (away.epoch, away.assigned) == (-2, {A: {0: 0, 1: 0, 2: 0, 3: 0}})
    life.join("m2", instance_id="i")
    assert set(life.group.members) == {"m2"}
    assert life.group.epoch == 2
    assert current(life, "m2") == Current(2, 0, M.STABLE, {A: {0: 0, 1: 0, 2: 0, 3: 0}})
    assert life.send("m1", 1) is E.UNKNOWN_MEMBER_ID
    life.send("m2", -1, instance_id="i")
    assert life.group.state is S.EMPTY
    assert (life.group.target_epoch, life.group.target_ms) == (life.group.epoch, 0)
    life.check()


JOINING = {"topic_names": frozenset("a"), "rebalance_timeout_ms": 100, "owned": {}}


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"member_id": ""}, E.INVALID_REQUEST),
        ({"group_id": ""}, E.INVALID_REQUEST),
        ({"instance_id": ""}, E.INVALID_REQUEST),
        ({"rack_id": ""}, E.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, E.INVALID_REQUEST),
        ({"owned": None}, E.INVALID_REQUEST),
        ({"owned": {A: frozenset({0})}}, E.INVALID_REQUEST),
        ({"topic_names": None}, E.INVALID_REQUEST),
        ({"topic_names": None, "topic_regex": ""}, E.NONE),
        ({"member_epoch": -2}, E.INVALID_REQUEST),
        ({"member_epoch": -3}, E.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, E.UNSUPPORTED_ASSIGNOR),
        ({"member_id": "", "requires_member_id": False}, E.NONE),
        ({"member_id": "", "requires_member_id": False, "member_epoch": 1}, E.INVALID_REQUEST),
    ],
)
def test_requests_that_contradict_themselves_are_refused(more, error) -> None:
    fields = {"group_id": "g", "member_id": "m", "member_epoch": 0} | JOINING | more
    assert refuse_request(ConsumerHeartbeat(**fields), ("uniform", "range"))[0] is error


def test_a_new_partition_and_a_new_topic_begin_an_epoch() -> None:
    life = Life(a=1)
    life.join("m1", "ab")
    assert current(life, "m1").assigned == {A: {0: 2}}
    life.topics = topics(a=2)
    life.beat("m1")
    assert current(life, "m1").assigned == {A: {0: 2, 1: 3}}
    life.topics = topics(a=2, b=1)
    life.beat("m1")
    assert current(life, "m1").assigned == {A: {0: 2, 1: 3}, B: {0: 4}}
    life.topics = topics(b=1)
    life.beat("m1")
    life.beat("m1")
    assert current(life, "m1").assigned == {B: {0: 4}}


def test_targets_are_made_once_in_the_interval() -> None:
    life = Life(a=2, interval_ms=1_000)
    life.join("m1")
    life.join("m2")
    assert life.group.state is S.ASSIGNING
    assert (life.group.epoch, life.group.target_epoch) == (3, 2)
    assert current(life, "m2") == Current(2, 0, M.STABLE)
    life.now_ms += 999
    life.beat("m2")
    assert life.group.target_epoch == 2
    life.now_ms += 1
    life.beat("m2")
    assert life.group.target_epoch == 3


def test_an_expression_has_its_topics_after_it_is_resolved() -> None:
    life = Life(a=2, b=1)
    assert life.join("m0", topic_names=None, topic_regex="[") is E.INVALID_REGULAR_EXPRESSION
    life.join("m1", topic_names=None, topic_regex="a|b")
    # Nothing to assign yet, hence no new epoch: the one that a group begins with.
    assert current(life, "m1") == Current(1, 0, M.STABLE)
    found = matching(["a|b", "gone"], life.topics)
    life.run(lambda change: resolve(change, found, life.settings))
    assert set(life.group.regexes) == {"a|b"}
    life.beat("m1")
    assert set(current(life, "m1").assigned) == {A, B}
    life.beat("m1", topic_regex="", topic_names=frozenset("a"))
    assert life.group.regexes == {}
    life.settle()
    assert set(current(life, "m1").assigned) == {A}
    assert matching(["b", "("], ["b", "bb", "ab"]) == {"b": frozenset({"b"}), "(": frozenset()}


def test_the_last_member_of_an_expression_takes_it_along() -> None:
    life = Life(a=2)
    life.join("m1", topic_names=None, topic_regex="a")
    life.run(lambda change: resolve(change, {"a": frozenset("a")}, life.settings))
    life.run(lambda change: fence(change, ["m1"], life.settings))
    assert (life.group.regexes, life.group.epoch) == ({}, 3)
    life.check()


def test_a_full_group_takes_no_member_more() -> None:
    life = Life()
    life.join("m1")
    life.join("m2", instance_id="i")
    life.send("m2", -2, instance_id="i")
    full = Settings(topics=life.topics, now_ms=0, max_size=2)
    for instance_id, expected in (None, E.GROUP_MAX_SIZE_REACHED), ("j", E.GROUP_MAX_SIZE_REACHED):
        joining = heartbeat("m3", 0, **JOINING, instance_id=instance_id)
        assert life.run(lambda change, request=joining: beat(change, request, full)) is expected
    # A static member that comes back takes its own place.
    back = heartbeat("m3", 0, **JOINING, instance_id="i")
    assert not isinstance(life.run(lambda change: beat(change, back, full)), ErrorCode)
    assert set(life.group.members) == {"m1", "m3"}


def test_another_preferred_assignor_begins_an_epoch() -> None:
    life = Life(a=2)
    life.join("m1")
    epoch = life.group.epoch
    life.beat("m1", server_assignor="uniform")
    assert life.group.epoch == epoch
    life.beat("m1", server_assignor="range")
    assert (life.group.epoch, current(life, "m1").epoch) == (epoch + 1, epoch + 1)
    life.check()


def test_racks_of_replicas_are_in_the_digest_of_a_topic() -> None:
    there = PartitionRegistration.new((1, 2), (1, 2))
    topic = replace(topics(a=1)["a"], partitions=(there,))
    plain, east = topic_digest(topic, {}), topic_digest(topic, {1: "east", 2: "west"})
    assert plain != east == topic_digest(topic, {2: "west", 1: "east", 3: "north"})
    assert topic_digest(topic, {1: "west", 2: "east"}) == east
    assert topic_digest(topic, {1: "east"}) not in (plain, east)
    moved = replace(topic, partitions=(PartitionRegistration.new((1, 3), (1, 3)),))
    assert topic_digest(moved, {1: "east", 2: "west", 3: "north"}) != east


def test_another_instance_id_of_a_member_frees_the_one_before() -> None:
    life = Life(a=1)
    life.join("m1", instance_id="i")
    life.join("m1", instance_id="j")
    assert life.group.static_members == {"j": "m1"}
    life.join("m2", instance_id="i")
    assert life.group.static_members == {"i": "m2", "j": "m1"}
    life.check()


def test_a_member_in_a_state_of_a_newer_broker_joins_again_without_partitions() -> None:
    life = Life(a=1)
    life.join("m1")
    member = life.group.members["m1"]
    odd = Current(2, 0, M.UNKNOWN, member.current.assigned)
    life.run(lambda change: change.add(8, "m1", odd))
    assert life.send("m1", 2) is E.FENCED_MEMBER_EPOCH
    life.join("m1")
    assert current(life, "m1").state is M.STABLE


MEMBERS = st.sampled_from(["m1", "m2", "m3", "m4"])
CLASSIC = st.sampled_from(["c1", "c2", "c3"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), MEMBERS, st.sampled_from(["a", "b", "ab"])),
        st.tuples(st.just("static"), MEMBERS, st.sampled_from(["i", "j"])),
        st.tuples(st.just("beat"), MEMBERS, st.booleans()),
        st.tuples(st.just("names"), MEMBERS, st.sampled_from(["a", "b", "ab"])),
        st.tuples(st.just("leave"), MEMBERS, st.sampled_from([-1, -2])),
        st.tuples(st.just("expire"), MEMBERS, st.none()),
        st.tuples(st.just("topics"), st.integers(1, 5), st.integers(0, 3)),
        st.tuples(st.just("classic"), CLASSIC, st.sampled_from(["a", "b", "ab"])),
        st.tuples(st.just("expire"), CLASSIC, st.none()),
        st.tuples(st.just("downgrade"), st.none(), st.none()),
    ),
    max_size=40,
)


def take(life: Life, kind: str, who, what) -> None:
    known = life.group.members.get(who) if isinstance(who, str) else None
    if kind in ("join", "static") and known is None:
        life.join(who, **{"names" if kind == "join" else "instance_id": what})
    elif kind == "classic" and life.group.members:
        life.classic_join(who, what)
    elif kind == "beat" and who in life.epochs:
        life.beat(who, loses_answer=what)
    elif kind == "names" and who in life.epochs:
        life.beat(who, topic_names=frozenset(what))
    elif kind == "topics":
        life.topics = topics(a=who, **({"b": what} if what else {}))
    elif kind == "downgrade":
        for each in [*life.group.members.values()]:
            if not each.is_classic:
                end(life, "expire", each, None)
    elif known is not None:
        end(life, kind, known, what)


def end(life: Life, kind: str, member: ConsumerMember, epoch: int | None) -> None:
    """A member leaves, or is removed."""
    member_id, instance_id = member.member_id, member.subscription.instance_id
    if kind == "expire":
        life.run(lambda change: remove(change, [member_id], life.settings))
    elif kind == "leave" and (epoch == -1 or instance_id is not None):
        life.send(member_id, epoch, instance_id=instance_id)
    else:
        return
    if life.group.members.get(member_id) != member:
        life.epochs.pop(member_id, None)
        life.owned.pop(member_id, None)


@settings(max_examples=60)
@given(steps=STEPS, interval_ms=st.sampled_from([0, 1_500]))
def test_random_histories_give_each_partition_to_one_client_and_settle(steps, interval_ms) -> None:
    life = Life(interval_ms=interval_ms, a=4, b=2)
    for step in steps:
        take(life, *step)
        life.now_ms += 300
        life.check()
    life.settle()
    if life.group.members:
        assert life.group.state is S.STABLE
        read = life.group.subscribed_topics() & set(life.topics)
        held = {place for found in life.owned.values() for place in places(found)}
        assert held == {
            (life.topics[name].topic_id, number)
            for name in read
            for number in range(life.topics[name].partition_count)
        }


def places(found) -> set:
    return {(topic, number) for topic, numbers in found.items() for number in numbers}
