"""Bugs planted in the commit on purpose: the checks that hold it must notice each of them.

The numbers are those of the planted bugs in `docs/internals/faults.md`.
"""

from __future__ import annotations

import pytest
from support.core.scripted_faults import ANSWER_LOST, LOST, refused
from support.query.commit_plans import (
    build_plan,
    check_wire_discipline,
    commit,
    is_committed,
    restart_until_done,
    with_baseline,
)

from txnlog_kafka.operations import transaction
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_spark.commit import micro_batch
from txnlog_spark.commit.takeover import initialise
from txnlog_spark.errors import CommitStateUnknown, TxnLogError


def check_run(version, *faults):
    """One faulty commit, what it claims, and restarts until the batch is done."""
    cluster = with_baseline(version)
    plan = build_plan()
    for api_key, fault in faults:
        cluster.script(api_key, fault)
    try:
        commit(cluster, plan)
        assert is_committed(cluster, plan), "claimed, but not visible"
    except CommitStateUnknown:
        pass
    except TxnLogError:
        assert not is_committed(cluster, plan), "visible, but reported as failed"
    restart_until_done(cluster, plan)
    assert is_committed(cluster, plan)
    check_wire_discipline(cluster)


def test_without_a_planted_bug_the_checks_pass():
    check_run(1, (K.END_TXN, ANSWER_LOST), (K.PRODUCE, LOST))


@pytest.mark.invariant(58)
def test_aborting_after_end_txn_was_sent_is_noticed(monkeypatch):
    def forgetful(session, attempt, transaction_):
        attempt.commit_sent = False
        try:
            yield from transaction.commit_transaction(session, transaction_)
        finally:
            attempt.commit_sent = False
        raise AssertionError

    monkeypatch.setattr(micro_batch, "_commit", forgetful)
    with pytest.raises(AssertionError, match="abort after"):
        check_run(2, (K.END_TXN, ANSWER_LOST), (K.END_TXN, refused(E.INVALID_TXN_STATE)))


def delayed_end_txn(cluster):
    """Version 1: batch 0's first EndTxn(commit) is delayed into the middle of batch 1."""
    cluster.script(K.END_TXN, LOST)
    commit(cluster, build_plan(0))
    late = next(each for each in cluster.asked if each.api_key == K.END_TXN)

    def arrive(step, _when):
        if step == "produce.first":
            cluster.carry_out(late)

    cluster.on_reached = arrive
    return commit(cluster, build_plan(1, source_digest="more"))


def test_a_delayed_end_txn_is_fenced_by_the_new_epoch():
    """docs/internals/faults.md B3."""
    cluster = with_baseline(1)
    assert delayed_end_txn(cluster).attempts == 1
    assert len(cluster.committed_values("out", 0)) == 6


def test_26_going_on_in_the_epoch_of_an_unknown_outcome_is_noticed(monkeypatch):
    cluster, held = with_baseline(1), []

    def careless(session, plan):
        if not held:
            held.append((yield from initialise(session, plan)))
        return held[0]

    monkeypatch.setattr(micro_batch, "initialise", careless)
    delayed_end_txn(cluster)
    seen = cluster.committed_values("out", 0)
    assert len(seen) == 3, "batch 1 is claimed: its rows were taken for those of batch 0"
