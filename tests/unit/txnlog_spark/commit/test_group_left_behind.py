"""A query goes on only where its group is: an old checkpoint, or a moved start, doubles nothing."""

from __future__ import annotations

import pytest
from support.core.core_broker import CoreBroker
from support.query.commit_plans import build_plan, changed, logged, nothing_is_written
from support.query.commit_plans import commit as commit_plan

from txnlog_kafka.operations.admin import delete_group
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.checkpoint import SourceEnd
from txnlog_spark.commit.plan import CommitOutcome, Evidence
from txnlog_spark.commit.refusals import group_moved
from txnlog_spark.errors import BROKERS, CommittedOffsetsMoved
from txnlog_spark.group_note import note_of
from txnlog_spark.offsets import SourceNote, positions_digest

A, B = ("in", 0), ("in", 1)
FIRST, SECOND = {A: 5, B: 7}, {A: 9, B: 7}


def commit(cluster: CoreBroker, batch_id: int, **changes) -> CommitOutcome:
    number = min(batch_id, 1)
    plan = build_plan(batch_id, source_offsets=(FIRST, SECOND)[number], **changes)
    return commit_plan(cluster, changed(plan, source_digest=f"digest-{number}"))


@pytest.fixture(params=[1, 2])
def cluster(request) -> CoreBroker:
    """Return a cluster on which the query's first batch is committed."""
    made = CoreBroker(request.param)
    commit(made, 0, batch_hash=logged(made, 0, 'v1\n{}\n{"in":{"0":5,"1":7}}'))
    return made


def move(cluster: CoreBroker, **ends: int) -> None:
    names = {"a": A, "b": B}
    cluster.commit_offsets("g", {names[name]: (end, "") for name, end in ends.items()})


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ({"a": 9}, "in-0 from 5 to 9"),
        ({"a": 2}, "in-0 from 5 to 2"),
        ({"b": 8}, "in-1 from 7 to 8"),
    ],
)
def test_a_checkpoint_that_its_group_left_behind_stops_before_any_write(
    cluster: CoreBroker, ends, told: str
) -> None:
    move(cluster, **ends)
    before = len(cluster.asked)
    with pytest.raises(CommittedOffsetsMoved, match=told) as caught:
        commit(cluster, 1)
    assert "No other query has committed them, and the group has no member now" in str(caught.value)
    back = f"--group g --topic {told[:4].replace('-', ':')} --to-offset {told.split()[2]} --execute"
    assert back in str(caught.value)
    assert nothing_is_written(cluster, before)


def test_a_batch_that_was_skipped_first_does_not_hide_that_the_group_went_on(
    cluster: CoreBroker,
) -> None:
    move(cluster, a=9)
    assert commit(cluster, 0).skipped
    with pytest.raises(CommittedOffsetsMoved):
        commit(cluster, 1)


def test_the_command_that_sets_a_group_back_has_every_partition() -> None:
    moved = {TopicPartition("in", number): 10 + number // 5 for number in range(10)}
    plan = build_plan(3, group_id="the group")
    error = group_moved(plan, 2, moved, Evidence(None, group=dict.fromkeys(moved, 0)))
    command = f"python -m broker_sim groups reset-offsets {BROKERS} --group 'the group'"
    first, second = (
        " ".join(f"--topic in:{number}" for number in numbers)
        for numbers in (range(5), range(5, 10))
    )
    assert error.commands == (
        f"Do this to continue where the query was: {command} {first} --to-offset 10 --execute && "
        f"{command} {second} --to-offset 11 --execute",
    )


def test_a_group_whose_offsets_are_not_known_any_more_has_no_command() -> None:
    nowhere = {TopicPartition("in", 0): None}
    error = group_moved(build_plan(3), 2, nowhere, Evidence(None, group={("in", 0): 1}))
    assert error.commands == ()
    assert "the checkpoint no longer has the offsets of that batch" in str(error)


@pytest.mark.parametrize("deleted", ["topic", "group"])
def test_offsets_that_were_deleted_say_nothing(cluster: CoreBroker, deleted: str) -> None:
    if deleted == "topic":
        cluster.delete_topic("in")
    else:
        cluster.run(delete_group(cluster.session(), "g"))
    assert cluster.offsets("g") == {}
    assert not commit(cluster, 1).skipped


def test_a_query_that_changes_its_group_goes_on(cluster: CoreBroker) -> None:
    cluster.commit_offsets("other", {A: (99, "")})
    assert not commit(cluster, 1, group_id="other").skipped


def cluster_with(committed: dict[tuple[str, int], int], version: int = 2) -> CoreBroker:
    cluster = CoreBroker(version)
    cluster.create_topics(other=1)
    cluster.commit_offsets("g", {p: (offset, "") for p, offset in committed.items()})
    return cluster


def commit_from(cluster: CoreBroker, expected: dict[tuple[str, int], int | None]):
    committed = {TopicPartition(*p): at for p, at in expected.items() if at is not None}
    ends = {TopicPartition(*A): 5, TopicPartition(*B): 0}
    note = SourceNote("c", "g", group_start=positions_digest(committed))
    source = SourceEnd("", ends, note)
    return commit_plan(cluster, build_plan(source_offsets={A: 5, B: 0}, sources=(source,)))


@pytest.mark.parametrize("version", [1, 2])
def test_offsets_that_still_hold_are_gone_on_from(version: int) -> None:
    cluster = cluster_with({A: 5, ("other", 0): 9}, version)
    assert not commit_from(cluster, {A: 5, B: None}).skipped
    assert cluster.offsets("g")[B] == (0, "")
    assert note_of(cluster.offsets("g")[A][1]) is not None


@pytest.mark.parametrize(
    ("committed", "told"),
    [
        ({A: 8}, "in-0 from 5 to 8"),
        ({A: 4}, "in-0 from 5 to 4"),
        ({}, "offsets of group 'g'"),
        ({A: 5, B: 0}, "offsets of group 'g'"),
    ],
)
def test_offsets_that_moved_stop_the_query_before_any_write(committed, told: str) -> None:
    cluster = cluster_with(committed)
    with pytest.raises(CommittedOffsetsMoved, match=told) as caught:
        commit_from(cluster, {A: 5, B: None})
    assert "new, empty checkpoint" in str(caught.value)
    assert nothing_is_written(cluster)


def test_a_committed_start_that_comes_again_is_skipped_though_the_group_is_where_it_put_it() -> (
    None
):
    cluster = cluster_with({A: 5})
    commit_from(cluster, {A: 5, B: None})
    assert commit_from(cluster, {A: 5, B: None}).skipped
