"""Every request of the commit meets every kind of fault: nothing is ever torn, doubled or claimed.

Each case runs one commit with a fault, checks what is visible against what was claimed, and then
starts drivers anew until the batch is done: it must be there exactly once.
"""

from __future__ import annotations

import pytest
from support.core.core_broker import CoreBroker
from support.core.scripted_faults import (
    ANSWER_LOST,
    LOST,
    MALFORMED,
    NOT_SENT,
    applied_but,
    refused,
)
from support.query.commit_plans import (
    build_plan,
    check_wire_discipline,
    commit,
    is_committed,
    restart_until_done,
    with_baseline,
)

from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_spark.errors import (
    AbortableError,
    CommitStateUnknown,
    DeadlineExceeded,
    FatalError,
    ProducerFenced,
    RecordRefused,
    RemoteProtocolError,
    TxnLogError,
)
from txnlog_testing.failpoints import STEPS, FailpointRaised

REQUESTS_V1 = (
    K.METADATA,
    K.FIND_COORDINATOR,
    K.INIT_PRODUCER_ID,
    K.OFFSET_FETCH,
    K.API_VERSIONS,
    K.ADD_PARTITIONS_TO_TXN,
    K.PRODUCE,
    K.ADD_OFFSETS_TO_TXN,
    K.TXN_OFFSET_COMMIT,
    K.END_TXN,
)
REQUESTS_V2 = tuple(
    k for k in REQUESTS_V1 if k not in (K.ADD_PARTITIONS_TO_TXN, K.ADD_OFFSETS_TO_TXN)
)
QUERIES = pytest.mark.parametrize("cluster_of", [CoreBroker, with_baseline], ids=["new", "old"])
"""A query's first batch, and one whose baseline is there."""
CASES = [(1, k) for k in REQUESTS_V1] + [(2, k) for k in REQUESTS_V2]


def run(cluster, plan):
    """The outcome or the error, with what must hold in either case."""
    try:
        result = commit(cluster, plan)
    except TxnLogError as error:
        result = error
    check_wire_discipline(cluster)
    if not isinstance(result, TxnLogError):
        assert is_committed(cluster, plan), "claimed, but not visible"
    elif not isinstance(result, CommitStateUnknown):
        assert not is_committed(cluster, plan), "visible, but reported as failed"
    return result


def check_redo(cluster, plan):
    restart_until_done(cluster, plan)
    assert is_committed(cluster, plan)
    check_wire_discipline(cluster)


@QUERIES
@pytest.mark.parametrize("fault", [LOST, ANSWER_LOST, NOT_SENT], ids=["lost", "answer", "not_sent"])
@pytest.mark.parametrize("occurrence", [0, 1, 2])
@pytest.mark.parametrize(("version", "api_key"), CASES)
def test_one_missing_answer_is_survived(cluster_of, version, api_key, occurrence, fault):
    cluster = cluster_of(version)
    plan = build_plan()
    cluster.script(api_key, *[None] * occurrence, fault)
    result = run(cluster, plan)
    assert not isinstance(result, TxnLogError)
    check_redo(cluster, plan)


@QUERIES
@pytest.mark.parametrize("fault", [LOST, ANSWER_LOST, NOT_SENT], ids=["lost", "answer", "not_sent"])
@pytest.mark.parametrize(("version", "api_key"), CASES)
def test_no_answer_at_all_ends_in_time_and_claims_nothing(cluster_of, version, api_key, fault):
    cluster = cluster_of(version)
    plan = build_plan()
    cluster.always[api_key] = fault
    result = run(cluster, plan)
    if api_key == K.END_TXN and fault.sent:
        assert isinstance(result, CommitStateUnknown)
    else:
        assert isinstance(result, DeadlineExceeded)
    assert cluster.now_ms < 600_000
    check_redo(cluster, plan)


@QUERIES
@pytest.mark.parametrize(("version", "api_key"), CASES)
def test_an_answer_that_is_none_is_refused_at_once(cluster_of, version, api_key):
    cluster = cluster_of(version)
    plan = build_plan()
    cluster.script(api_key, MALFORMED)
    result = run(cluster, plan)
    expected = CommitStateUnknown if api_key == K.END_TXN else RemoteProtocolError
    assert isinstance(result, expected)
    check_redo(cluster, plan)


RETRIED = {
    K.FIND_COORDINATOR: [E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS],
    K.INIT_PRODUCER_ID: [E.CONCURRENT_TRANSACTIONS, E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE],
    K.OFFSET_FETCH: [E.UNSTABLE_OFFSET_COMMIT, E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS],
    K.ADD_PARTITIONS_TO_TXN: [E.CONCURRENT_TRANSACTIONS, E.NOT_COORDINATOR],
    K.ADD_OFFSETS_TO_TXN: [E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_LOAD_IN_PROGRESS],
    K.TXN_OFFSET_COMMIT: [E.NOT_COORDINATOR, E.CONCURRENT_TRANSACTIONS, E.REQUEST_TIMED_OUT],
    K.PRODUCE: [
        E.NOT_LEADER_OR_FOLLOWER,
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.NOT_ENOUGH_REPLICAS,
        E.CONCURRENT_TRANSACTIONS,
        E.REQUEST_TIMED_OUT,
        E.KAFKA_STORAGE_ERROR,
    ],
    K.END_TXN: [
        E.CONCURRENT_TRANSACTIONS,
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.NOT_COORDINATOR,
        E.COORDINATOR_NOT_AVAILABLE,
        E.REQUEST_TIMED_OUT,
        E.UNKNOWN_SERVER_ERROR,
    ],
}
RETRIED_CASES = [(v, k, c) for v, k in CASES for c in RETRIED.get(k, ())]


@pytest.mark.parametrize(("version", "api_key", "code"), RETRIED_CASES)
def test_a_passing_error_is_waited_out(version, api_key, code):
    cluster = with_baseline(version)
    plan = build_plan()
    cluster.script(api_key, *[refused(code)] * 3)
    result = run(cluster, plan)
    assert not isinstance(result, TxnLogError)
    assert cluster.slept_ms
    check_redo(cluster, plan)


APPENDED_ALL_THE_SAME = [
    (K.PRODUCE, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
    (K.PRODUCE, E.NOT_LEADER_OR_FOLLOWER),
    (K.PRODUCE, E.DUPLICATE_SEQUENCE_NUMBER),
    (K.TXN_OFFSET_COMMIT, E.REQUEST_TIMED_OUT),
    (K.END_TXN, E.COORDINATOR_NOT_AVAILABLE),
    (K.END_TXN, E.NOT_COORDINATOR),
    (K.END_TXN, E.UNKNOWN_SERVER_ERROR),
]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("api_key", "code"), APPENDED_ALL_THE_SAME)
def test_an_error_after_the_append_doubles_nothing(version, api_key, code):
    cluster = with_baseline(version)
    plan = build_plan()
    cluster.script(api_key, applied_but(code), applied_but(code))
    assert not isinstance(run(cluster, plan), TxnLogError)
    check_redo(cluster, plan)


ABORTED_AND_DONE_AGAIN = [
    (K.PRODUCE, E.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (K.PRODUCE, E.UNKNOWN_PRODUCER_ID),
    (K.PRODUCE, E.INVALID_TXN_STATE),
    (K.PRODUCE, E.INVALID_PRODUCER_EPOCH),
    (K.PRODUCE, E.TRANSACTION_ABORTABLE),
    (K.PRODUCE, E.UNKNOWN_SERVER_ERROR),
    (K.TXN_OFFSET_COMMIT, E.TRANSACTION_ABORTABLE),
    (K.TXN_OFFSET_COMMIT, E.INVALID_PRODUCER_ID_MAPPING),
    (K.ADD_PARTITIONS_TO_TXN, E.TRANSACTION_ABORTABLE),
    (K.ADD_OFFSETS_TO_TXN, E.INVALID_TXN_STATE),
]


@pytest.mark.parametrize(
    ("version", "api_key", "code"),
    [(v, k, c) for k, c in ABORTED_AND_DONE_AGAIN for v, asked in CASES if asked == k],
)
def test_an_abortable_transaction_is_aborted_and_done_again_with_a_new_epoch(
    version, api_key, code
):
    cluster = with_baseline(version)
    plan = build_plan()
    cluster.script(api_key, refused(code))
    outcome = run(cluster, plan)
    assert outcome.attempts == 2
    ends = [(m.committed, m.producer_epoch) for m in cluster.requests(K.END_TXN)]
    assert [c for c, _ in ends] == [False, True]
    assert ends[1][1] > ends[0][1]
    check_redo(cluster, plan)


@pytest.mark.parametrize("version", [1, 2])
def test_an_error_that_stays_abortable_ends_after_the_last_attempt(version):
    cluster = with_baseline(version)
    plan = build_plan(attempts_max=3)
    cluster.always[K.PRODUCE] = refused(E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert isinstance(run(cluster, plan), AbortableError)
    assert [m.committed for m in cluster.requests(K.END_TXN)] == [False] * 3
    check_redo(cluster, plan)


@pytest.mark.parametrize("version", [1, 2])
def test_without_an_acknowledged_abort_nothing_is_tried_again(version):
    cluster = with_baseline(version)
    plan = build_plan()
    cluster.script(K.PRODUCE, refused(E.OUT_OF_ORDER_SEQUENCE_NUMBER))
    cluster.always[K.END_TXN] = LOST
    assert isinstance(run(cluster, plan), AbortableError)
    assert cluster.apis().count(K.INIT_PRODUCER_ID) == 1
    check_redo(cluster, plan)


FINAL = [
    (K.INIT_PRODUCER_ID, E.PRODUCER_FENCED, ProducerFenced),
    (K.INIT_PRODUCER_ID, E.INVALID_PRODUCER_EPOCH, ProducerFenced),
    (K.INIT_PRODUCER_ID, E.INVALID_TRANSACTION_TIMEOUT, FatalError),
    (K.INIT_PRODUCER_ID, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, FatalError),
    (K.OFFSET_FETCH, E.GROUP_AUTHORIZATION_FAILED, FatalError),
    (K.ADD_PARTITIONS_TO_TXN, E.PRODUCER_FENCED, ProducerFenced),
    (K.ADD_PARTITIONS_TO_TXN, E.INVALID_PRODUCER_EPOCH, ProducerFenced),
    (K.ADD_PARTITIONS_TO_TXN, E.TOPIC_AUTHORIZATION_FAILED, FatalError),
    (K.PRODUCE, E.PRODUCER_FENCED, ProducerFenced),
    (K.PRODUCE, E.MESSAGE_TOO_LARGE, RecordRefused),
    (K.PRODUCE, E.INVALID_RECORD, RecordRefused),
    (K.PRODUCE, E.TOPIC_AUTHORIZATION_FAILED, FatalError),
    (K.ADD_OFFSETS_TO_TXN, E.GROUP_AUTHORIZATION_FAILED, FatalError),
    (K.TXN_OFFSET_COMMIT, E.OFFSET_METADATA_TOO_LARGE, FatalError),
    (K.TXN_OFFSET_COMMIT, E.PRODUCER_FENCED, ProducerFenced),
    (K.END_TXN, E.PRODUCER_FENCED, ProducerFenced),
    (K.END_TXN, E.INVALID_PRODUCER_EPOCH, ProducerFenced),
    (K.END_TXN, E.INVALID_TXN_STATE, AbortableError),
    (K.END_TXN, E.INVALID_PRODUCER_ID_MAPPING, AbortableError),
    (K.END_TXN, E.TRANSACTION_ABORTABLE, AbortableError),
]


@pytest.mark.parametrize(
    ("version", "api_key", "code", "kind"),
    [(v, k, c, e) for k, c, e in FINAL for v, asked in CASES if asked == k],
)
def test_a_final_refusal_stops_at_once(version, api_key, code, kind):
    cluster = with_baseline(version)
    plan = build_plan()
    cluster.script(api_key, refused(code))
    result = run(cluster, plan)
    assert isinstance(result, kind)
    assert result.code == code
    assert cluster.apis().count(api_key) <= 2
    check_redo(cluster, plan)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("version", [1, 2])
def test_an_error_raised_at_any_step_aborts_before_end_txn_and_never_after(version, step):
    def fail(at, phase):
        if (at, phase) == (step, "after"):
            raise FailpointRaised(step)

    cluster = with_baseline(version)
    plan = build_plan()
    cluster.on_reached = fail
    with pytest.raises(FailpointRaised):
        commit(cluster, plan)
    cluster.on_reached = lambda _step, _when: None
    ends = [m.committed for m in cluster.requests(K.END_TXN)]
    assert ends == ([True] if step == "end_txn" else [False] * len(ends))
    assert is_committed(cluster, plan) == (step == "end_txn")
    check_redo(cluster, plan)
