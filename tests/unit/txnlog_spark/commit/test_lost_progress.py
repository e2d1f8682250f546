"""Commits after a topic was deleted, or when the brokers know less than the driver does."""

from __future__ import annotations

import pytest
from support.core.core_broker import CoreBroker
from support.core.scripted_faults import refused
from support.query.commit_plans import (
    CHECKPOINT,
    EXPECTED,
    PROGRESS_GROUP,
    QUERY,
    build_plan,
    changed,
    commit,
    nothing_is_written,
    put_begun,
    put_progress,
    recorded,
    recorded_on,
)

from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.checkpoint import SourceEnd
from txnlog_spark.commit.judgement import judge
from txnlog_spark.commit.plan import Evidence, Progress
from txnlog_spark.commit.progress import locate_progress
from txnlog_spark.errors import (
    BROKERS,
    BatchReplanned,
    ProgressBehind,
    ProgressMissing,
    RecordRefused,
)
from txnlog_spark.offsets import SourceNote

DELETED = ("deleted", 0)


def test_batches_lost_with_their_logs_are_not_skipped_when_another_source_was_read_too():
    plan = build_plan(3, source_digest="the file source reaches further than in the committed one")
    digest = plan.committer.output.digest
    found = Progress(QUERY, 5, "digest of batch 4", output_digest=digest, target="out")
    with pytest.raises(BatchReplanned):
        judge(changed(plan, is_pinned=False), Evidence(found, group={("in", 0): 5}))


# ------------------------------------------------------------------ the topic of the progress


def two_topics() -> CoreBroker:
    """Sources `deleted` and `in`; progress of a query that reads both lies on the first of them."""
    cluster = CoreBroker(2)
    cluster.create_topics(deleted=1)
    return cluster


def plan_of(batch_id: int, **changes):
    ends = {DELETED: batch_id + 1, ("in", 0): batch_id + 1}
    return build_plan(batch_id, source_offsets=ends, group_id=None, **changes)


def rows(cluster) -> list[bytes]:
    return cluster.committed_values("out", 0)


def test_progress_whose_topic_was_deleted_is_placed_anew_by_the_next_batch():
    cluster = two_topics()
    commit(cluster, plan_of(0))
    assert recorded_on(cluster).progress_partition == DELETED
    cluster.delete_topic("deleted")
    before_ms = cluster.now_ms
    assert not commit(cluster, plan_of(1)).skipped
    assert cluster.now_ms - before_ms < 10_000
    assert recorded_on(cluster).progress_partition == ("in", 0)
    assert cluster.offsets(PROGRESS_GROUP)["in", 0][0] == 2
    assert rows(cluster) == [b"a0", b"a1", b"a2"] * 2
    assert commit(cluster, plan_of(1)).skipped


@pytest.mark.invariant(36, 37)
@pytest.mark.parametrize("before", ["new", "following", "begun by an earlier run"])
@pytest.mark.parametrize("step", ["init_producer_id", "txn_offset_commit"])
def test_a_progress_topic_that_is_deleted_while_a_batch_is_written_costs_an_abort(step, before):
    cluster = two_topics()
    batch_id = 0 if before == "new" else 1
    for number in range(batch_id):
        commit(cluster, plan_of(number))
    if before == "begun by an earlier run":
        put_begun(cluster, recorded(plan_of(1, run_id="earlier"), progress_partition=DELETED))

    def delete(at, when):
        if (at, when) == (step, "before" if step == "txn_offset_commit" else "after"):
            cluster.on_reached = lambda _step, _when: None
            cluster.delete_topic("deleted")

    cluster.on_reached = delete
    if before.startswith("begun") and step == "init_producer_id":
        with pytest.raises(ProgressMissing, match="topic 'deleted' was deleted"):
            commit(cluster, plan_of(1))
        assert len(rows(cluster)) == 3
        return
    outcome = commit(cluster, plan_of(batch_id))
    assert outcome.attempts == 2
    assert rows(cluster) == [b"a0", b"a1", b"a2"] * (batch_id + 1)
    assert recorded_on(cluster).progress_partition == ("in", 0)
    assert cluster.offsets(PROGRESS_GROUP)["in", 0][0] == batch_id + 1


def test_a_deleted_progress_topic_of_a_batch_that_was_begun_is_named_and_not_created_again(cluster):
    put_begun(cluster, recorded(build_plan(7), progress_partition=DELETED))
    with pytest.raises(ProgressMissing, match="topic 'deleted' was deleted"):
        commit(cluster, build_plan(7))
    assert not any(r.allow_auto_topic_creation for r in cluster.requests(K.METADATA))
    assert nothing_is_written(cluster)


@pytest.mark.invariant(37)
def test_a_batch_whose_outcome_is_unknown_is_not_taken_for_aborted_after_another_error(cluster):
    """An abort of this try says nothing of an earlier run's transaction."""
    put_begun(cluster, recorded(build_plan(1, run_id="earlier")))
    cluster.script(K.TXN_OFFSET_COMMIT, refused(E.TRANSACTION_ABORTABLE))
    with pytest.raises(ProgressMissing, match="not known whether batch 1 is in the output"):
        commit(cluster, build_plan(1))
    assert cluster.apis().count(K.INIT_PRODUCER_ID) == 2
    assert nothing_is_written(cluster)


def test_progress_is_located_where_the_newest_lies(cluster):
    put_progress(cluster, 3)
    put_progress(cluster, 5, ("out", 1))
    session = cluster.session()
    assert cluster.run(locate_progress(session, PROGRESS_GROUP, QUERY)) == ("out", 1)
    assert cluster.run(locate_progress(session, PROGRESS_GROUP, "other")) is None


# ------------------------------------------------------------------ sinks that leave batches out


@pytest.mark.parametrize("progress", [2, None])
def test_batches_that_were_never_begun_may_be_left_out_by_a_function(cluster, progress):
    """A sink of `foreach_batch` that is not called for each batch; its progress may expire."""
    put_begun(cluster, recorded(build_plan(1)))
    if progress is not None:
        put_progress(cluster, progress)
    assert not commit(cluster, build_plan(5, leaves_out_batches=True)).skipped
    assert rows(cluster) == EXPECTED["out", 0]


def test_a_batch_behind_left_out_ones_that_failed_is_written_when_it_comes_again(cluster):
    commit(cluster, build_plan(1))
    plan = build_plan(5, leaves_out_batches=True)
    cluster.script(K.PRODUCE, refused(E.MESSAGE_TOO_LARGE))
    with pytest.raises(RecordRefused):
        commit(cluster, plan)
    cluster.script(K.PRODUCE, refused(E.TRANSACTION_ABORTABLE))
    assert commit(cluster, changed(plan, run_id="run-2")).attempts == 2
    assert rows(cluster) == EXPECTED["out", 0] * 2


@pytest.mark.invariant(41)
def test_a_left_out_batch_that_was_begun_and_not_committed_is_refused_with_its_command():
    plan = build_plan(5, leaves_out_batches=True, sink_name="side")
    facts = Evidence(Progress(QUERY, 2, output_digest=plan.committer.output.digest))
    begun = recorded(plan, batch_id=2)
    with pytest.raises(ProgressBehind, match="although writing batch 2 had failed") as caught:
        judge(changed(plan, begun=begun), facts)
    command = f"progress set {BROKERS} --checkpoint {CHECKPOINT} --sink side"
    (line,) = caught.value.commands
    assert line.startswith("Do this if the output has all batches below 5: python -m txnlog_spark ")
    assert line.endswith(f" {command} --to-checkpoint --execute")


def test_a_query_that_is_called_for_each_batch_may_leave_none_out():
    plan = build_plan(5)
    facts = Evidence(Progress(QUERY, 2, output_digest=plan.committer.output.digest))
    with pytest.raises(ProgressBehind, match="written by another sink"):
        judge(changed(plan, begun=recorded(plan, batch_id=1)), facts)


# ------------------------------------------------------------------ batches that no sink saw


LOGGED = 'v1\n{"conf":{"spark.sql.shuffle.partitions":"%d"}}\n{"in":{"0":%d}}'


@pytest.mark.parametrize(
    ("partitions", "end", "noted", "is_done"),
    [(8, 5, True, True), (4, 5, True, False), (8, 6, True, False), (8, 5, False, False)],
)
def test_a_batch_of_sparks_own_that_repartitions_the_state_is_no_gap(
    cluster, partitions, end, noted, is_done
):
    """Such a batch reads no rows, changes the number of partitions, and is in the commit log."""
    put_progress(cluster, 2)
    cluster.files["cp/offsets/1"] = (LOGGED % (4, 5)).encode()
    cluster.files["cp/offsets/2"] = (LOGGED % (partitions, end)).encode()
    if noted:
        cluster.files["cp/commits/2"] = b"v1"
    if is_done:
        assert not commit(cluster, build_plan(3)).skipped
        return
    with pytest.raises(ProgressBehind, match="batches below 2"):
        commit(cluster, build_plan(3))


# ------------------------------------------------------------------ topics of sources


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("others", [{}, {("in", 0): 5}])
def test_offsets_of_a_deleted_source_topic_are_left_out_and_the_batch_is_committed(version, others):
    cluster = CoreBroker(version)
    outcome = commit(cluster, build_plan(source_offsets={DELETED: 9, **others}))
    assert outcome.missing_sources == {DELETED}
    assert {p: cluster.committed_values(*p) for p in EXPECTED} == EXPECTED
    assert cluster.offsets("g") == {p: (end, "") for p, end in others.items()}


@pytest.mark.parametrize(("version", "is_left_out"), [(1, False), (2, True)])
def test_offsets_of_a_source_topic_that_was_created_again_are_left_out(version, is_left_out):
    """The batch has read the topic with the former id; transaction version 1 knows only names."""
    cluster = CoreBroker(version)
    former = SourceNote("c", "g", (("in", "AAAAAAAAQACAAAAAAAAABw"),))
    source = SourceEnd("", {TopicPartition("in", 0): 5}, former)
    outcome = commit(cluster, build_plan(sources=(source,)))
    assert outcome.missing_sources == ({("in", 0)} if is_left_out else frozenset())
    assert (cluster.offsets("g") == {}) == is_left_out
    assert {p: cluster.committed_values(*p) for p in EXPECTED} == EXPECTED


def test_a_source_topic_that_one_broker_does_not_know_yet_is_not_left_out(cluster):
    cluster.script(K.TXN_OFFSET_COMMIT, *[refused(E.UNKNOWN_TOPIC_OR_PARTITION)] * 3)
    outcome = commit(cluster, build_plan())
    assert not outcome.missing_sources
    assert cluster.offsets("g") == {("in", 0): (5, "")}


def test_a_source_topic_that_is_known_after_a_while_is_not_left_out():
    cluster = CoreBroker(2, leaders={("out", 0): 1, ("out", 1): 1})
    original = cluster.perform

    def perform(ask):
        if cluster.now_ms >= 2_000 and ("in", 0) not in cluster.leaders:
            cluster.create_topics(**{"in": 1})
        return original(ask)

    cluster.perform = perform
    outcome = commit(cluster, build_plan())
    assert not outcome.missing_sources
    assert cluster.offsets("g") == {("in", 0): (5, "")}


def test_a_batch_that_is_tried_again_keeps_the_place_of_its_first_try(cluster: CoreBroker) -> None:
    """Its baseline lies there; on a topic that came back, deleting that would uncover it."""
    plan = build_plan(1, group_id=None)
    put_begun(cluster, recorded(build_plan(0, group_id=None), progress_partition=DELETED))

    def come_back(step: str, when: str) -> None:
        if (step, when) == ("produce", "before"):
            cluster.on_reached = lambda _step, _when: None
            cluster.create_topics(deleted=1)
            cluster.script(K.PRODUCE, refused(E.INVALID_TXN_STATE))

    cluster.on_reached = come_back
    assert commit(cluster, plan).attempts == 2
    assert recorded_on(cluster).progress_partition != DELETED
    assert DELETED not in cluster.offsets(PROGRESS_GROUP)
    cluster.delete_topic("deleted")
    assert commit(cluster, changed(plan, run_id="run-2")).skipped
    assert rows(cluster) == [b"a0", b"a1", b"a2"]
