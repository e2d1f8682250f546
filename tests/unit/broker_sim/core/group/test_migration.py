"""Groups that change their protocol while members live, in a broker, with crashes in between."""

from __future__ import annotations

from typing import Any

import pytest
from support.core.consumers import (
    CLASSIC,
    JOINING,
    assignment,
    group,
    join,
    member,
    partitions_of,
    protocols,
    send,
    subscription,
    topic_id,
)
from support.core.coordinators import OFFSETS, World, contents

from broker_sim.core.group.consumer_group import ConsumerGroup
from broker_sim.core.group.consumer_records import MemberState
from broker_sim.core.group.requests import LeavingMember
from txnlog_kafka.wire.error_codes import ErrorCode

E, M = ErrorCode, MemberState
AT_ONCE = {"group.consumer.assignment.interval.ms": 0}


def classic_join(world: World, member_id: str = "", **more: Any) -> Any:
    """The answer to a JoinGroup that need not wait."""
    (answer,) = world.join(member_id=member_id, **({"protocols": protocols()} | CLASSIC | more))
    return answer


def classic_group(world: World, shares: list[bytes], **more: Any) -> list[str]:
    """The members of a stable classic group, whose leader assigned these."""
    asked = {"protocols": protocols()} | CLASSIC | more
    joining = [world.join(**asked) for _ in shares]
    world.advance(9_000)
    answers = [answer for (answer,) in joining]
    names = [answer.member_id for answer in answers]
    for name in reversed(names):
        told = dict(zip(names, shares, strict=True)) if name == answers[0].leader else {}
        world.sync(member_id=name, generation_id=answers[0].generation_id, assignments=told)
    assert world.group_state() == "Stable"
    return names


def synced(world: World, member_id: str, generation_id: int) -> dict[str, list[int]]:
    (answer,) = world.sync(member_id=member_id, generation_id=generation_id)
    assert answer.error is E.NONE
    return partitions_of(answer.assignment)


def check_replay(world: World) -> None:
    """Another life of the broker has the same group, of the same kind."""
    later, found = world.crashed(), group(world)
    if isinstance(found, ConsumerGroup):
        assert contents(group(later)) == contents(found)
    else:
        assert group(later) is E.GROUP_ID_NOT_FOUND
        described = [each.groups.describe_group("g") for each in (world, later)]
        names = [{each.member_id for each in one.members} for one in described]
        assert names[0] == names[1]


def test_a_member_of_kip_848_upgrades_a_group_and_the_members_give_way_step_by_step() -> None:
    world = World(AT_ONCE)
    (old,) = classic_group(world, [assignment(a=[0, 1])])
    answer = join(world, "new")
    assert (answer.member_epoch, answer.assignment) == (2, {})
    found = group(world)
    assert (found.epoch, found.members[old].current.epoch) == (2, 1)
    assert [found.members[each].is_classic for each in (old, "new")] == [True, False]
    check_replay(world)
    # The classic member hears of it, and joins with all that it has.
    assert world.heartbeat(old, 1) is E.REBALANCE_IN_PROGRESS
    assert world.heartbeat(old, 2) is E.ILLEGAL_GENERATION
    assert world.heartbeat("new", 2) is E.UNKNOWN_MEMBER_ID
    (refused,) = world.sync(member_id=old, generation_id=1)
    assert refused.error is E.REBALANCE_IN_PROGRESS
    owned = {"protocols": protocols(owned={"a": [0, 1]})}
    joined = classic_join(world, old, **owned)
    assert (joined.error, joined.generation_id, joined.members) == (E.NONE, 1, ())
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert member(world, old).current.state is M.UNREVOKED
    assert synced(world, old, 1) == {"a": [0]}
    check_replay(world)
    # It has given up partition 1, and is told to join again to say so.
    assert world.heartbeat(old, 1) is E.REBALANCE_IN_PROGRESS
    joined = classic_join(world, old, protocols=protocols(owned={"a": [0]}))
    assert joined.generation_id == 2
    assert synced(world, old, 2) == {"a": [0]}
    assert world.heartbeat(old, 2) is E.NONE
    answer = send(world, "new", 2, owned={})
    assert answer.assignment == {topic_id(world): frozenset({1})}
    assert group(world).state.value == "Stable"
    check_replay(world)


def test_a_classic_member_waits_for_what_others_still_own() -> None:
    world = World(AT_ONCE)
    owned = join(world, "new").assignment
    joined = classic_join(world)
    old = joined.member_id
    assert (joined.error, joined.generation_id) == (E.NONE, 3)
    assert synced(world, old, 3) == {}
    assert member(world, old).current.state is M.UNRELEASED
    assert world.heartbeat(old, 3) is E.NONE
    kept = send(world, "new", 2, owned=owned).assignment
    assert kept == {topic_id(world): frozenset({0})}
    send(world, "new", 2, owned=kept)
    assert world.heartbeat(old, 3) is E.REBALANCE_IN_PROGRESS
    assert classic_join(world, old).generation_id == 3
    assert synced(world, old, 3) == {"a": [1]}
    check_replay(world)


def test_the_first_version_of_a_subscription_says_nothing_of_owned_partitions() -> None:
    world = World(AT_ONCE)
    (old,) = classic_group(world, [assignment(a=[0, 1])], protocols=protocols(version=0))
    join(world, "new")
    joined = classic_join(world, old, protocols=protocols(version=0))
    # It gave up all partitions before it joined, as clients of that time do.
    assert joined.generation_id == 2
    assert synced(world, old, 2) == {"a": [0]}


@pytest.mark.parametrize(
    ("config", "more", "share", "reason"),
    [
        ({"group.consumer.migration.policy": "disabled"}, {}, b"", "policy is disabled"),
        ({"group.consumer.migration.policy": "DownGrade"}, {}, b"", "policy is downgrade"),
        ({"group.consumer.max.size": 1}, {}, b"", "more members"),
        ({}, {"protocol_type": "connect"}, b"", "not of consumers"),
        ({}, {"protocols": (("range", b"sub"),)}, b"", "cannot be read"),
        ({}, {}, b"all", "cannot be read"),
        ({}, {}, assignment(b"own", a=[0]), "not one of Kafka's"),
    ],
)
def test_a_group_that_cannot_be_upgraded_goes_on_as_it_is(config, more, share, reason) -> None:
    world = World(AT_ONCE | config)
    names = classic_group(world, [share, share], **more)
    refused = send(world, "new", 0, **JOINING)
    assert refused.error is E.GROUP_ID_NOT_FOUND
    assert reason in refused.message
    assert world.heartbeat(names[0], 1) is E.NONE
    assert send(world, "new", 1).message == "Group g is not a consumer group."


def test_members_that_wait_in_a_rebalance_are_told_to_join_again() -> None:
    for late in (False, True):
        world = World(AT_ONCE)
        if late:
            names = classic_group(world, [assignment(a=[0]), assignment(a=[1])])
            waiting = [world.join(member_id=names[0], **CLASSIC, protocols=protocols(rack="r"))]
        else:
            # The group has no generation and no protocol yet.
            waiting = [world.join(**CLASSIC, protocols=protocols())]
            assert world.group_state() == "PreparingRebalance"
        join(world, "new")
        assert [answer.error for (answer,) in waiting] == [E.REBALANCE_IN_PROGRESS]
        assert len(group(world).members) == (3 if late else 2)
        check_replay(world)
        world.advance(20_000)
        assert set(group(world).members) == {"new"}


def test_a_sync_that_waits_for_the_leader_is_told_to_join_again() -> None:
    world = World(AT_ONCE)
    joining = [world.join(**CLASSIC, protocols=protocols()) for _ in range(2)]
    world.advance(9_000)
    names = [answer.member_id for (answer,) in joining]
    waiting = world.sync(member_id=names[1], generation_id=1)
    join(world, "new")
    assert [answer.error for answer in waiting] == [E.REBALANCE_IN_PROGRESS]
    check_replay(world)


@pytest.mark.parametrize("how", ["leave", "session", "administrator"])
def test_the_last_member_of_kip_848_leaves_a_classic_group_behind(how) -> None:
    world = World(AT_ONCE | {"group.consumer.min.session.timeout.ms": 10_000,
                             "group.consumer.session.timeout.ms": 10_000})  # fmt: skip
    (old,) = classic_group(world, [assignment(a=[0, 1])])
    assert world.commit_offset(7, member_id=old, generation_id=1) is E.NONE
    join(world, "new", instance_id="i")
    if how == "leave":
        assert send(world, "new", -1, instance_id="i").error is E.NONE
    elif how == "session":
        world.advance(10_000)
    else:
        assert world.leave(LeavingMember("", "i"), LeavingMember("", "j")) == [
            E.NONE, E.UNKNOWN_MEMBER_ID,
        ]  # fmt: skip
    assert group(world) is E.GROUP_ID_NOT_FOUND
    assert world.group_state() == "PreparingRebalance"
    check_replay(world)
    assert world.heartbeat(old, 2) is E.REBALANCE_IN_PROGRESS
    joined = classic_join(world, old)
    assert (joined.error, joined.generation_id, joined.leader) == (E.NONE, 3, old)
    world.sync(member_id=old, generation_id=3, assignments={old: assignment(a=[0, 1])})
    assert world.group_state() == "Stable"
    assert world.offset() == (7, E.NONE)
    check_replay(world)


def test_a_loaded_downgrade_has_the_targets_as_its_assignment() -> None:
    world = World(AT_ONCE)
    (old,) = classic_group(world, [assignment(a=[0, 1])])
    join(world, "new")
    send(world, "new", -1)
    later = world.crashed()
    assert later.group_state() == "Stable"
    assert synced(later, old, 2) == {"a": [0]}


@pytest.mark.parametrize(
    "config",
    [
        {"group.consumer.migration.policy": "upgrade"},
        {"group.max.size": 1},
    ],
)
def test_without_a_downgrade_classic_members_stay_in_the_consumer_group(config) -> None:
    world = World(AT_ONCE)
    names = classic_group(world, [assignment(a=[0]), assignment(a=[1])])
    join(world, "new")
    world.parts.config._values.update(config)
    send(world, "new", -1)
    assert set(group(world).members) == set(names)
    assert world.heartbeat(names[0], 1) is E.REBALANCE_IN_PROGRESS
    joined = classic_join(world, names[0], protocols=protocols(owned={"a": [0]}))
    assert joined.generation_id == 3
    check_replay(world)


def test_a_static_member_that_comes_back_as_a_classic_one_downgrades_without_a_rebalance() -> None:
    world = World(AT_ONCE)
    assert join(world, "new", instance_id="i").member_epoch == 2
    assert send(world, "newer", 0, **JOINING, instance_id="i").error is E.UNRELEASED_INSTANCE_ID
    joined = classic_join(world, group_instance_id="i")
    assert (joined.error, joined.generation_id) == (E.NONE, 2)
    assert world.group_state() == "Stable"
    assert synced(world, joined.member_id, 2) == {"a": [0, 1]}
    assert world.heartbeat(joined.member_id, 2, "i") is E.NONE
    check_replay(world)
    # Another subscription begins a rebalance as well.
    again = World(AT_ONCE)
    join(again, "new", instance_id="i", topic_names=frozenset("ab"))
    joined = classic_join(again, group_instance_id="i")
    assert (joined.error, again.group_state()) == (E.NONE, "PreparingRebalance")
    check_replay(again)


def test_a_static_member_moves_to_kip_848_in_place() -> None:
    world = World(AT_ONCE)
    (old,) = classic_group(world, [assignment(a=[0, 1])], group_instance_id="i")
    answer = join(world, "new", instance_id="i")
    assert (answer.member_epoch, answer.assignment) == (1, {topic_id(world): frozenset({0, 1})})
    assert set(group(world).members) == {"new"}
    assert world.heartbeat(old, 1, "i") is E.FENCED_INSTANCE_ID
    check_replay(world)


def test_joins_of_classic_members_are_checked_in_kafka_s_order() -> None:
    world = World(AT_ONCE | {"group.consumer.max.size": 2})
    join(world, "new")
    needed = classic_join(world, requires_known_member_id=True)
    assert needed.error is E.MEMBER_ID_REQUIRED
    joined = classic_join(world, needed.member_id, protocols=protocols("range", "sticky"))
    assert (joined.error, joined.member_id) == (E.NONE, needed.member_id)
    old = joined.member_id
    assert classic_join(world).error is E.GROUP_MAX_SIZE_REACHED
    for wrong in (
        {"protocols": protocols("other")},
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocols": (("range", b"x"),)},
    ):
        refused = classic_join(world, old, **wrong)
        assert (refused.error, refused.member_id) == (E.INCONSISTENT_GROUP_PROTOCOL, "")
    world.parts.config._values["group.consumer.max.size"] = 3
    unknown = classic_join(world, old, group_instance_id="i")
    assert unknown.error is E.UNKNOWN_MEMBER_ID
    static = classic_join(world, group_instance_id="i").member_id
    for more in ({}, {"protocols": (("range", b"x"),)}):
        fenced = classic_join(world, "other", group_instance_id="i", **more)
        assert fenced.error is E.FENCED_INSTANCE_ID
    assert world.heartbeat("other", 1, "i") is E.FENCED_INSTANCE_ID
    assert world.heartbeat("other", 1, "j") is E.UNKNOWN_MEMBER_ID
    for wrong in ({"protocol_type": "connect"}, {"protocol_name": "sticky"}):
        generation_id = member(world, static).current.epoch
        (refused,) = world.sync(
            member_id=static, generation_id=generation_id, group_instance_id="i", **wrong
        )
        assert refused.error is E.INCONSISTENT_GROUP_PROTOCOL
    world.parts.config._values["group.consumer.migration.policy"] = "disabled"
    assert classic_join(world, old).error is E.INCONSISTENT_GROUP_PROTOCOL


def test_offsets_of_classic_members_are_fenced_in_their_words() -> None:
    world = World(AT_ONCE)
    (old,) = classic_group(world, [assignment(a=[0, 1])])
    join(world, "new")

    def commit(epoch: int, **more: Any) -> ErrorCode:
        return world.commit_offset(5, topic="a", member_id=old, generation_id=epoch, **more)

    # Any version of OffsetCommit will do.
    assert commit(1) is E.NONE
    assert commit(2) is E.ILLEGAL_GENERATION
    assert commit(0) is E.ILLEGAL_GENERATION
    assert world.commit_pending(5, member_id=old, generation_id=2) is E.ILLEGAL_GENERATION
    asked = world.groups.offset_fetch("g", None, require_stable=False, member=(old, 2))
    assert asked.error is E.ILLEGAL_GENERATION


def test_timers_remove_classic_members_that_do_not_join_or_sync() -> None:
    world = World(AT_ONCE)
    (old,) = classic_group(world, [assignment(a=[0, 1])])
    join(world, "new", rebalance_timeout_ms=300_000)

    def live(member_id: str, generation_id: int, beats: int) -> None:
        for _ in range(beats):
            world.advance(10_000)
            send(world, "new", member(world, "new").current.epoch)
            world.heartbeat(member_id, generation_id)

    assert world.heartbeat(old, 1) is E.REBALANCE_IN_PROGRESS
    live(old, 1, 2)
    assert old in group(world).members
    # It lives, and does not join: its rebalance timeout is over.
    live(old, 1, 1)
    assert set(group(world).members) == {"new"}
    joined = classic_join(world)
    live(joined.member_id, joined.generation_id, 2)
    assert joined.member_id in group(world).members
    # It lives, and does not ask for its assignment.
    live(joined.member_id, joined.generation_id, 1)
    assert set(group(world).members) == {"new"}
    # The session of a classic member is its own.
    silent = classic_join(world).member_id
    synced(world, silent, member(world, silent).current.epoch)
    world.advance(19_999)
    assert silent in group(world).members
    world.advance(1)
    assert silent not in group(world).members


@pytest.mark.parametrize("upgrades", [True, False])
def test_a_change_of_kind_that_the_log_refuses_did_not_happen(upgrades) -> None:
    world = World(AT_ONCE)
    (old,) = classic_group(world, [assignment(a=[0, 1])])
    if not upgrades:
        join(world, "new")
    world.refuse(*OFFSETS, E.NOT_ENOUGH_REPLICAS)
    if upgrades:
        assert send(world, "new", 0, **JOINING).error is E.COORDINATOR_NOT_AVAILABLE
        assert (world.group_state(), world.heartbeat(old, 1)) == ("Stable", E.NONE)
    else:
        assert send(world, "new", -1).error is E.COORDINATOR_NOT_AVAILABLE
        assert set(group(world).members) == {old, "new"}
        assert world.heartbeat(old, 1) is E.REBALANCE_IN_PROGRESS
    world.refusals.clear()
    check_replay(world)


def test_each_prefix_of_the_log_is_a_group_of_one_kind() -> None:
    world = World(AT_ONCE)
    (old,) = classic_group(world, [assignment(a=[0, 1])])
    marks = [len(world.operations)]
    steps = [
        lambda: join(world, "new"),
        lambda: classic_join(world, old, protocols=protocols(owned={"a": [0]})),
        lambda: send(world, "new", -1),
        lambda: classic_join(world, old),
        lambda: join(world, "newest"),
    ]
    kinds = [group(world)]
    for step in steps:
        step()
        marks.append(len(world.operations))
        kinds.append(group(world))
    for mark, kind in zip(marks, kinds, strict=True):
        later = group(world.crashed(after=mark))
        assert isinstance(later, ConsumerGroup) == isinstance(kind, ConsumerGroup)


def test_racks_and_topics_of_classic_members_are_those_of_their_subscription() -> None:
    world = World(AT_ONCE)
    joined = [
        classic_join(world, protocols=(("range", subscription("a", "gone", rack="r")),))
        for _ in [join(world, "new")]
    ]
    found = member(world, joined[0].member_id).subscription
    assert (found.rack_id, found.topic_names) == ("r", frozenset({"a", "gone"}))
    assert found.classic.session_timeout_ms == 20_000
