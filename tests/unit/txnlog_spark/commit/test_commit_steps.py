"""The commit operation when nothing goes wrong, and its decisions about progress."""

from __future__ import annotations

import pytest
from support.core.core_broker import CoreBroker
from support.core.scripted_faults import LOST, refused
from support.query.commit_plans import (
    EXPECTED,
    PROGRESS_GROUP,
    QUERY,
    build_plan,
    check_wire_discipline,
    commit,
    is_committed,
    logged,
    nothing_is_written,
    put_begun,
    put_progress,
    record_batch,
    recorded,
    staged,
    with_baseline,
)

from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_spark.commit.progress import fetch_progress
from txnlog_spark.errors import BatchReplanned, FatalError, ProgressBehind, ProgressMissing
from txnlog_testing.failpoints import STEPS

WRITES = {K.PRODUCE, K.ADD_PARTITIONS_TO_TXN, K.ADD_OFFSETS_TO_TXN, K.TXN_OFFSET_COMMIT, K.END_TXN}


def writes(cluster):
    return [k for k in cluster.apis() if k in WRITES]


@pytest.mark.parametrize("version", [1, 2])
def test_a_batch_becomes_visible_with_its_offsets_and_progress(version):
    cluster = CoreBroker(version)
    plan = build_plan()
    outcome = commit(cluster, plan)
    assert is_committed(cluster, plan)
    assert not outcome.skipped
    assert (outcome.produced_records, outcome.produced_partitions) == (5, 2)
    assert outcome.transaction_version == version
    check_wire_discipline(cluster)


AT_ONCE = [K.TXN_OFFSET_COMMIT] * 2 + [K.OFFSET_FETCH] * 2
FOLLOWING = [
    [K.OFFSET_FETCH, K.API_VERSIONS, K.METADATA],
    [K.INIT_PRODUCER_ID],
    [K.OFFSET_FETCH] * 4,
    [*AT_ONCE, K.PRODUCE],
    [K.END_TXN],
]
FOLLOWING_V1 = [
    *FOLLOWING[:3],
    [K.ADD_PARTITIONS_TO_TXN, K.ADD_OFFSETS_TO_TXN, K.ADD_OFFSETS_TO_TXN],
    *FOLLOWING[3:],
]


@pytest.mark.parametrize(("version", "rounds"), [(1, FOLLOWING_V1), (2, FOLLOWING)])
def test_a_following_batch_asks_this_and_no_more_in_so_many_rounds(version, rounds):
    """Judged by progress and group, asked by name and as a whole; both are confirmed."""
    cluster = CoreBroker(version)
    batch_hash = logged(cluster, 0, 'v1\n{}\n{"in":{"0":5}}')
    session = cluster.session()
    commit(cluster, build_plan(0, batch_hash=batch_hash), session)
    cluster.asked.clear()
    one = staged("out", 0, record_batch("a"))
    assert not commit(cluster, build_plan(1, staged=one), session).skipped
    assert cluster.rounds() == rounds
    cluster.asked.clear()
    assert commit(cluster, build_plan(1, staged=one), session).skipped
    assert cluster.rounds() == [[K.OFFSET_FETCH, K.API_VERSIONS]]


def test_requests_have_the_versions_of_the_transaction_version():
    for version, produce, offsets, end in ((1, 11, 4, 4), (2, 12, 5, 5)):
        cluster = with_baseline(version)
        commit(cluster, build_plan())
        found = {a.api_key: a.version for a in cluster.asked}
        assert (found[K.PRODUCE], found[K.TXN_OFFSET_COMMIT], found[K.END_TXN]) == (
            produce, offsets, end,
        )  # fmt: skip
        assert found.get(K.ADD_PARTITIONS_TO_TXN) == (3 if version == 1 else None)


def test_the_transaction_version_is_asked_of_the_coordinator_for_each_batch(cluster):
    """`kafka-features downgrade` while the query runs."""
    session = cluster.session()
    assert commit(cluster, build_plan(0), session).transaction_version == 2
    cluster.restart(transaction_version=0)
    assert commit(cluster, build_plan(1), session).transaction_version == 1
    assert K.ADD_PARTITIONS_TO_TXN in cluster.apis()
    assert cluster.asked[-1].version == 4
    assert len(cluster.committed_values("out", 0)) == 6


def test_a_coordinator_that_does_not_answer_for_its_version_is_looked_for_again(cluster):
    """Another broker may coordinate by now: the dead one was asked until the deadline."""
    session = cluster.session()
    commit(cluster, build_plan(0), session)
    cluster.asked.clear()
    cluster.script(K.API_VERSIONS, LOST)
    assert commit(cluster, build_plan(1), session).transaction_version == 2
    looked_for = [message.coordinator_keys for message in cluster.requests(K.FIND_COORDINATOR)]
    assert [build_plan(1).committer.transactional_id] in looked_for


def test_every_failpoint_is_reached_once_and_in_order():
    cluster = with_baseline(1)
    commit(cluster, build_plan())
    befores = [s for s, when in cluster.reached if when == "before"]
    afters = [s for s, when in cluster.reached if when == "after"]
    inner = {"produce.first", "produce.middle", "produce.last"}
    assert befores == [s for s in STEPS if s not in inner]
    assert sorted(afters) == sorted(STEPS)


def test_stable_progress_is_read_before_anything_is_written_and_after_the_epoch_is_ours():
    cluster = with_baseline()
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
    cluster = CoreBroker(version)
    plan = build_plan()
    commit(cluster, plan)
    cluster.asked.clear()
    outcome = commit(cluster, plan)
    assert outcome.skipped
    assert not writes(cluster)
    assert is_committed(cluster, plan)


@pytest.mark.invariant(18)
@pytest.mark.parametrize("version", [1, 2])
def test_each_batch_is_written_with_an_epoch_that_nobody_had(version):
    """A new epoch protects the batch from requests of earlier transactions that arrive late."""
    cluster = with_baseline(version)
    session = cluster.session()
    for number in range(3):
        commit(cluster, build_plan(number, source_digest=f"{number}"), session)
    appended = [batch.header for batch in cluster.batches("out", 1)]
    epochs = [each.producer_epoch for each in appended]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) == 3
    assert [each.base_sequence for each in appended] == [0, 1] * 3
    assert all(r.producer_id == -1 for r in cluster.requests(K.INIT_PRODUCER_ID))
    check_wire_discipline(cluster)


def test_an_empty_batch_still_advances_the_progress(cluster):
    outcome = commit(cluster, build_plan(staged=(), group_id=None))
    assert (outcome.produced_records, K.PRODUCE in cluster.apis()) == (0, False)
    assert cluster.offsets(PROGRESS_GROUP)[("in", 0)][0] == 1


def test_a_batch_of_one_row_is_one_produce(cluster):
    commit(cluster, build_plan(staged=staged("out", 1, record_batch("only"))))
    assert cluster.apis().count(K.PRODUCE) == 1
    assert cluster.committed_values("out", 1) == [b"only"]


# ------------------------------------------------------------------ records and offsets together


@pytest.mark.invariant(58)
@pytest.mark.parametrize(
    ("api_key", "code"),
    [(K.PRODUCE, E.MESSAGE_TOO_LARGE), (K.TXN_OFFSET_COMMIT, E.GROUP_AUTHORIZATION_FAILED)],
)
def test_when_records_or_offsets_fail_the_answers_of_both_are_there_before_the_abort(api_key, code):
    """Requests that arrive after the abort would begin another transaction."""
    cluster = with_baseline()
    cluster.script(api_key, refused(code))
    handle, unanswered = cluster.handle, []

    def noting(asked):
        if asked.api_key == K.END_TXN:
            unanswered.append(len(cluster.open) + cluster.in_flight(1))
        return handle(asked)

    cluster.handle = noting
    with pytest.raises(FatalError, match=code.name):
        commit(cluster, build_plan())
    assert unanswered == [0]
    assert [*AT_ONCE, K.PRODUCE] in cluster.rounds()
    assert [r.committed for r in cluster.requests(K.END_TXN)] == [False]
    assert not any(cluster.committed_values(*p) for p in EXPECTED)


def test_records_that_are_stopped_leave_the_error_of_the_offsets():
    """The rest of a large batch is not produced, and that it is not whole is no error."""
    cluster = with_baseline()
    cluster.script(K.TXN_OFFSET_COMMIT, refused(E.GROUP_AUTHORIZATION_FAILED))
    pieces = [record_batch(f"{n}" * 50) for n in range(100)]
    plan = build_plan(staged=staged("out", 0, *pieces), produce_request_bytes=100)
    with pytest.raises(FatalError, match="GROUP_AUTHORIZATION_FAILED"):
        commit(cluster, plan)
    assert cluster.apis().count(K.PRODUCE) < 10
    assert [r.committed for r in cluster.requests(K.END_TXN)] == [False]


@pytest.mark.parametrize(
    ("code", "waits"),
    [(E.CONCURRENT_TRANSACTIONS, [5, 10, 20]), (E.COORDINATOR_LOAD_IN_PROGRESS, [20, 40, 80])],
)
def test_a_transaction_that_takes_another_addition_is_asked_again_soon(code, waits):
    cluster = with_baseline()
    cluster.script(K.TXN_OFFSET_COMMIT, *[refused(code), None] + [refused(code)] * 2)
    commit(cluster, build_plan(staged=()))
    assert cluster.slept_ms == waits
    again = [[K.TXN_OFFSET_COMMIT, K.OFFSET_FETCH]] * 3
    assert cluster.rounds()[-5:] == [AT_ONCE, *again, [K.END_TXN]]


# ------------------------------------------------------------------ progress


def with_progress(next_batch_id: int, digest: str = "digest-5", **offsets: int):
    cluster = CoreBroker(2)
    put_progress(cluster, next_batch_id, ("out", 1), source_digest=digest)
    if offsets:
        cluster.commit_offsets("g", {("in", 0): (offsets["source"], "")})
    return cluster


@pytest.mark.invariant(41)
def test_missing_progress_where_it_must_exist_stops_before_any_write(cluster):
    put_begun(cluster, recorded(build_plan(7)))
    with pytest.raises(ProgressMissing, match=r"offsets\.retention\.minutes"):
        commit(cluster, build_plan(7))
    assert nothing_is_written(cluster)


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
    assert commit(with_progress(12, source=5), build_plan(7)).skipped


@pytest.mark.parametrize("changes", [{}, {"group_id": None}])
def test_an_older_batch_that_reaches_beyond_the_group_is_refused(changes):
    with pytest.raises(BatchReplanned):
        commit(with_progress(12, source=4), build_plan(7, **changes))


def test_the_newest_progress_counts_wherever_it_was_committed():
    cluster = with_progress(8)
    put_progress(cluster, 3, ("out", 0))
    assert commit(cluster, build_plan(7)).skipped


@pytest.mark.parametrize(
    "metadata", ["", "not json", "[]", '{"v":2,"q":"query-1"}', '{"v":1,"q":7}']
)
def test_foreign_metadata_is_no_progress(cluster, metadata):
    cluster.commit_offsets(PROGRESS_GROUP, {("out", 0): (8, metadata)})
    assert cluster.run(fetch_progress(cluster.session(), PROGRESS_GROUP, QUERY)) is None


def test_a_broker_that_cannot_tell_stable_offsets_is_refused():
    cluster = CoreBroker(1, versions_max={K.OFFSET_FETCH: 6})
    with pytest.raises(FatalError, match=r"Kafka 2\.5"):
        commit(cluster, build_plan())
    assert not writes(cluster)


@pytest.mark.parametrize("version", [7, 8, 9])
def test_progress_is_read_at_every_version_that_can_be_stable(version):
    cluster = CoreBroker(1, versions_max={K.OFFSET_FETCH: version})
    commit(cluster, build_plan())
    assert commit(cluster, build_plan()).skipped


def test_a_broker_without_finalized_features_gets_version_1():
    cluster = CoreBroker(1, versions_max={K.API_VERSIONS: 2})
    assert commit(cluster, build_plan()).transaction_version == 1
