"""Committed and pending offsets: who may commit, who sees what, what a load brings back."""

from __future__ import annotations

import pytest
from support.core.coordinators import OFFSETS, World

from broker_sim.core.effects import Append, Flush
from broker_sim.core.group.requests import OffsetCommit, OffsetToCommit, TxnOffsetCommit
from txnlog_kafka.wire.error_codes import ErrorCode

E = ErrorCode
DAY_MS = 86_400_000
READS_IN = (("range", bytes.fromhex("0000000000010002696effffffff")),)


def build_stable_group(world: World, **more) -> dict:
    """Build a group with one member in generation 1; return the fields that name the member."""
    joining = world.join(requires_known_member_id=False, **more)
    world.advance(3_000)
    (joined,) = joining
    member = {"generation_id": 1, "member_id": joined.member_id}
    world.sync(
        **member, assignments={joined.member_id: b"all"},
        group_instance_id=more.get("group_instance_id"),
    )  # fmt: skip
    assert world.group_state() == "Stable"
    return member


# ---------------------------------------------------------------- plain commits


@pytest.mark.invariant(3)
def test_a_commit_is_seen_and_durable_before_its_answer() -> None:
    world = World()
    assert world.commit_offset(5) is E.NONE
    assert world.offset() == (5, E.NONE)
    *_, written, flushed = world.operations
    assert isinstance(written, Append)
    assert flushed == Flush((written.path,))
    assert world.crashed(loses_unflushed=True).offset() == (5, E.NONE)


def test_metadata_over_the_limit_refuses_its_partition_only() -> None:
    world = World()
    offsets = (
        OffsetToCommit("in", 0, 5, metadata="x" * 4097),
        OffsetToCommit("in", 1, 6, metadata="x" * 4096),
        OffsetToCommit("in", 2, 7, metadata="\U0001f600" * 2049),
    )
    errors = world.tell(world.groups.offset_commit, OffsetCommit(group_id="g", offsets=offsets))
    assert [errors["in", p] for p in range(3)] == [
        E.OFFSET_METADATA_TOO_LARGE, E.NONE, E.OFFSET_METADATA_TOO_LARGE,
    ]  # fmt: skip
    txn = TxnOffsetCommit(group_id="g", producer_id=9, producer_epoch=0, offsets=offsets)
    assert world.tell(world.groups.txn_offset_commit, txn) == errors


def test_partitions_that_never_committed_are_minus_one_without_an_error() -> None:
    world = World()
    assert world.offset("nobody") == (-1, E.NONE)
    assert world.offsets("nobody") == ()


@pytest.mark.parametrize(
    ("knows", "expected"), [(True, E.GROUP_ID_NOT_FOUND), (False, E.ILLEGAL_GENERATION)]
)
def test_a_generation_of_a_group_that_is_not_there(knows, expected) -> None:
    world = World()
    more = {"generation_id": 0, "member_id": "m", "knows_group_id_not_found": knows}
    assert world.commit_offset(5, **more) is expected
    assert world.commit_pending(5, **more) is expected
    assert world.groups.describe_group("g").error is E.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, E.NONE),
        ({"generation_id": 0}, E.ILLEGAL_GENERATION),
        ({"generation_id": 2}, E.ILLEGAL_GENERATION),
        ({"member_id": "other"}, E.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": "", "generation_id": -1}, E.UNKNOWN_MEMBER_ID),
        ({"generation_id": -1}, E.ILLEGAL_GENERATION),
    ],
)
def test_only_the_members_of_the_generation_commit(asked, expected) -> None:
    world = World()
    member = build_stable_group(world)
    assert world.commit_offset(5, **member | asked) is expected
    assert world.offset()[0] == (5 if expected is E.NONE else -1)


@pytest.mark.invariant(33)
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, E.NONE),
        ({"generation_id": 0}, E.ILLEGAL_GENERATION),
        ({"member_id": "other"}, E.FENCED_INSTANCE_ID),
        ({"member_id": "other", "group_instance_id": None}, E.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "nobody"}, E.UNKNOWN_MEMBER_ID),
        # Old versions name nobody, and are accepted (KIP-447 came later).
        ({"generation_id": -1, "member_id": "", "group_instance_id": None}, E.NONE),
    ],
)
def test_transactional_commits_are_checked_against_generation_member_and_instance(
    asked, expected
) -> None:
    world = World()
    member = build_stable_group(world, group_instance_id="i") | {"group_instance_id": "i"}
    assert world.commit_pending(5, **member | asked) is expected
    pending = world.offset(stable=True)[1]
    assert pending is (E.UNSTABLE_OFFSET_COMMIT if expected is E.NONE else E.NONE)


def test_transactional_commits_to_a_group_that_is_not_there() -> None:
    world = World()
    assert world.commit_pending(5, generation_id=0, member_id="m") is E.ILLEGAL_GENERATION
    assert world.commit_pending(5, group_id="") is E.INVALID_GROUP_ID
    assert world.commit_pending(5) is E.NONE
    assert world.group_state() == "Empty"


def test_while_the_assignment_is_awaited_only_transactional_commits_pass() -> None:
    world = World()
    joining = world.join(requires_known_member_id=False)
    world.advance(3_000)
    member = {"generation_id": 1, "member_id": joining[0].member_id}
    assert world.group_state() == "CompletingRebalance"
    assert world.commit_offset(5, **member) is E.REBALANCE_IN_PROGRESS
    assert world.commit_pending(5, **member) is E.NONE


def test_while_members_join_the_old_generation_still_commits_and_lives() -> None:
    world = World()
    member = build_stable_group(world, session_timeout_ms=10_000, rebalance_timeout_ms=60_000)
    world.join(requires_known_member_id=False)
    assert world.group_state() == "PreparingRebalance"
    for _ in range(4):
        world.advance(8_000)
        assert world.commit_offset(5, **member) is E.NONE


# ---------------------------------------------------------------- pending offsets


@pytest.mark.invariant(31)
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("crashes", [True, False])
def test_pending_offsets_are_invisible_until_the_marker(commits, crashes) -> None:
    world = World()
    world.commit_offset(1)
    assert world.commit_pending(8) is E.NONE
    if crashes:
        world = world.crashed()
    assert world.offset() == (1, E.NONE)
    assert world.offset(stable=True) == (-1, E.UNSTABLE_OFFSET_COMMIT)
    world.mark(commit=commits)
    expected = (8 if commits else 1, E.NONE)
    assert world.offset(stable=True) == expected
    world.mark(commit=not commits)
    assert world.offset(stable=True) == expected
    assert world.crashed().offset(stable=True) == expected


def test_only_the_partitions_of_the_transaction_are_unstable() -> None:
    world = World()
    world.commit_offset(1)
    world.commit_offset(2, topic="other")
    world.commit_pending(8)
    told = {f.topic: f.error for f in world.offsets()}
    assert told == {"in": E.UNSTABLE_OFFSET_COMMIT, "other": E.NONE}


def test_as_in_kafka_all_offsets_does_not_name_what_is_pending_only() -> None:
    world = World()
    world.commit_pending(8)
    assert world.offsets() == ()
    assert world.offset(stable=True) == (-1, E.UNSTABLE_OFFSET_COMMIT)


def test_two_transactions_on_one_group_are_decided_apart() -> None:
    world = World()
    world.commit_pending(8, producer_id=1)
    world.commit_pending(9, producer_id=2)
    world.mark(commit=True, producer_id=1)
    assert world.offset() == (8, E.NONE)
    assert world.offset(stable=True)[1] is E.UNSTABLE_OFFSET_COMMIT
    world.mark(commit=False, producer_id=2)
    assert world.offset(stable=True) == (8, E.NONE)


@pytest.mark.invariant(31)
@pytest.mark.parametrize("crashes", [True, False])
def test_the_commit_later_in_the_log_wins_over_the_later_marker(crashes) -> None:
    world = World()
    world.commit_pending(8)
    world.commit_offset(5)
    world.mark(commit=True)
    if crashes:
        world = world.crashed()
    assert world.offset(stable=True) == (5, E.NONE)


def test_a_refused_append_commits_nothing() -> None:
    world = World()
    world.refuse(*OFFSETS, E.NOT_ENOUGH_REPLICAS)
    assert world.commit_offset(5) is E.COORDINATOR_NOT_AVAILABLE
    assert world.commit_pending(5) is E.COORDINATOR_NOT_AVAILABLE
    world.refuse(*OFFSETS, E.INVALID_PRODUCER_EPOCH)
    assert world.commit_pending(5) is E.INVALID_PRODUCER_EPOCH
    assert world.offset(stable=True) == (-1, E.NONE)


# ---------------------------------------------------------------- deletion and expiry


def test_offset_delete_removes_committed_and_pending_ones() -> None:
    world = World()
    world.commit_offset(1)
    world.commit_pending(8)
    result = world.tell(world.groups.offset_delete, "g", [("in", 0), ("in", 5)])
    assert result.partitions == {("in", 0): E.NONE, ("in", 5): E.NONE}
    world.mark(commit=True)
    for life in (world, world.crashed(loses_unflushed=True)):
        assert life.offset(stable=True) == (-1, E.NONE)
    assert world.tell(world.groups.offset_delete, "no", []).error is E.GROUP_ID_NOT_FOUND
    assert world.tell(world.groups.offset_delete, "", []).error is E.INVALID_GROUP_ID


def test_offset_delete_spares_what_a_living_group_reads() -> None:
    world = World()
    member = build_stable_group(world, protocols=READS_IN)
    world.commit_offset(1, **member)
    world.commit_offset(2, topic="old", **member)
    result = world.tell(world.groups.offset_delete, "g", [("in", 0), ("old", 0)])
    assert result.partitions == {("in", 0): E.GROUP_SUBSCRIBED_TO_TOPIC, ("old", 0): E.NONE}
    assert (world.offset()[0], world.offset(topic="old")[0]) == (1, -1)


def test_what_of_a_living_group_is_not_deleted() -> None:
    world = World()
    build_stable_group(world, protocol_type="connect")  # not of consumers
    result = world.tell(world.groups.offset_delete, "g", [("in", 0)])
    assert result.error is E.NON_EMPTY_GROUP
    assert world.tell(world.groups.delete_groups, ["g"]) == {"g": E.NON_EMPTY_GROUP}


def test_a_deleted_group_stays_deleted_with_all_its_offsets() -> None:
    world = World()
    world.commit_offset(1)
    world.commit_pending(8)
    world.commit_offset(1, group_id="kept")
    answers = world.tell(world.groups.delete_groups, ["g", "unknown", "g"])
    assert answers == {"g": E.NONE, "unknown": E.GROUP_ID_NOT_FOUND}
    world.mark(commit=True)
    for life in (world, world.crashed(loses_unflushed=True)):
        assert life.offset(stable=True) == (-1, E.NONE)
        assert [row.group_id for row in life.groups.list_groups().groups] == ["kept"]


@pytest.mark.parametrize("cause", ["group", "topics", "retention"])
def test_tombstones_of_long_names_are_more_than_one_batch(cause: str) -> None:
    """150 of a group id of 8,000 letters are 1.2 MB; a batch holds 1 MiB."""
    world, group_id = World(), "g" * 8_000
    for topic in (f"in-{number}" for number in range(150)):
        assert world.commit_offset(1, group_id=group_id, topic=topic) is E.NONE
    if cause == "group":
        assert world.tell(world.groups.delete_groups, [group_id]) == {group_id: E.NONE}
    elif cause == "topics":
        gone = [(f"in-{number}", 0) for number in range(150)]
        world.call(world.groups.on_partitions_deleted, gone)
    else:
        world.advance(7 * DAY_MS + 600_000)
    for life in (world, world.crashed(loses_unflushed=True)):
        assert life.offsets(group_id) == ()


def test_offsets_of_a_deleted_topic_do_not_greet_a_new_one() -> None:
    world = World()
    world.commit_offset(1)
    world.commit_offset(1, topic="kept")
    world.commit_pending(8, group_id="h")
    world.call(world.groups.on_partitions_deleted, [("in", 0)])
    world.mark(commit=True)
    assert (world.offset()[0], world.offset("h")[0]) == (-1, -1)
    assert world.offset(topic="kept")[0] == 1


def test_offsets_expire_after_their_retention_and_the_empty_group_with_them() -> None:
    world = World()
    world.commit_offset(1)
    world.advance(6 * DAY_MS)
    world.commit_offset(2, topic="young")
    world.advance(DAY_MS + 600_000)
    assert (world.offset()[0], world.offset(topic="young")[0]) == (-1, 2)
    world.advance(7 * DAY_MS)
    assert world.groups.list_groups().groups == ()
    assert world.crashed().groups.list_groups().groups == ()


def test_pending_offsets_keep_what_they_replace() -> None:
    world = World()
    world.commit_offset(1)
    world.commit_pending(8)
    world.advance(8 * DAY_MS)
    assert world.offset() == (1, E.NONE)
    world.mark(commit=False)
    world.advance(600_000)
    assert world.groups.list_groups().groups == ()


def test_a_deleted_pending_offset_does_not_keep_the_group() -> None:
    world = World()
    world.commit_pending(8)
    world.tell(world.groups.offset_delete, "g", [("in", 0)])
    world.advance(600_000)
    assert world.groups.list_groups().groups == ()
    world.mark(commit=True)
    assert world.offset()[0] == -1


def test_a_group_nobody_has_joined_yet_goes_with_the_next_sweep() -> None:
    world = World()
    (required,) = world.join(session_timeout_ms=1_800_000)
    world.advance(600_000)
    assert world.groups.list_groups().groups == ()
    (refused,) = world.join(member_id=required.member_id)
    assert refused.error is E.UNKNOWN_MEMBER_ID


def test_offsets_of_a_group_with_members_expire_only_for_topics_it_left() -> None:
    world = World()
    member = build_stable_group(world, protocols=READS_IN, session_timeout_ms=1_800_000)
    world.commit_offset(1, **member)
    world.commit_offset(2, topic="left", **member)
    for _ in range(8 * 72):
        world.advance(1_200_000)
        assert world.heartbeat(**member) is E.NONE
    assert (world.offset()[0], world.offset(topic="left")[0]) == (1, -1)


@pytest.mark.parametrize("retention_time_ms", [1_000, -2])
def test_a_retention_of_the_request_replaces_the_brokers(retention_time_ms) -> None:
    """A retention that has already passed counts, too."""
    world = World()
    world.commit_offset(1, retention_time_ms=retention_time_ms)
    world.advance(600_000)
    assert world.offset()[0] == -1
