"""Consumer groups in a broker: timers, the log, offsets fenced by epochs, both kinds of groups."""

from __future__ import annotations

import pytest
from support.core.consumers import JOINING, group, join, send, topic_id
from support.core.coordinators import OFFSETS, World, contents
from support.core.coordinators import A as TOPIC_A

from broker_sim.core.group.requests import OffsetCommit, OffsetToCommit, TxnOffsetCommit
from txnlog_kafka.wire.error_codes import ErrorCode

E = ErrorCode
AT_ONCE = {"group.consumer.assignment.interval.ms": 0}


def commit(world: World, member_id: str, epoch: int, partition: int = 0, **more):
    offsets = (OffsetToCommit("a", partition, 5, topic_id=topic_id(world)),)
    fields = {"knows_group_id_not_found": True} | more
    request = OffsetCommit(
        group_id="g", offsets=offsets, member_id=member_id, generation_id=epoch, **fields
    )
    return world.tell(world.groups.offset_commit, request)["a", partition]


def commit_pending(world: World, member_id: str, epoch: int, partition: int = 0):
    request = TxnOffsetCommit(
        group_id="g", producer_id=9, producer_epoch=0, member_id=member_id, generation_id=epoch,
        offsets=(OffsetToCommit("a", partition, 5, topic_id=topic_id(world)),),
    )  # fmt: skip
    return world.tell(world.groups.txn_offset_commit, request)["a", partition]


def test_a_member_joins_lives_and_leaves() -> None:
    world = World()
    assert send(world, "m", 1).error is E.GROUP_ID_NOT_FOUND
    assert send(world, "m", -1).error is E.GROUP_ID_NOT_FOUND
    assert send(world, "", 0, **JOINING).error is E.INVALID_REQUEST
    answer = join(world, "m")
    assert (answer.member_id, answer.member_epoch) == ("m", 2)
    assert answer.heartbeat_interval_ms == 5_000
    assert answer.assignment == {topic_id(world): frozenset({0, 1})}
    assert send(world, "m", 2).assignment is None
    fenced = send(world, "m", 3)
    assert fenced.error is E.FENCED_MEMBER_EPOCH
    assert fenced.message.startswith("Member m of group g: ")
    full = {"topic_names": frozenset("a"), "rebalance_timeout_ms": 5, "owned": answer.assignment}
    assert send(world, "m", 2, **full).assignment == answer.assignment
    answer = send(world, "m", -1)
    assert (answer.error, answer.member_epoch) == (E.NONE, -1)
    assert group(world).is_empty


def test_an_old_client_is_given_a_member_id() -> None:
    world = World()
    drawn = world.next_uuid()
    answer = send(world, "", 0, **JOINING, requires_member_id=False)
    assert answer.member_id == drawn


def test_a_member_that_is_silent_for_its_session_is_removed() -> None:
    world = World()
    join(world, "m")
    world.advance(44_999)
    assert send(world, "m", 2).error is E.NONE
    world.advance(44_999)
    assert set(group(world).members) == {"m"}
    world.advance(1)
    assert group(world).is_empty
    assert send(world, "m", 2).error is E.UNKNOWN_MEMBER_ID


def test_a_member_that_keeps_partitions_for_its_rebalance_timeout_is_removed() -> None:
    world = World(AT_ONCE)
    owned = join(world, "m1").assignment
    join(world, "m2")
    assert send(world, "m1", 2, owned=owned).assignment == {topic_id(world): frozenset({0})}
    world.advance(9_999)
    assert send(world, "m1", 2, owned=owned).error is E.NONE
    world.advance(1)
    assert set(group(world).members) == {"m2"}
    answer = send(world, "m2", 3, owned={})
    assert (answer.member_epoch, answer.assignment) == (4, {topic_id(world): frozenset({0, 1})})


@pytest.mark.parametrize("loses_unflushed", [False, True])
def test_another_life_goes_on_with_the_group_or_fences_its_members(loses_unflushed) -> None:
    world = World(AT_ONCE)
    join(world, "m1", topic_names=None, topic_regex="a|x")
    join(world, "m2", instance_id="i")
    send(world, "m1", 2, owned={})
    before = contents(group(world))
    later = world.crashed(loses_unflushed=loses_unflushed)
    if loses_unflushed:
        assert send(later, "m1", 2).error in (E.GROUP_ID_NOT_FOUND, E.UNKNOWN_MEMBER_ID)
        return
    assert contents(group(later)) == before
    epoch = group(later).members["m2"].current.epoch
    assert send(later, "m2", epoch, instance_id="i", owned={}).error is E.NONE
    later.advance(45_000)
    assert group(later).is_empty


def test_the_log_gives_the_same_group_whatever_storage_operation_is_the_last() -> None:
    world = World(AT_ONCE)
    join(world, "m1")
    states = [contents(group(world))]
    operations = [len(world.operations)]
    join(world, "m2")
    states.append(contents(group(world)))
    operations.append(len(world.operations))
    for count, expected in zip(operations, states, strict=True):
        assert contents(group(world.crashed(after=count))) == expected


def test_commits_are_fenced_by_the_member_s_epoch() -> None:
    world = World(AT_ONCE)
    assert commit(world, "", -1) is E.NONE
    owned = join(world, "m1").assignment
    assert commit(world, "", -1) is E.UNKNOWN_MEMBER_ID
    assert commit(world, "m9", 2) is E.UNKNOWN_MEMBER_ID
    assert commit(world, "m1", 2, knows_group_id_not_found=False) is E.UNSUPPORTED_VERSION
    assert commit(world, "m1", 3) is E.STALE_MEMBER_EPOCH
    assert commit(world, "m1", 2) is E.NONE
    join(world, "m2")
    send(world, "m1", 2, owned=owned)
    # It keeps partition 0 since epoch 2, and may commit partition 1 until it gave it up.
    assert commit(world, "m1", 2, 1) is E.NONE
    send(world, "m1", 2, owned={topic_id(world): frozenset({0})})
    assert group(world).members["m1"].current.epoch == 3
    assert commit(world, "m1", 2, 0) is E.NONE
    assert commit(world, "m1", 2, 1) is E.STALE_MEMBER_EPOCH
    assert commit(world, "m1", 1, 0) is E.STALE_MEMBER_EPOCH
    send(world, "m2", 3, owned={})
    assert commit(world, "m2", 3, 1) is E.NONE


def test_transactional_commits_are_fenced_too_with_the_error_that_old_clients_know() -> None:
    world = World(AT_ONCE)
    join(world, "m1")
    assert commit_pending(world, "", -1) is E.NONE
    assert commit_pending(world, "m9", 2) is E.UNKNOWN_MEMBER_ID
    assert commit_pending(world, "m1", 3) is E.ILLEGAL_GENERATION
    assert commit_pending(world, "m1", 1) is E.ILLEGAL_GENERATION
    assert commit_pending(world, "m1", 2) is E.NONE


def test_a_fetch_names_no_member_or_the_right_epoch() -> None:
    world = World()
    join(world, "m")

    def fetch(*member) -> ErrorCode:
        return world.groups.offset_fetch("g", None, require_stable=False, member=member).error

    assert fetch(None, -1) is E.NONE
    assert fetch("m", 2) is E.NONE
    assert fetch("m", 3) is E.STALE_MEMBER_EPOCH
    assert fetch("m9", 1) is E.UNKNOWN_MEMBER_ID


def test_a_group_id_has_one_kind_of_group_and_an_empty_one_gives_way() -> None:
    world = World()
    assert commit(world, "", -1) is E.NONE
    assert world.groups.describe_group("g").state == "Empty"
    join(world, "m")
    assert world.offset("g", "a") == (5, E.NONE)
    described = world.groups.describe_group("g")
    assert (described.error, described.message) == (
        E.GROUP_ID_NOT_FOUND, "Group g is not a classic group.",
    )  # fmt: skip
    send(world, "m", -1)
    joining = world.join(requires_known_member_id=False)
    world.advance(3_000)
    assert joining[0].error is E.NONE
    assert group(world) is E.GROUP_ID_NOT_FOUND
    assert send(world, "m", 0, **JOINING).error is E.GROUP_ID_NOT_FOUND
    later = world.crashed()
    assert later.groups.describe_group("g").error is E.NONE
    assert group(later) is E.GROUP_ID_NOT_FOUND
    assert later.offset("g", "a") == (5, E.NONE)


def test_groups_are_listed_by_type_and_state() -> None:
    world = World()
    join(world, "m")
    world.join("c", requires_known_member_id=False)
    world.commit_offset(1, group_id="simple")
    rows = world.groups.list_groups().groups
    assert [(r.group_id, r.group_type, r.protocol_type, r.state) for r in rows] == [
        ("c", "classic", "consumer", "PreparingRebalance"),
        ("g", "consumer", "consumer", "Stable"),
        ("simple", "classic", "", "Empty"),
    ]

    def names(**filters) -> list[str]:
        return [row.group_id for row in world.groups.list_groups(**filters).groups]

    assert names(type_filters=["Consumer"]) == ["g"]
    assert names(type_filters=["classic"]) == ["c", "simple"]
    assert names(state_filters=["stable"]) == ["g"]


def test_an_empty_group_is_deleted_with_its_records_or_expires() -> None:
    for expires in (False, True):
        world = World({"offsets.retention.minutes": 1})
        join(world, "m", topic_names=None, topic_regex="a")
        assert commit(world, "m", 1) is E.NONE
        refused = world.tell(world.groups.delete_groups, ["g"])
        assert refused == {"g": E.NON_EMPTY_GROUP}
        send(world, "m", -1)
        if expires:
            world.advance(700_000)
        else:
            assert world.tell(world.groups.delete_groups, ["g"]) == {"g": E.NONE}
        assert world.groups.list_groups().groups == ()
        later = world.crashed()
        assert later.groups.list_groups().groups == ()
        assert join(later, "m").member_epoch == 2


def test_offsets_of_topics_that_a_living_group_reads_are_not_deleted() -> None:
    world = World()
    join(world, "m")
    assert commit(world, "m", 2) is E.NONE
    asked = world.tell(world.groups.offset_delete, "g", [TOPIC_A])
    assert asked.partitions == {TOPIC_A: E.GROUP_SUBSCRIBED_TO_TOPIC}


def test_a_heartbeat_that_the_log_refuses_changes_nothing() -> None:
    world = World(AT_ONCE)
    assert commit(world, "", -1) is E.NONE
    world.refuse(*OFFSETS, E.NOT_ENOUGH_REPLICAS)
    assert send(world, "m", 0, **JOINING).error is E.COORDINATOR_NOT_AVAILABLE
    assert world.groups.describe_group("g").state == "Empty"
    assert world.tell(world.groups.delete_groups, ["g"]) == {"g": E.COORDINATOR_NOT_AVAILABLE}


def test_a_removal_that_the_log_refuses_is_made_later() -> None:
    world = World(AT_ONCE)
    join(world, "m")
    world.refuse(*OFFSETS, E.NOT_ENOUGH_REPLICAS)
    world.advance(45_000)
    assert set(group(world).members) == {"m"}
    world.refusals.clear()
    world.advance(500)
    assert group(world).is_empty
