"""Loading, moving and losing a partition of the offsets log, and field bugs that concern groups.

The names B23 to B29 are those of the field bugs in `docs/faults.md`.
"""

from __future__ import annotations

import pytest
from support.core.broker_build import GROUP, BrokerOnDisk, request
from support.core.coordinators import OFFSETS, World

from broker_sim.core.coordinator.partition_writer import PartitionMarker
from broker_sim.core.group.requests import LeavingMember, OffsetCommit, OffsetToCommit
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import ApiKey
from txnlog_kafka.wire.records import MarkerType, TransactionMarker

E, K = ErrorCode, ApiKey
DAY_MS = 86_400_000


def stable_member(world: World, **more) -> str:
    (joined,) = joining(world, **more)
    member_id = joined.member_id
    world.sync(generation_id=1, member_id=member_id, assignments={member_id: b"all"})
    assert world.group_state() == "Stable"
    return member_id


def joining(world: World, **more) -> list:
    answers = world.join(requires_known_member_id=False, **more)
    world.advance(3_000)
    return answers


def all_answers(world: World, member_id: str) -> dict[str, ErrorCode]:
    """Return the error of every request to the group, by API."""
    groups = world.groups
    member = {"member_id": member_id, "generation_id": 1}
    return {
        "JoinGroup": world.join(member_id=member_id)[0].error,
        "SyncGroup": world.sync(**member)[0].error,
        "Heartbeat": world.heartbeat(**member),
        "LeaveGroup": world.tell(groups.leave_group, "g", [LeavingMember(member_id)]).error,
        "OffsetCommit": world.commit_offset(1, **member),
        "TxnOffsetCommit": world.commit_pending(1),
        "OffsetFetch": groups.offset_fetch("g", None, require_stable=True).error,
        "OffsetDelete": world.tell(groups.offset_delete, "g", [("in", 0)]).error,
        "DeleteGroups": world.tell(groups.delete_groups, ["g"])["g"],
        "DescribeGroups": groups.describe_group("g").error,
    }


def test_another_brokers_groups_are_refused_and_not_listed() -> None:
    world = World()
    member_id = stable_member(world)
    world.call(world.groups.unload, 0)
    assert set(all_answers(world, member_id).values()) == {E.NOT_COORDINATOR}
    listed = world.groups.list_groups()
    assert (listed.error, listed.groups) == (E.NONE, ())


@pytest.mark.invariant(32)
def test_b23_a_decided_but_unmarked_offset_is_unstable_and_then_the_new_one() -> None:
    world = World()
    world.commit_offset(1)
    world.commit_pending(8)
    for _ in range(2):
        assert world.offset(stable=True)[1] is E.UNSTABLE_OFFSET_COMMIT
        world = world.crashed()
    assert world.mark(commit=True) is E.NONE
    assert world.offset(stable=True) == (8, E.NONE)
    assert world.crashed().offset(stable=True) == (8, E.NONE)


@pytest.mark.invariant(32)
def test_b24_the_marker_is_answered_after_its_offsets_can_be_read() -> None:
    world = World()
    world.commit_pending(8)
    seen = []
    marker = TransactionMarker(9, 0, MarkerType.COMMIT, 0)
    sent = PartitionMarker(OFFSETS, marker, 0)
    append = world.parts.markers.append_here
    world.call(append, sent, lambda *_: seen.append(world.offset(stable=True)))
    assert seen == [(8, E.NONE)]


@pytest.mark.invariant(34)
@pytest.mark.parametrize("commits", [True, False])
def test_b25_a_group_of_pending_offsets_outlives_the_retention(commits: bool) -> None:
    world = World()
    world.commit_pending(8)
    world.advance(30 * DAY_MS)
    assert [group.group_id for group in world.groups.list_groups().groups] == ["g"]
    world.mark(commit=commits)
    assert world.offset()[0] == (8 if commits else -1)
    world.advance(DAY_MS)
    assert world.groups.list_groups().groups == ()


def test_b25_offsets_do_not_expire_while_their_group_rebalances() -> None:
    world = World({"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 10_000})
    reads_in = (("range", bytes.fromhex("0000000000010002696effffffff")),)
    first = stable_member(world, protocols=reads_in, rebalance_timeout_ms=600_000)
    assert world.commit_offset(1, topic="left", member_id=first, generation_id=1) is E.NONE
    parked = world.join(requires_known_member_id=False, protocols=reads_in)
    for _ in range(12):
        world.advance(20_000)
        assert world.heartbeat(first, 1) is E.REBALANCE_IN_PROGRESS
    assert world.offset(topic="left")[0] == 1
    world.join(member_id=first, protocols=reads_in)
    (joined,) = parked
    for member_id in (joined.member_id, first):
        world.sync(generation_id=2, member_id=member_id)
    world.advance(20_000)
    assert world.group_state() == "Stable"
    assert world.offset(topic="left")[0] == -1


def test_b26_a_deleted_group_stays_deleted_after_a_crash_anywhere() -> None:
    world = World()
    world.commit_offset(1)
    world.commit_pending(8, topic="other")
    before = len(world.operations)
    assert world.tell(world.groups.delete_groups, ["g"]) == {"g": E.NONE}
    after = world.crashed(loses_unflushed=True)
    assert after.groups.describe_group("g").error is E.GROUP_ID_NOT_FOUND
    assert after.offset()[0] == -1
    # Cut short, the deletion has not been answered: all is there, or nothing.
    for cut in range(before, len(world.operations) + 1):
        left = world.crashed(after=cut)
        is_there = left.groups.describe_group("g").error is E.NONE
        assert left.offset()[0] == (1 if is_there else -1)


def test_b26_the_offsets_topic_cannot_be_deleted_under_its_coordinator() -> None:
    broker = BrokerOnDisk()
    find = request(K.FIND_COORDINATOR, key_type=GROUP, coordinator_keys=["g"])
    heartbeat = request(K.HEARTBEAT, group_id="g", member_id="m", generation_id=1)
    assert broker.ask(heartbeat, 4).error_code == E.NOT_COORDINATOR
    assert broker.ask(find, 4).coordinators[0].error_code == 0
    deletion = request(K.DELETE_TOPICS, topic_names=["__consumer_offsets"], timeout_ms=1000)
    assert broker.ask(deletion, 5).responses[0].error_code == E.INVALID_TOPIC_EXCEPTION
    assert broker.ask(heartbeat, 4).error_code == E.UNKNOWN_MEMBER_ID


@pytest.mark.invariant(34)
def test_b27_metadata_and_leader_epoch_survive_a_restart() -> None:
    world = World()
    asked = OffsetCommit(
        group_id="g", offsets=(OffsetToCommit("in", 0, 5, leader_epoch=3, metadata="batch 7"),)
    )
    assert world.tell(world.groups.offset_commit, asked)["in", 0] is E.NONE
    for _ in range(3):
        world = world.crashed(loses_unflushed=True)
        (found,) = world.offsets()
        assert (found.committed_offset, found.leader_epoch, found.metadata) == (5, 3, "batch 7")


def test_b28_a_transaction_completes_when_the_coordinator_moves_in_between() -> None:
    world = World()
    world.commit_pending(1)
    world.call(world.groups.unload, 0)
    assert world.commit_pending(8) is E.NOT_COORDINATOR
    world.call(world.groups.load, 0, world.log(*OFFSETS))
    assert world.offset(stable=True)[1] is E.UNSTABLE_OFFSET_COMMIT
    assert world.commit_pending(8) is E.NONE
    assert world.mark(commit=True) is E.NONE
    assert world.offset(stable=True) == (8, E.NONE)
