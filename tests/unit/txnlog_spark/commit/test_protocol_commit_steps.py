"""The commit operation when nothing goes wrong, and its decisions about progress."""

from __future__ import annotations

import dataclasses

import pytest
from support.commit_plans import (
    EXPECTED,
    PROGRESS_GROUP,
    QUERY,
    build_plan,
    check_wire_discipline,
    is_committed,
    nothing_is_written,
    record_batch,
    spent,
    staged,
)
from support.scripted_broker import ScriptedCluster

from txnlog_spark.commit.micro_batch import STEPS, commit_micro_batch
from txnlog_spark.commit.progress import fetch_progress
from txnlog_spark.errors import (
    BatchReplanned,
    FatalError,
    ProducerFenced,
    ProgressBehind,
    ProgressMissing,
)
from txnlog_spark.protocol.transaction import init_producer_id
from txnlog_spark.wire.invariants import InvariantViolation
from txnlog_spark.wire.messages import ApiKey as K

WRITES = {
    K.PRODUCE,
    K.ADD_PARTITIONS_TO_TXN,
    K.ADD_OFFSETS_TO_TXN,
    K.TXN_OFFSET_COMMIT,
    K.END_TXN,
}


def commit(cluster, plan, identity=None):
    return cluster.run(commit_micro_batch(cluster.session(), identity, plan))


def writes(cluster):
    return [k for k in cluster.apis() if k in WRITES]


@pytest.mark.parametrize("version", [1, 2])
def test_a_batch_becomes_visible_with_its_offsets_and_progress(version):
    cluster = ScriptedCluster(version)
    plan = build_plan()
    outcome = commit(cluster, plan)
    assert is_committed(cluster, plan)
    assert not outcome.skipped
    assert (outcome.produced_records, outcome.produced_partitions) == (5, 2)
    assert outcome.transaction_version == version
    assert outcome.identity.initialised
    check_wire_discipline(cluster)


def test_version_1_adds_partitions_and_groups_by_requests_of_their_own():
    cluster = ScriptedCluster(1)
    commit(cluster, build_plan())
    assert writes(cluster) == [
        K.ADD_PARTITIONS_TO_TXN,
        K.PRODUCE,
        K.PRODUCE,
        K.ADD_OFFSETS_TO_TXN,
        K.ADD_OFFSETS_TO_TXN,
        K.TXN_OFFSET_COMMIT,
        K.TXN_OFFSET_COMMIT,
        K.END_TXN,
    ]
    versions = {a.api_key: a.version for a in cluster.asked}
    assert versions[K.PRODUCE] == 11
    assert versions[K.ADD_PARTITIONS_TO_TXN] == 3
    assert versions[K.TXN_OFFSET_COMMIT] == 4
    assert versions[K.END_TXN] == 4


def test_version_2_adds_implicitly():
    cluster = ScriptedCluster(2)
    commit(cluster, build_plan())
    assert writes(cluster) == [
        K.PRODUCE,
        K.PRODUCE,
        K.TXN_OFFSET_COMMIT,
        K.TXN_OFFSET_COMMIT,
        K.END_TXN,
    ]
    versions = {a.api_key: a.version for a in cluster.asked}
    assert (versions[K.PRODUCE], versions[K.TXN_OFFSET_COMMIT], versions[K.END_TXN]) == (12, 5, 5)


def test_every_failpoint_is_reached_once_and_in_order():
    cluster = ScriptedCluster(1)
    commit(cluster, build_plan())
    befores = [s for s, when in cluster.reached if when == "before"]
    afters = [s for s, when in cluster.reached if when == "after"]
    inner = {"produce.first", "produce.middle", "produce.last"}
    assert befores == [s for s in STEPS if s not in inner]
    assert set(afters) == set(STEPS)
    assert len(afters) == len(STEPS)


def test_stable_progress_is_read_before_anything_is_written_and_after_the_epoch_is_ours():
    cluster = ScriptedCluster(2)
    commit(cluster, build_plan())
    stable = [
        i
        for i, asked in enumerate(cluster.asked)
        if asked.api_key == K.OFFSET_FETCH and asked.message.require_stable
    ]
    apis = cluster.apis()
    assert apis.index(K.INIT_PRODUCER_ID) < min(stable) <= max(stable) < apis.index(K.PRODUCE)


@pytest.mark.invariant(38)
@pytest.mark.parametrize("version", [1, 2])
def test_a_committed_batch_that_comes_again_sends_no_produce(version):
    cluster = ScriptedCluster(version)
    plan = build_plan()
    commit(cluster, plan)
    cluster.asked.clear()
    outcome = commit(cluster, plan)
    assert outcome.skipped
    assert not set(writes(cluster))
    assert is_committed(cluster, plan)


@pytest.mark.parametrize("version", [1, 2])
def test_the_next_batch_goes_on_with_the_identity_and_no_new_epoch_request(version):
    cluster = ScriptedCluster(version)
    first = commit(cluster, build_plan(0))
    cluster.asked.clear()
    second = commit(cluster, build_plan(1, source_digest="more"), first.identity)
    assert K.INIT_PRODUCER_ID not in cluster.apis()
    assert second.progress.next_batch_id == 2
    assert cluster.state.committed_values(("out", 1)) == [b"b0", b"b1", b"b0", b"b1"]
    expected_epoch = 0 if version == 1 else 2
    assert second.identity.producer_epoch == expected_epoch


def test_version_1_sequences_go_on_within_an_epoch():
    cluster = ScriptedCluster(1)
    first = commit(cluster, build_plan(0))
    assert first.identity.sequences == {("out", 0): 3, ("out", 1): 2}
    second = commit(cluster, build_plan(1), first.identity)
    assert second.identity.sequences == {("out", 0): 6, ("out", 1): 4}


def test_a_spent_identity_is_renewed_with_its_epoch_and_starts_at_sequence_0():
    cluster = ScriptedCluster(1)
    first = commit(cluster, build_plan(0))
    second = commit(cluster, build_plan(1), spent(first.identity))
    asked = cluster.requests(K.INIT_PRODUCER_ID)[-2:]
    assert [each.producer_id for each in asked] == [first.identity.producer_id] * 2
    assert [each.producer_epoch for each in asked] == [0, 1]
    assert second.identity.producer_epoch == 2
    assert second.identity.sequences == {("out", 0): 3, ("out", 1): 2}


@pytest.mark.invariant(18)
@pytest.mark.parametrize("version", [1, 2])
def test_a_worker_whose_epoch_another_one_has_raised_writes_with_one_that_nobody_had(version):
    """InitProducerId with the epoch before the present one is answered with the present one."""
    cluster = ScriptedCluster(version)
    mine = commit(cluster, build_plan(0)).identity
    raised = cluster.run(init_producer_id(cluster.session(), "t", 60_000, current=mine))
    commit(cluster, build_plan(1), raised)
    if version == 1:
        commit(cluster, build_plan(2), spent(mine))
        assert len(cluster.state.committed_values(("out", 0))) == 9
    else:  # there an epoch is over with its transaction
        with pytest.raises(ProducerFenced):
            commit(cluster, build_plan(2), spent(mine))


def stands_still(operation, cluster, meanwhile):
    """The operation; after its next InitProducerId something else happens first."""
    before, stood_still = len(cluster.requests(K.INIT_PRODUCER_ID)), False
    ask = next(operation)
    while True:
        outcome = yield ask
        if not stood_still and len(cluster.requests(K.INIT_PRODUCER_ID)) > before:
            stood_still = True
            meanwhile()
        try:
            ask = operation.send(outcome)
        except StopIteration as stop:
            return stop.value


@pytest.mark.invariant(18)
def test_who_finds_its_batch_done_by_another_worker_asks_for_an_epoch_again():
    """Of two workers of a run that ask InitProducerId in turn both get the same epoch."""
    cluster = ScriptedCluster(1)
    mine = spent(commit(cluster, build_plan(0)).identity)
    others = []

    def another_worker():
        others.append(commit(cluster, build_plan(1), mine))

    first = commit_micro_batch(cluster.session(), mine, build_plan(1))
    done = cluster.run(stands_still(first, cluster, another_worker))
    assert done.skipped
    assert done.identity.producer_epoch == others[0].identity.producer_epoch
    commit(cluster, build_plan(2), done.identity)
    assert len(cluster.state.committed_values(("out", 0))) == 9


def test_a_resumed_identity_is_fenced_when_another_driver_took_over():
    cluster = ScriptedCluster(2)
    first = commit(cluster, build_plan(0))
    commit(cluster, build_plan(1))
    with pytest.raises(ProducerFenced, match="another driver"):
        commit(cluster, build_plan(2), dataclasses.replace(first.identity, initialised=False))
    assert cluster.state.transactions["t"].state != "Ongoing"


def test_a_cached_identity_is_fenced_at_its_next_transactional_request():
    cluster = ScriptedCluster(2)
    first = commit(cluster, build_plan(0))
    commit(cluster, build_plan(1))
    with pytest.raises(ProducerFenced):
        commit(cluster, build_plan(2), first.identity)
    assert len(cluster.state.committed_values(("out", 0))) == 6


def test_an_empty_batch_still_advances_the_progress():
    cluster = ScriptedCluster(2)
    outcome = commit(cluster, build_plan(staged=(), group_id=None))
    assert (outcome.produced_records, K.PRODUCE in cluster.apis()) == (0, False)
    assert cluster.state.offsets[PROGRESS_GROUP][("out", 0)][0] == 1


def test_a_batch_of_one_row_is_one_produce():
    cluster = ScriptedCluster(2)
    commit(cluster, build_plan(staged=(staged("out", 1, record_batch("only")),)))
    assert cluster.apis().count(K.PRODUCE) == 1
    assert cluster.state.committed_values(("out", 1)) == [b"only"]


# ------------------------------------------------------------------ progress


def with_progress(next_batch_id: int, digest: str = "digest-5", **offsets: int):
    cluster = ScriptedCluster(2)
    metadata = f'{{"v":1,"q":"{QUERY}","e":"{digest}"}}'
    cluster.state.offsets[PROGRESS_GROUP][("out", 1)] = (next_batch_id, metadata)
    if offsets:
        cluster.state.offsets["g"][("in", 0)] = (offsets["source"], "")
    return cluster


@pytest.mark.invariant(41)
def test_missing_progress_where_it_must_exist_stops_before_any_write():
    cluster = ScriptedCluster(2)
    with pytest.raises(ProgressMissing, match=r"offsets\.retention\.minutes"):
        commit(cluster, build_plan(7))
    assert nothing_is_written(cluster)


def test_progress_of_another_query_is_none_of_ours():
    cluster = with_progress(7)
    with pytest.raises(ProgressMissing):
        commit(cluster, build_plan(7, query_id="other"))


@pytest.mark.invariant(41)
def test_progress_behind_the_checkpoint_stops_before_any_write():
    cluster = with_progress(5)
    with pytest.raises(ProgressBehind, match="batches below 5"):
        commit(cluster, build_plan(7))
    assert nothing_is_written(cluster)


def test_a_committed_batch_with_other_source_offsets_is_refused():
    cluster = with_progress(8, digest="narrower")
    with pytest.raises(BatchReplanned, match="offsets log was lost"):
        commit(cluster, build_plan(7))
    assert not writes(cluster)


def test_an_older_batch_is_skipped_when_the_group_is_past_all_its_offsets():
    plan = build_plan(7)
    assert commit(with_progress(12, source=5), plan).skipped


@pytest.mark.parametrize("changes", [{}, {"group_id": None}])
def test_an_older_batch_that_reaches_beyond_the_group_is_refused(changes):
    with pytest.raises(BatchReplanned):
        commit(with_progress(12, source=4), build_plan(7, **changes))


def test_the_newest_progress_counts_wherever_it_was_committed():
    cluster = with_progress(8)
    old = f'{{"v":1,"q":"{QUERY}","e":""}}'
    cluster.state.offsets[PROGRESS_GROUP][("out", 0)] = (3, old)
    assert commit(cluster, build_plan(7)).skipped


@pytest.mark.parametrize(
    "metadata", ["", "not json", "[]", '{"v":2,"q":"query-1"}', '{"v":1,"q":7}']
)
def test_foreign_metadata_is_no_progress(metadata):
    cluster = ScriptedCluster(2)
    cluster.state.offsets[PROGRESS_GROUP][("out", 0)] = (8, metadata)
    assert cluster.run(fetch_progress(cluster.session(), PROGRESS_GROUP, QUERY)) is None


def test_a_broker_that_cannot_tell_stable_offsets_is_refused():
    cluster = ScriptedCluster(1, versions_max={K.OFFSET_FETCH: 6})
    with pytest.raises(FatalError, match=r"Kafka 2\.5"):
        commit(cluster, build_plan())
    assert not writes(cluster)


@pytest.mark.parametrize("version", [7, 8, 9])
def test_progress_is_read_at_every_version_that_can_be_stable(version):
    cluster = ScriptedCluster(1, versions_max={K.OFFSET_FETCH: version})
    commit(cluster, build_plan())
    assert commit(cluster, build_plan()).skipped


def test_a_broker_without_finalized_features_gets_version_1():
    cluster = ScriptedCluster(1, versions_max={K.API_VERSIONS: 2})
    assert commit(cluster, build_plan()).transaction_version == 1


def test_an_identity_of_another_transactional_id_is_our_own_bug():
    cluster = ScriptedCluster(2)
    first = commit(cluster, build_plan(0))
    with pytest.raises(InvariantViolation):
        commit(cluster, build_plan(1, transactional_id="u"), first.identity)


def test_the_fixture_expects_what_the_plan_stages():
    assert sum(map(len, EXPECTED.values())) == 5
