"""The classic rebalance: joins that wait, generations, sessions, static members, their loads."""

from __future__ import annotations

import itertools

import pytest
from support.core.coordinators import OFFSETS, World

from broker_sim.core.group.classic_group import ClassicGroup
from broker_sim.core.group.requests import LeavingMember
from broker_sim.core.group.states import VALID_PREVIOUS_GROUP_STATES, GroupState
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import InvariantViolation

E, S = ErrorCode, GroupState
OLD = {"requires_known_member_id": False}
LONG = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000}


def build_group(world: World, count: int = 2, **more) -> list:
    """`count` members in a stable generation; the leader first."""
    joining = [world.join(**(OLD | LONG | more)) for _ in range(count)]
    world.advance(9_000)
    answers = [answer for (answer,) in joining]
    generation_id = answers[0].generation_id
    for answer in reversed(answers):
        shares = {each.member_id: each.member_id.encode() for each in answers}
        world.sync(
            generation_id=generation_id, member_id=answer.member_id,
            assignments=shares if answer.member_id == answer.leader else {},
        )  # fmt: skip
    assert world.group_state() == "Stable"
    return answers


@pytest.mark.parametrize(("before", "after"), list(itertools.product(S, S)))
def test_each_pair_of_group_states_is_allowed_or_refused_as_in_the_table(before, after) -> None:
    group = ClassicGroup("g", 0)
    group.state = before
    if before in VALID_PREVIOUS_GROUP_STATES[after]:
        group.transition_to(after, 1)
        assert (group.state, group.previous_state, group.state_ms) == (after, before, 1)
    else:
        with pytest.raises(InvariantViolation):
            group.transition_to(after, 1)
    assert set(VALID_PREVIOUS_GROUP_STATES) == set(GroupState)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"group_id": ""}, E.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, E.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, E.INVALID_SESSION_TIMEOUT),
        ({"member_id": "m"}, E.UNKNOWN_MEMBER_ID),
        ({"protocols": ()}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({}, E.MEMBER_ID_REQUIRED),
    ],
)
def test_what_a_first_join_is_answered(more, expected) -> None:
    (answer,) = World().join(**more)
    assert answer.error is expected


def test_a_first_member_waits_the_initial_delay_with_the_id_it_was_given() -> None:
    world = World()
    (required,) = world.join(client_id="app")
    assert required.error is E.MEMBER_ID_REQUIRED
    assert required.member_id.startswith("app-")
    joining = world.join(member_id=required.member_id, client_id="app")
    world.advance(2_999)
    assert joining == []
    world.advance(1)
    (answer,) = joining
    assert (answer.error, answer.generation_id, answer.leader) == (E.NONE, 1, required.member_id)
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert [member.metadata for member in answer.members] == [b"sub"]


def test_an_id_that_was_given_and_never_used_is_forgotten_after_its_session() -> None:
    world = World()
    (required,) = world.join(session_timeout_ms=10_000)
    world.advance(10_000)
    (late,) = world.join(member_id=required.member_id)
    assert late.error is E.UNKNOWN_MEMBER_ID


def test_new_members_extend_the_initial_delay_up_to_the_rebalance_timeout() -> None:
    world = World()
    joining = [world.join(**OLD, rebalance_timeout_ms=7_000)]
    for _ in range(2):
        world.advance(2_000)
        joining.append(world.join(**OLD, rebalance_timeout_ms=7_000))
    # At 3 s it is extended to 6 s and, for the one at 4 s, to 7 s: no further.
    world.advance(2_900)
    assert joining == [[], [], []]
    world.advance(100)
    assert all(answer.generation_id == 1 for (answer,) in joining)
    leaders = [answer for (answer,) in joining if answer.members]
    assert len(leaders) == 1
    assert len(leaders[0].members) == 3


def test_everybody_gets_their_part_once_the_leader_has_brought_it() -> None:
    world = World()
    joining = [world.join(**OLD) for _ in range(2)]
    world.advance(6_000)
    leader, follower = (answer for (answer,) in joining)
    waiting = world.sync(generation_id=1, member_id=follower.member_id)
    assert waiting == []
    parts = {leader.member_id: b"left", follower.member_id: b"right"}
    brought = world.sync(generation_id=1, member_id=leader.member_id, assignments=parts)
    assert [answer.assignment for answer in brought + waiting] == [b"left", b"right"]
    again = world.sync(generation_id=1, member_id=follower.member_id)
    assert again[0].assignment == b"right"
    described = world.groups.describe_group("g")
    assert (described.state, described.protocol_data) == ("Stable", "range")
    assert {member.assignment for member in described.members} == {b"left", b"right"}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"generation_id": 0}, E.ILLEGAL_GENERATION),
        ({"generation_id": 2}, E.ILLEGAL_GENERATION),
        ({"member_id": "other"}, E.UNKNOWN_MEMBER_ID),
        ({"group_id": "other"}, E.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, E.INVALID_GROUP_ID),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "consumer", "protocol_name": "range"}, E.NONE),
    ],
)
def test_a_sync_must_know_its_generation_and_protocol(more, expected) -> None:
    world = World()
    (member,) = build_group(world, 1)
    (answer,) = world.sync(**({"generation_id": 1, "member_id": member.member_id} | more))
    assert answer.error is expected


def test_heartbeats_in_each_state() -> None:
    world = World()
    assert world.heartbeat("m", 1) is E.UNKNOWN_MEMBER_ID
    (member,) = build_group(world, 1)
    assert world.heartbeat(member.member_id, 1) is E.NONE
    assert world.heartbeat(member.member_id, 0) is E.ILLEGAL_GENERATION
    assert world.heartbeat("other", 1) is E.UNKNOWN_MEMBER_ID
    assert world.heartbeat(member.member_id, 1, "i") is E.UNKNOWN_MEMBER_ID
    joining = world.join(**OLD)
    assert world.heartbeat(member.member_id, 1) is E.REBALANCE_IN_PROGRESS
    world.join(member_id=member.member_id)
    (joined,) = joining
    assert world.group_state() == "CompletingRebalance"
    assert world.heartbeat(joined.member_id, 2) is E.NONE


def test_a_rebalance_ends_at_once_when_all_are_back() -> None:
    world = World()
    first, second = build_group(world, 2)
    joining = [world.join(**OLD, **LONG), world.join(member_id=first.member_id, **LONG)]
    assert joining == [[], []]
    joining.append(world.join(member_id=second.member_id, **LONG))
    assert [answer.generation_id for (answer,) in joining] == [2, 2, 2]
    assert [bool(answer.members) for (answer,) in joining] == [False, True, False]


@pytest.mark.invariant(45)
def test_a_rebalance_goes_on_without_the_missing_after_its_timeout() -> None:
    world = World()
    first, second = build_group(world, 2, rebalance_timeout_ms=20_000)
    joining = world.join(**OLD, session_timeout_ms=60_000, rebalance_timeout_ms=20_000)
    returning = world.join(member_id=first.member_id, session_timeout_ms=60_000)
    world.advance(19_999)
    assert joining == returning == []
    assert world.heartbeat(second.member_id, 1) is E.REBALANCE_IN_PROGRESS
    world.advance(1)
    (answer,) = joining
    assert (answer.error, answer.generation_id) == (E.NONE, 2)
    assert second.member_id not in {m.member_id for m in returning[0].members}
    assert world.heartbeat(second.member_id, 1) is E.UNKNOWN_MEMBER_ID


@pytest.mark.invariant(45)
def test_a_silent_member_loses_its_session_and_the_others_rebalance() -> None:
    world = World()
    first, second = build_group(world, 2, session_timeout_ms=10_000)
    world.advance(6_000)
    assert world.heartbeat(first.member_id, 1) is E.NONE
    world.advance(4_000)
    assert world.group_state() == "PreparingRebalance"
    assert world.heartbeat(second.member_id, 1) is E.UNKNOWN_MEMBER_ID
    (answer,) = world.join(member_id=first.member_id)
    assert (answer.generation_id, answer.leader) == (2, first.member_id)


def test_when_the_last_member_is_gone_the_group_is_empty_and_keeps_its_generation() -> None:
    world = World()
    (member,) = build_group(world, 1, session_timeout_ms=10_000)
    world.commit_offset(4, generation_id=1, member_id=member.member_id)
    world.advance(10_000)
    assert world.group_state() == "Empty"
    for life in (world, world.crashed()):
        assert life.offset() == (4, E.NONE)
        joining = life.join(**OLD)
        life.advance(3_000)
        assert joining[0].generation_id == 3


def test_a_member_that_never_syncs_is_removed_after_the_rebalance_timeout() -> None:
    world = World()
    joining = [world.join(**OLD, session_timeout_ms=90_000, rebalance_timeout_ms=30_000)
               for _ in range(2)]  # fmt: skip
    world.advance(6_000)
    leader, follower = (answer for (answer,) in joining)
    world.sync(generation_id=1, member_id=leader.member_id, assignments={})
    assert world.group_state() == "Stable"
    world.advance(30_000)
    assert world.group_state() == "PreparingRebalance"
    assert world.heartbeat(follower.member_id, 1) is E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_join_without_a_change_is_answered_from_the_generation_unless_by_the_leader(
    is_leader,
) -> None:
    world = World()
    leader, follower = build_group(world, 2)
    answers = world.join(member_id=(leader if is_leader else follower).member_id)
    if is_leader:
        assert (answers, world.group_state()) == ([], "PreparingRebalance")
    else:
        assert (answers[0].generation_id, answers[0].members) == (1, ())
        assert world.group_state() == "Stable"


def test_a_join_with_other_metadata_rebalances() -> None:
    world = World()
    _, follower = build_group(world, 2)
    answers = world.join(member_id=follower.member_id, protocols=(("range", b"more"),))
    assert (answers, world.group_state()) == ([], "PreparingRebalance")


def test_while_the_assignment_is_awaited_a_lost_join_answer_is_given_again() -> None:
    world = World()
    joining = world.join(**OLD)
    world.advance(3_000)
    (first,) = joining
    assert world.join(member_id=first.member_id) == [first]
    waiting = world.sync(generation_id=1, member_id="nobody")
    assert waiting[0].error is E.UNKNOWN_MEMBER_ID
    changed = world.join(member_id=first.member_id, protocols=(("range", b"new"),))
    assert changed[0].generation_id == 2


def test_a_parked_sync_is_told_to_join_again_when_a_member_comes() -> None:
    world = World()
    joining = [world.join(**OLD, **LONG) for _ in range(2)]
    world.advance(6_000)
    follower = joining[1][0]
    waiting = world.sync(generation_id=1, member_id=follower.member_id)
    world.join(**OLD)
    assert waiting[0].error is E.REBALANCE_IN_PROGRESS
    (refused,) = world.sync(generation_id=1, member_id=follower.member_id)
    assert refused.error is E.REBALANCE_IN_PROGRESS


def test_an_assignment_that_cannot_be_stored_is_given_to_nobody() -> None:
    world = World()
    joining = world.join(**OLD, **LONG)
    world.advance(3_000)
    (member,) = joining
    world.refuse(*OFFSETS, E.NOT_ENOUGH_REPLICAS)
    (answer,) = world.sync(generation_id=1, member_id=member.member_id, assignments={})
    assert answer.error is E.COORDINATOR_NOT_AVAILABLE
    assert world.group_state() == "PreparingRebalance"
    world.refusals.clear()
    (again,) = world.join(member_id=member.member_id)
    assert again.generation_id == 2


def test_a_group_that_cannot_be_stored_is_not_created() -> None:
    world = World()
    world.refuse(*OFFSETS, E.NOT_LEADER_OR_FOLLOWER)
    assert world.join()[0].error is E.NOT_COORDINATOR
    assert world.groups.list_groups().groups == ()


def test_the_protocol_is_the_one_most_vote_for_among_those_all_have() -> None:
    world = World()
    offers = [("a", "b", "c"), ("b", "c"), ("c", "b", "a")]
    joining = [world.join(**OLD, protocols=tuple((n, b"") for n in names)) for names in offers]
    world.advance(9_000)
    assert {answer.protocol_name for (answer,) in joining} == {"b"}
    (refused,) = world.join(**OLD, protocols=(("a", b""),))
    assert refused.error is E.INCONSISTENT_GROUP_PROTOCOL
    (refused,) = world.join(**OLD, protocol_type="connect", protocols=(("b", b""),))
    assert refused.error is E.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("order", [("range", "roundrobin"), ("roundrobin", "range")])
def test_of_protocols_with_equal_votes_the_first_of_a_java_hash_map_is_chosen(order) -> None:
    world = World()
    offers = (order, order[::-1])
    joining = [world.join(**OLD, protocols=tuple((n, b"") for n in names)) for names in offers]
    world.advance(9_000)
    assert {answer.protocol_name for (answer,) in joining} == {"range"}


def test_a_rebalance_that_all_have_left_takes_members_with_other_protocols() -> None:
    world = World()
    (parked,) = [world.join(**(OLD | LONG), protocols=(("range", b""),))]
    (member_id,) = world.groups.describe_group("g").members
    assert world.leave(LeavingMember(member_id.member_id)) == [E.NONE]
    assert parked[0].error is E.UNKNOWN_MEMBER_ID
    assert world.group_state() == "PreparingRebalance"
    (refused,) = world.join(**(OLD | LONG), protocol_type="connect")
    assert refused.error is E.INCONSISTENT_GROUP_PROTOCOL
    newcomer = world.join(**(OLD | LONG), protocols=(("sticky", b""),))
    world.advance(9_000)
    assert (newcomer[0].error, newcomer[0].protocol_name) == (E.NONE, "sticky")


def test_a_full_group_takes_no_more() -> None:
    world = World({"group.max.size": 2})
    first, _ = build_group(world, 2)
    (refused,) = world.join(**OLD)
    assert refused.error is E.GROUP_MAX_SIZE_REACHED
    world.join(member_id=first.member_id)
    assert world.group_state() == "PreparingRebalance"


def test_leaving_makes_the_rest_rebalance_and_the_last_one_empties_the_group() -> None:
    world = World()
    first, second = build_group(world, 2)
    assert world.leave(LeavingMember("other")) == [E.UNKNOWN_MEMBER_ID]
    assert world.leave(LeavingMember(first.member_id)) == [E.NONE]
    assert world.group_state() == "PreparingRebalance"
    (answer,) = world.join(member_id=second.member_id)
    assert (answer.generation_id, answer.leader) == (2, second.member_id)
    assert world.leave(LeavingMember(second.member_id)) == [E.NONE]
    assert world.group_state() == "Empty"
    assert world.timers.keys() == World().timers.keys()


def test_leaving_with_a_given_id_and_leaving_an_unknown_group() -> None:
    world = World()
    (required,) = world.join()
    assert world.leave(LeavingMember(required.member_id)) == [E.NONE]
    assert world.join(member_id=required.member_id)[0].error is E.UNKNOWN_MEMBER_ID
    result = world.tell(world.groups.leave_group, "none", [LeavingMember("m")])
    assert result.members == ((LeavingMember("m"), E.UNKNOWN_MEMBER_ID),)
    assert world.tell(world.groups.leave_group, "", []).error is E.INVALID_GROUP_ID


def test_leaving_while_others_wait_in_the_initial_delay() -> None:
    world = World()
    joining = [world.join(**OLD), world.join(**OLD)]
    member_id = world.groups.describe_group("g").members[0].member_id
    assert world.leave(LeavingMember(member_id)) == [E.NONE]
    assert joining[0][0].error is E.UNKNOWN_MEMBER_ID
    world.advance(6_000)
    assert joining[1][0].generation_id == 1


def test_a_second_join_of_the_same_member_answers_the_first_one() -> None:
    world = World()
    leader, _ = build_group(world, 2)
    first = world.join(member_id=leader.member_id)
    second = world.join(member_id=leader.member_id)
    assert (first[0].error, second) == (E.REBALANCE_IN_PROGRESS, [])


def test_members_live_on_after_a_crash_and_lose_their_session_when_silent() -> None:
    world = World()
    first, second = build_group(world, 2, session_timeout_ms=20_000)
    world = world.crashed()
    assert world.group_state() == "Stable"
    world.advance(15_000)
    assert world.heartbeat(first.member_id, 1) is E.NONE
    (answer,) = world.sync(generation_id=1, member_id=first.member_id)
    assert answer.assignment == first.member_id.encode()
    world.advance(5_000)
    assert world.group_state() == "PreparingRebalance"
    assert world.heartbeat(second.member_id, 1) is E.UNKNOWN_MEMBER_ID


def test_an_unloaded_partition_sends_its_parked_members_away() -> None:
    world = World()
    joining = world.join(**OLD)
    world.call(world.groups.unload, 0)
    assert joining[0].error is E.NOT_COORDINATOR
    world.advance(400_000)
    assert len(joining) == 1
