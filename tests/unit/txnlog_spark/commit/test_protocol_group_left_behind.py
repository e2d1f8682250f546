"""A query that takes over goes on only where its group is: an old checkpoint doubles nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.commit_plans import build_plan, nothing_is_written
from support.scripted_broker import ScriptedCluster

from txnlog_spark.commit.micro_batch import commit_micro_batch
from txnlog_spark.commit.plan import CommitOutcome
from txnlog_spark.errors import CommittedOffsetsMoved
from txnlog_spark.wire.messages import ApiKey as K

A, B = ("in", 0), ("in", 1)
FIRST, SECOND = {A: 5, B: 7}, {A: 9, B: 7}


def commit(cluster: ScriptedCluster, batch_id: int, *, identity=None, **changes) -> CommitOutcome:
    ends = (FIRST, SECOND)[batch_id]
    previous = FIRST if batch_id else {}
    plan = build_plan(batch_id, source_offsets=ends, previous_offsets=previous)
    plan = replace(plan, source_digest=f"digest-{batch_id}", **changes)
    return cluster.run(commit_micro_batch(cluster.session(), identity, plan))


@pytest.fixture(params=[1, 2])
def cluster(request) -> ScriptedCluster:
    """On which the query's first batch is committed."""
    made = ScriptedCluster(request.param)
    commit(made, 0)
    return made


def move(cluster: ScriptedCluster, **ends: int) -> None:
    names = {"a": A, "b": B}
    cluster.state.offsets["g"] |= {names[name]: (end, "") for name, end in ends.items()}


def test_a_restarted_query_goes_on_where_its_group_is(cluster: ScriptedCluster) -> None:
    assert not commit(cluster, 1).skipped
    assert cluster.state.offsets["g"][A] == (9, "")


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ({"a": 9}, "in-0 from 5 to 9"),
        ({"a": 2}, "in-0 from 5 to 2"),
        ({"b": 8}, "in-1 from 7 to 8"),
    ],
)
def test_a_checkpoint_that_its_group_left_behind_stops_before_any_write(
    cluster: ScriptedCluster, ends, told: str
) -> None:
    move(cluster, **ends)
    before = len(cluster.asked)
    with pytest.raises(CommittedOffsetsMoved, match=told) as caught:
        commit(cluster, 1)
    assert "newer checkpoint" in str(caught.value)
    assert nothing_is_written(cluster, before)


def test_a_batch_that_was_skipped_first_does_not_hide_that_the_group_went_on(
    cluster: ScriptedCluster,
) -> None:
    move(cluster, a=9)
    skipped = commit(cluster, 0)
    assert skipped.skipped
    with pytest.raises(CommittedOffsetsMoved):
        commit(cluster, 1, identity=skipped.identity)


def test_a_deleted_input_topic_says_nothing(cluster: ScriptedCluster) -> None:
    del cluster.state.offsets["g"][A], cluster.state.offsets["g"][B]
    assert not commit(cluster, 1).skipped


def test_a_query_that_changes_its_group_goes_on(cluster: ScriptedCluster) -> None:
    cluster.state.offsets["other"] |= {A: (99, "")}
    assert not commit(cluster, 1, group_id="other").skipped


def test_the_holder_of_the_last_commit_does_not_ask_again() -> None:
    cluster = ScriptedCluster(2)
    first = commit(cluster, 0)
    asked = cluster.apis().count(K.OFFSET_FETCH)
    commit(cluster, 1, identity=first.identity)
    groups = [g.group_id for r in cluster.requests(K.OFFSET_FETCH)[asked:] for g in r.groups]
    assert "g" not in groups
