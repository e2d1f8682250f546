"""Static members (KIP-345): away for a while without a rebalance, fenced when there are two."""

from __future__ import annotations

import pytest
from support.core.coordinators import OFFSETS, World

from broker_sim.core.group.requests import LeavingMember
from txnlog_kafka.wire.error_codes import ErrorCode

E = ErrorCode
LONG = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 30_000}


def build_static_group(world: World) -> list:
    """Instances i0 (the leader) and i1 in generation 1."""
    joining = [world.join(group_instance_id=f"i{n}", **LONG) for n in range(2)]
    world.advance(6_000)
    answers = [answer for (answer,) in joining]
    parts = {answer.member_id: f"part{n}".encode() for n, answer in enumerate(answers)}
    for n, answer in reversed(list(enumerate(answers))):
        world.sync(
            generation_id=1, member_id=answer.member_id, group_instance_id=f"i{n}",
            assignments=parts if n == 0 else {},
        )  # fmt: skip
    assert world.group_state() == "Stable"
    return answers


def test_a_static_member_needs_no_second_join_for_its_id() -> None:
    world = World()
    first, second = build_static_group(world)
    assert (first.error, second.error) == (E.NONE, E.NONE)
    assert first.member_id.startswith("i0-")
    assert {m.group_instance_id for m in first.members} == {"i0", "i1"}


@pytest.mark.parametrize("instance", ["i0", "i1"])
@pytest.mark.parametrize("crashes", [True, False])
def test_an_instance_that_comes_back_takes_over_without_a_rebalance(instance, crashes) -> None:
    world = World()
    answers = build_static_group(world)
    old = answers[int(instance[1])]
    if crashes:
        world = world.crashed()
    (back,) = world.join(group_instance_id=instance, **LONG)
    assert (back.error, back.generation_id) == (E.NONE, 1)
    assert back.member_id != old.member_id
    # A leader that came back keeps the assignment it made.
    assert back.skip_assignment is (instance == "i0")
    assert world.group_state() == "Stable"
    (synced,) = world.sync(generation_id=1, member_id=back.member_id, group_instance_id=instance)
    assert synced.assignment == f"part{instance[1]}".encode()
    assert world.heartbeat(old.member_id, 1, instance) is E.FENCED_INSTANCE_ID
    assert world.heartbeat(back.member_id, 1, instance) is E.NONE
    (fenced,) = world.join(group_instance_id=instance, member_id=old.member_id, **LONG)
    assert fenced.error is E.FENCED_INSTANCE_ID


def test_an_instance_that_comes_back_has_its_old_session_until_its_first_heartbeat() -> None:
    world = World()
    build_static_group(world)
    short = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 30_000}
    (back,) = world.join(group_instance_id="i1", **short)
    world.advance(29_999)
    assert world.group_state() == "Stable"
    assert world.heartbeat(back.member_id, 1, "i1") is E.NONE
    world.advance(10_000)
    assert "i1" not in {m.group_instance_id for m in world.groups.describe_group("g").members}


def test_an_empty_instance_id_is_one_too() -> None:
    world = World()
    joining = world.join(group_instance_id="", client_id="client", **LONG)
    world.advance(6_000)
    assert joining[0].member_id.startswith("-")
    told = world.leave(LeavingMember("", None), LeavingMember("", ""))
    assert told == [E.UNKNOWN_MEMBER_ID, E.NONE]


def test_an_old_client_that_leads_is_not_told_so_when_it_comes_back() -> None:
    world = World()
    leader, _ = build_static_group(world)
    (back,) = world.join(group_instance_id="i0", supports_skipping_assignment=False, **LONG)
    assert (back.leader, back.members, back.skip_assignment) == (leader.member_id, (), False)


def test_an_instance_that_comes_back_with_another_protocol_rebalances() -> None:
    world = World()
    joining = world.join(group_instance_id="i0", protocols=(("a", b""), ("b", b"")), **LONG)
    world.advance(3_000)
    world.sync(generation_id=1, member_id=joining[0].member_id, group_instance_id="i0")
    (back,) = world.join(group_instance_id="i0", protocols=(("b", b""),), **LONG)
    assert (back.generation_id, back.protocol_name) == (2, "b")


def test_two_instances_with_one_id_fence_each_others_parked_requests() -> None:
    world = World()
    first = world.join(group_instance_id="i0", **LONG)
    second = world.join(group_instance_id="i0", **LONG)
    assert first[0].error is E.FENCED_INSTANCE_ID
    world.advance(6_000)
    assert second[0].generation_id == 1
    waiting = world.sync(
        generation_id=1, member_id="somebody", group_instance_id="i0", assignments={}
    )
    assert waiting[0].error is E.FENCED_INSTANCE_ID


def test_a_return_while_the_assignment_is_made_begins_a_new_generation() -> None:
    world = World()
    joining = world.join(group_instance_id="i0", **LONG)
    world.advance(3_000)
    assert world.group_state() == "CompletingRebalance"
    (back,) = world.join(group_instance_id="i0", **LONG)
    assert (back.generation_id, len(joining)) == (2, 1)


def test_absent_static_members_stay_in_the_generation_until_they_should_have_synced() -> None:
    world = World()
    leader, absent = build_static_group(world)
    joining = world.join(group_instance_id="i2", **LONG)
    world.join(group_instance_id="i0", member_id=leader.member_id, **LONG)
    world.advance(30_000)
    (answer,) = joining
    assert answer.generation_id == 2
    assert len(world.groups.describe_group("g").members) == 3
    for instance, member_id in (("i0", leader.member_id), ("i2", answer.member_id)):
        world.sync(generation_id=2, member_id=member_id, group_instance_id=instance)
    assert world.group_state() == "Stable"
    world.advance(30_000)
    assert world.group_state() == "PreparingRebalance"
    assert world.heartbeat(absent.member_id, 2, "i1") is E.UNKNOWN_MEMBER_ID


def test_an_administrator_removes_an_instance_by_its_name() -> None:
    world = World()
    _, second = build_static_group(world)
    assert world.leave(
        LeavingMember("", "i1"),
        LeavingMember("", "nobody"),
        LeavingMember("", None),
        LeavingMember("other", "i0"),
    ) == [E.NONE, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID]
    assert world.heartbeat(second.member_id, 1, "i1") is E.UNKNOWN_MEMBER_ID
    assert world.group_state() == "PreparingRebalance"


def test_a_takeover_that_cannot_be_stored_is_undone() -> None:
    world = World()
    leader, _ = build_static_group(world)
    world.refuse(*OFFSETS, E.NOT_ENOUGH_REPLICAS)
    (refused,) = world.join(group_instance_id="i0", **LONG)
    assert (refused.error, refused.member_id) == (E.COORDINATOR_NOT_AVAILABLE, "")
    assert world.heartbeat(leader.member_id, 1, "i0") is E.NONE
    (synced,) = world.sync(generation_id=1, member_id=leader.member_id, group_instance_id="i0")
    assert synced.assignment == b"part0"


@pytest.mark.parametrize("error", [E.NONE, E.NOT_COORDINATOR])
def test_a_takeover_that_a_rebalance_has_answered_is_not_answered_again(monkeypatch, error) -> None:
    world = World()
    leader, _ = build_static_group(world)
    waiting = []
    replicas = world.parts.replicas
    monkeypatch.setattr(replicas, "when_committed", lambda *asked: waiting.append(asked[2]))
    back = world.join(group_instance_id="i1", **LONG)
    world.join(group_instance_id="i2", **LONG)
    world.join(group_instance_id="i0", member_id=leader.member_id, **LONG)
    assert [(answer.error, answer.generation_id) for answer in back] == [(E.NONE, 2)]
    (takeover,) = waiting
    world.call(takeover, error)
    assert len(back) == 1
    assert world.group_state() == "CompletingRebalance"


def test_a_given_member_id_cannot_be_used_by_an_instance() -> None:
    world = World()
    (required,) = world.join()
    (refused,) = world.join(member_id=required.member_id, group_instance_id="i0")
    # An IllegalStateException in Kafka, which clients see as this.
    assert refused.error is E.UNKNOWN_SERVER_ERROR
