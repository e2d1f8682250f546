"""Answers to EndTxn(commit): the outcome they prove, and the effect on the next transaction."""

from __future__ import annotations

import pytest
from support.core.core_broker import TIMEOUTS_CHECKED_MS
from support.core.scripted_faults import ANSWER_LOST, LOST, refused
from support.query.commit_plans import (
    build_plan,
    check_wire_discipline,
    commit,
    is_committed,
    with_baseline,
)

from txnlog_kafka.errors import AbortableError, CommitStateUnknown, ProducerFenced
from txnlog_kafka.operations.retry import (
    ACTIONS,
    Action,
    EndTxnResult,
    decide,
    decide_all,
    decide_end_commit,
    error_of,
)
from txnlog_kafka.wire.error_codes import RETRIABLE
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K


@pytest.mark.invariant(22)
@pytest.mark.parametrize("code", [c for c in E if c != E.NONE])
def test_once_the_outcome_is_unknown_only_success_is_an_answer(code):
    verdict = decide_end_commit(code, unknown_before=True)
    assert verdict in (EndTxnResult.RETRY, EndTxnResult.RETRY_UNKNOWN, EndTxnResult.UNKNOWN)


@pytest.mark.invariant(22)
@pytest.mark.parametrize("code", list(E))
def test_only_no_error_means_committed(code):
    for before in (False, True):
        committed = decide_end_commit(code, unknown_before=before) is EndTxnResult.COMMITTED
        assert committed == (code == E.NONE)


@pytest.mark.parametrize("code", [-99, 999])
def test_a_code_from_the_future_is_unknown(code):
    verdict = decide_end_commit(code, unknown_before=False)
    assert verdict is EndTxnResult.RETRY_UNKNOWN


@pytest.mark.parametrize(
    "code", [E.PRODUCER_FENCED, E.INVALID_TXN_STATE, E.INVALID_PRODUCER_ID_MAPPING]
)
def test_a_first_definite_answer_rules_the_commit_out(code):
    assert decide_end_commit(code, unknown_before=False) is EndTxnResult.REFUSED


@pytest.mark.parametrize("version", [1, 2])
def test_a_lost_answer_is_asked_for_again_without_abort_or_second_transaction(version):
    """docs/internals/faults.md D17."""
    cluster = with_baseline(version)
    plan = build_plan()
    cluster.script(K.END_TXN, ANSWER_LOST, ANSWER_LOST)
    outcome = commit(cluster, plan)
    assert is_committed(cluster, plan)
    assert [m.committed for m in cluster.requests(K.END_TXN)] == [True] * 3
    assert cluster.apis().count(K.INIT_PRODUCER_ID) == 1
    assert outcome.produced_records == 5


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("first", [LOST, ANSWER_LOST], ids=["lost", "answer"])
def test_fenced_after_an_unknown_outcome_stays_unknown(version, first):
    """The commit may have won before the other driver's InitProducerId came."""
    cluster = with_baseline(version)
    plan = build_plan()
    cluster.script(K.END_TXN, first, refused(E.PRODUCER_FENCED))
    with pytest.raises(
        CommitStateUnknown, match="unknown whether the coordinator carried it out"
    ) as caught:
        commit(cluster, plan)
    assert isinstance(caught.value.__cause__, ProducerFenced)
    assert (caught.value.transactional_id, caught.value.batch_id) == ("t", 0)
    check_wire_discipline(cluster)
    assert is_committed(cluster, plan) == first.applied


@pytest.mark.parametrize("version", [1, 2])
def test_the_coordinator_timing_out_the_transaction_is_fenced_and_redone_by_the_restart(version):
    """docs/internals/faults.md L1: paused longer than transaction.timeout.ms before end_txn."""
    cluster = with_baseline(version)
    plan = build_plan()

    def pause(step, when):
        if (step, when) == ("end_txn", "before"):
            cluster.stand_still(plan.committer.options.transaction_timeout_ms + TIMEOUTS_CHECKED_MS)

    cluster.on_reached = pause
    # Version 2 before KAFKA-20785 answers INVALID_TXN_STATE to a commit that came too late.
    with pytest.raises((ProducerFenced, AbortableError), match=r"transaction\.timeout\.ms"):
        commit(cluster, plan)
    assert not is_committed(cluster, plan)
    cluster.on_reached = lambda _step, _when: None
    assert not commit(cluster, plan).skipped
    assert is_committed(cluster, plan)


EXPIRES_SOON = {
    "transactional.id.expiration.ms": 60_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 10_000,
}


@pytest.mark.parametrize("version", [1, 2])
def test_an_idle_query_whose_id_expired_gets_a_new_producer_id(version):
    """docs/internals/faults.md L4, live driver: transactional.id.expiration.ms has passed."""
    cluster = with_baseline(version, config=EXPIRES_SOON)
    session = cluster.session()
    commit(cluster, build_plan(0), session)
    cluster.now_ms += 80_000
    assert commit(cluster, build_plan(1), session).attempts == 1
    assert len({each.header.producer_id for each in cluster.batches("out", 0)}) == 2


# ------------------------------------------------------------------ the tables


def test_every_table_says_what_success_is():
    for api_key in ACTIONS:
        assert decide(api_key, E.NONE) is Action.DONE


@pytest.mark.parametrize("code", list(E))
def test_an_undeclared_request_follows_kafkas_retriable_codes(code):
    expected = Action.DONE if code == 0 else Action.REFRESH if code in RETRIABLE else Action.FATAL
    assert decide(K.LIST_OFFSETS, code) is expected


def test_the_gravest_code_of_an_answer_decides():
    codes = [E.NONE, E.NOT_COORDINATOR, E.PRODUCER_FENCED, E.CONCURRENT_TRANSACTIONS]
    assert decide_all(K.TXN_OFFSET_COMMIT, codes) == (Action.FENCED, E.PRODUCER_FENCED)
    assert decide_all(K.TXN_OFFSET_COMMIT, []) == (Action.DONE, 0)


@pytest.mark.parametrize("code", [E.MESSAGE_TOO_LARGE, E.INVALID_TRANSACTION_TIMEOUT])
def test_an_error_text_says_what_to_do(code):
    text = str(error_of(Action.FATAL, code, "producing"))
    assert code.name in text
    assert "max" in text
