"""The table of transaction states, and the guards on both sides of a change."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from support.core.coordinators import build_metadata

from broker_sim.core.transaction.metadata import (
    EPOCH_LAST,
    TransactionEntry,
    plan_add_partitions,
    plan_complete,
    plan_dead,
    plan_end,
    plan_fencing_abort,
    plan_producer_epoch_bump,
)
from broker_sim.core.transaction.states import TransactionState
from txnlog_kafka.wire.invariants import InvariantViolation
from txnlog_kafka.wire.records import PRODUCER_EPOCH_MAX

S = TransactionState
LEGAL = {
    # (from, to), written out from Kafka's table
    (S.EMPTY, S.EMPTY), (S.COMPLETE_COMMIT, S.EMPTY), (S.COMPLETE_ABORT, S.EMPTY),
    (S.ONGOING, S.ONGOING), (S.EMPTY, S.ONGOING),
    (S.COMPLETE_COMMIT, S.ONGOING), (S.COMPLETE_ABORT, S.ONGOING),
    (S.ONGOING, S.PREPARE_COMMIT),
    (S.ONGOING, S.PREPARE_ABORT), (S.PREPARE_EPOCH_FENCE, S.PREPARE_ABORT),
    (S.EMPTY, S.PREPARE_ABORT), (S.COMPLETE_COMMIT, S.PREPARE_ABORT),
    (S.COMPLETE_ABORT, S.PREPARE_ABORT),
    (S.PREPARE_COMMIT, S.COMPLETE_COMMIT),
    (S.PREPARE_ABORT, S.COMPLETE_ABORT),
    (S.EMPTY, S.DEAD), (S.COMPLETE_COMMIT, S.DEAD), (S.COMPLETE_ABORT, S.DEAD),
    (S.ONGOING, S.PREPARE_EPOCH_FENCE),
}  # fmt: skip


def test_the_numbers_on_disk_are_kafkas() -> None:
    names = (
        "EMPTY ONGOING PREPARE_COMMIT PREPARE_ABORT COMPLETE_COMMIT COMPLETE_ABORT DEAD "
        "PREPARE_EPOCH_FENCE"
    )
    assert {state.name: state.value for state in S} == {n: i for i, n in enumerate(names.split())}


@pytest.mark.invariant(28)
@pytest.mark.parametrize(("before", "after"), list(itertools.product(S, S)))
def test_each_of_the_64_pairs_is_prepared_or_refused_as_kafka_does(before, after) -> None:
    entry = TransactionEntry(build_metadata(before))
    target = build_metadata(after)
    if (before, after) in LEGAL:
        assert entry.prepare(target) is target
        assert entry.pending is target
    else:
        with pytest.raises(InvariantViolation):
            entry.prepare(target)
        assert entry.pending is None


def test_a_second_change_while_one_is_under_way_is_our_bug() -> None:
    entry = TransactionEntry(build_metadata())
    entry.prepare(plan_dead(entry.committed))
    with pytest.raises(InvariantViolation):
        entry.prepare(plan_dead(entry.committed))


def test_only_what_was_prepared_can_be_completed() -> None:
    entry = TransactionEntry(build_metadata())
    target = entry.prepare(
        plan_add_partitions(entry.committed, [("a", 0)], 200, client_transaction_version=2)
    )
    with pytest.raises(InvariantViolation):
        entry.complete(replace(target, start_ms=1))
    entry.complete(target)
    assert entry.committed is target
    assert entry.pending is None


@pytest.mark.parametrize("state", [S.DEAD, S.PREPARE_EPOCH_FENCE])
def test_states_that_are_never_stored_cannot_be_completed(state) -> None:
    entry = TransactionEntry(build_metadata(S.ONGOING if state == 7 else S.EMPTY))
    target = entry.prepare(build_metadata(state))
    with pytest.raises(InvariantViolation):
        entry.complete(target)


@pytest.mark.parametrize(
    "change",
    [
        {"partitions": frozenset()},
        {"timeout_ms": 5},
        {"producer_id": 6},
        {"producer_epoch": 5},
    ],
)
def test_a_decision_that_changes_what_it_must_keep_is_caught(change) -> None:
    entry = TransactionEntry(build_metadata(S.ONGOING, partitions=frozenset({("a", 0)})))
    target = plan_end(entry.committed, S.PREPARE_COMMIT, 200, client_transaction_version=2)
    entry.prepare(replace(target, **change))
    with pytest.raises(InvariantViolation):
        entry.complete(replace(target, **change))


def test_version_1_keeps_the_epoch_at_the_end_and_version_2_raises_it() -> None:
    ongoing = build_metadata(S.ONGOING)
    v1 = plan_end(ongoing, S.PREPARE_COMMIT, 9, client_transaction_version=0)
    v2 = plan_end(ongoing, S.PREPARE_COMMIT, 9, client_transaction_version=2)
    assert (v1.producer_epoch, v1.last_producer_epoch) == (3, -1)
    assert (v2.producer_epoch, v2.last_producer_epoch) == (4, 3)


@pytest.mark.parametrize(("version", "last_epoch"), [(1, -1), (2, 3)])
def test_a_fencing_abort_raises_the_epoch_once(version, last_epoch) -> None:
    ongoing = build_metadata(S.ONGOING)
    abort = plan_fencing_abort(ongoing, 9, transaction_version=version)
    assert (abort.producer_epoch, abort.last_producer_epoch) == (4, last_epoch)


def test_after_the_last_epoch_the_end_goes_on_with_a_new_producer_id() -> None:
    ongoing = build_metadata(S.ONGOING, producer_epoch=EPOCH_LAST)
    prepared = plan_end(
        ongoing, S.PREPARE_COMMIT, 9, client_transaction_version=2, next_producer_id=77
    )
    assert prepared.producer_epoch == PRODUCER_EPOCH_MAX
    complete = plan_complete(prepared, 10)
    assert (complete.producer_id, complete.producer_epoch) == (77, 0)
    assert (complete.previous_producer_id, complete.last_producer_epoch) == (5, EPOCH_LAST)


@pytest.mark.invariant(16)
def test_the_last_epoch_is_never_handed_out_by_a_bump() -> None:
    with pytest.raises(InvariantViolation):
        plan_producer_epoch_bump(
            build_metadata(producer_epoch=EPOCH_LAST), 1, 1, expected_epoch=None
        )
