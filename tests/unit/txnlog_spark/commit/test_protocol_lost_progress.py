"""What the commit does when topics under it were deleted, or the brokers know less than we do."""

from __future__ import annotations

import pytest
from support.commit_plans import EXPECTED, PROGRESS_GROUP, QUERY, build_plan, nothing_is_written
from support.scripted_broker import ScriptedCluster, refused

from txnlog_spark.commit.judgement import Facts, judge
from txnlog_spark.commit.micro_batch import commit_micro_batch
from txnlog_spark.commit.plan import CommitPlan, Progress
from txnlog_spark.commit.progress import locate_progress
from txnlog_spark.errors import BatchReplanned, DeadlineExceeded, ProgressMissing
from txnlog_spark.wire.errors import ErrorCode as E
from txnlog_spark.wire.messages import ApiKey as K

DELETED = ("deleted", 0)


def commit(cluster, plan):
    return cluster.run(commit_micro_batch(cluster.session(), None, plan))


def with_progress(next_batch_id, partition=("out", 0)):
    cluster = ScriptedCluster(2)
    metadata = f'{{"v":1,"q":"{QUERY}","e":"digest-5"}}'
    cluster.state.offsets[PROGRESS_GROUP][partition] = (next_batch_id, metadata)
    return cluster


def test_batches_lost_with_their_logs_are_not_skipped_when_another_source_was_read_too():
    plan = CommitPlan(
        "q",
        "r",
        3,
        "t",
        "p",
        ("o", 0),
        group_id="g",
        source_offsets={("in", 0): 5},
        source_digest="the file source reaches further than in the committed batch 3",
    )
    with pytest.raises(BatchReplanned):
        judge(plan, Facts(Progress("q", 5, "digest of batch 4"), group={("in", 0): 5}))


@pytest.mark.invariant(41)
def test_progress_that_is_less_than_what_was_recorded_is_missing_and_not_a_batch_to_redo():
    cluster = with_progress(7)
    with pytest.raises(ProgressMissing, match=r"8 by the checkpoint.* is 7 only"):
        commit(cluster, build_plan(7, next_batch_id_min=8))
    assert nothing_is_written(cluster)


def test_progress_beyond_what_was_recorded_is_skipped():
    assert commit(with_progress(8), build_plan(7, next_batch_id_min=7)).skipped


def test_a_deleted_progress_topic_is_named_and_not_created_again():
    cluster = ScriptedCluster(2)
    with pytest.raises(ProgressMissing, match="topic 'deleted' was deleted"):
        commit(cluster, build_plan(7, progress_partition=DELETED))
    assert not any(r.allow_auto_topic_creation for r in cluster.requests(K.METADATA))


def test_a_progress_topic_that_is_deleted_before_its_progress_is_named_too():
    cluster = with_progress(7, DELETED)
    with pytest.raises(ProgressMissing, match="topic 'deleted' was deleted"):
        commit(cluster, build_plan(7, progress_partition=DELETED, staged=()))
    assert K.TXN_OFFSET_COMMIT not in cluster.apis()


def test_progress_is_located_where_the_newest_lies():
    cluster = with_progress(3)
    metadata = f'{{"v":1,"q":"{QUERY}","e":""}}'
    cluster.state.offsets[PROGRESS_GROUP][("out", 1)] = (5, metadata)
    session = cluster.session()
    assert cluster.run(locate_progress(session, PROGRESS_GROUP, QUERY)) == ("out", 1)
    assert cluster.run(locate_progress(session, PROGRESS_GROUP, "other")) is None


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("others", [{}, {("in", 0): 5}])
def test_offsets_of_a_deleted_source_topic_are_left_out_and_the_batch_is_committed(version, others):
    cluster = ScriptedCluster(version)
    outcome = commit(cluster, build_plan(source_offsets={DELETED: 9, **others}))
    assert outcome.missing_sources == {DELETED}
    assert {p: cluster.state.committed_values(p) for p in EXPECTED} == EXPECTED
    assert cluster.state.offsets["g"] == {p: (end, "") for p, end in others.items()}


def test_a_source_topic_that_one_broker_does_not_know_yet_is_not_left_out():
    cluster = ScriptedCluster(2)
    cluster.script(K.TXN_OFFSET_COMMIT, *[refused(E.UNKNOWN_TOPIC_OR_PARTITION)] * 3)
    outcome = commit(cluster, build_plan())
    assert not outcome.missing_sources
    assert cluster.state.offsets["g"] == {("in", 0): (5, "")}


class Restarted(ScriptedCluster):
    """A broker that learns of topic `in` two seconds after its start."""

    def _perform(self, ask):
        if self.now_ms >= 2_000:
            self.leaders["in", 0] = 1
        return super()._perform(ask)


def test_a_source_topic_that_is_known_after_a_while_is_not_left_out():
    cluster = Restarted(2)
    del cluster.leaders["in", 0]
    outcome = commit(cluster, build_plan())
    assert not outcome.missing_sources
    assert cluster.state.offsets["g"] == {("in", 0): (5, "")}


def test_progress_is_never_left_out():
    cluster = ScriptedCluster(2)
    cluster.leaders["gone", 0] = 1
    plan = build_plan(progress_partition=("gone", 0), group_id=None, source_offsets={})
    cluster.on_reached = lambda step, _when: (
        step == "txn_offset_commit" and cluster.leaders.pop(("gone", 0), None)
    )
    with pytest.raises(DeadlineExceeded):
        commit(cluster, plan)
    assert not any(r.committed for r in cluster.requests(K.END_TXN))
