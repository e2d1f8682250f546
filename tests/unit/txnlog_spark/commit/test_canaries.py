"""Bugs planted in the commit on purpose: the commit's checks must notice each of them.

The numbers are the numbers of the planted bugs in `docs/internals/faults.md`.
"""

from __future__ import annotations

import pytest
from support.core.batch_layout import BASE_TIMESTAMP_AT
from support.core.scripted_faults import ANSWER_LOST, LOST, refused
from support.query.commit_plans import (
    build_plan,
    check_wire_discipline,
    commit,
    is_committed,
    restart_until_done,
    with_baseline,
)

from txnlog_kafka.operations import batches, retry, transaction
from txnlog_kafka.operations.retry import EndTxnResult
from txnlog_kafka.wire.error_codes import ErrorCode as E
from txnlog_kafka.wire.messages import ApiKey as K
from txnlog_kafka.wire.records import refresh_crc
from txnlog_spark.commit import attempt, micro_batch
from txnlog_spark.commit.attempt import initialise
from txnlog_spark.commit.judgement import Decision
from txnlog_spark.errors import CommitStateUnknown, TxnLogError


def check_run(version, *faults):
    """Commit with faults, check the claimed outcome, and restart until the batch is committed."""
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


@pytest.mark.invariant(38)
def test_22_skipping_from_memory_only_is_noticed(monkeypatch):
    def forgetful(*_asked):
        yield from ()

    monkeypatch.setattr(micro_batch, "visible_progress", forgetful)
    monkeypatch.setattr(micro_batch, "judge_for_certain", done)
    monkeypatch.setattr(micro_batch, "confirm", forgetful)
    with pytest.raises(AssertionError, match="doubled"):
        check_run(2)


def done(*_asked):
    """A judgement that asks for nothing."""
    yield from ()
    return Decision.DO


@pytest.mark.invariant(40)
def test_23_taking_fenced_for_success_is_noticed(monkeypatch):
    def careless(code, *, unknown_before):
        if code == E.PRODUCER_FENCED:
            return EndTxnResult.COMMITTED
        return retry.decide_end_commit(code, unknown_before=unknown_before)

    monkeypatch.setattr(transaction, "decide_end_commit", careless)
    with pytest.raises(AssertionError, match="claimed, but not visible"):
        check_run(2, (K.END_TXN, refused(E.PRODUCER_FENCED)))


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


@pytest.mark.invariant(36, 37)
def test_25_progress_outside_the_transaction_is_noticed(monkeypatch):
    def without_progress(session, transaction, groups, *, may_be_gone, **settings):
        groups = {group: groups[group] for group in groups if group == may_be_gone}
        return (
            yield from original(session, transaction, groups, may_be_gone=may_be_gone, **settings)
        )

    original = attempt.commit_all_offsets
    monkeypatch.setattr(attempt, "commit_all_offsets", without_progress)
    with pytest.raises(AssertionError, match="progress and records must agree"):
        check_run(2)


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


@pytest.mark.invariant(18)
def test_28_resetting_sequences_is_noticed(monkeypatch):
    def resetting(self, piece, header):
        self._transaction.sequences.clear()
        return original(self, piece, header)

    original = batches.PartitionQueue._stamp_batch
    monkeypatch.setattr(batches.PartitionQueue, "_stamp_batch", resetting)
    with pytest.raises((AssertionError, TxnLogError)):
        check_run(2)


@pytest.mark.invariant(18)
def test_29_building_a_retried_batch_again_is_noticed(monkeypatch):
    def rebuilding(self, failed):
        for batch in failed:
            batch.data[BASE_TIMESTAMP_AT + 7] ^= 1
            refresh_crc(batch.data, 0, len(batch.data))
        original(self, failed)

    original = batches.PartitionQueue.put_back
    monkeypatch.setattr(batches.PartitionQueue, "put_back", rebuilding)
    with pytest.raises(AssertionError, match="other bytes"):
        check_run(2, (K.PRODUCE, LOST))
