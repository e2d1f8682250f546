"""EndTxn: every state x request x epoch, in version 1 and 2, against the tables written out."""

from __future__ import annotations

import itertools

import pytest
from support.core.coordinators import ONE, ONE_V1, MemoryHost, World
from support.core.transaction_values import build_metadata

from broker_sim.core.transaction.end_txn import (
    EndTxnRequest,
    decide_end_txn_v1,
    decide_end_txn_v2,
)
from broker_sim.core.transaction.metadata import EPOCH_LAST
from broker_sim.core.transaction.results import ProducerIdResult
from broker_sim.core.transaction.states import TransactionState
from txnlog_kafka.wire.errors import ErrorCode
from txnlog_kafka.wire.invariants import InvariantViolation

S, E = TransactionState, ErrorCode
STORED = [s for s in S if s not in (S.DEAD, S.PREPARE_EPOCH_FENCE)]
PID, EPOCH = 5, 3
DATA = ("data", 0)

V1 = {
    # state: (commit, abort)
    S.EMPTY: (E.INVALID_TXN_STATE, E.INVALID_TXN_STATE),
    S.ONGOING: (S.PREPARE_COMMIT, S.PREPARE_ABORT),
    S.PREPARE_COMMIT: (E.CONCURRENT_TRANSACTIONS, E.INVALID_TXN_STATE),
    S.PREPARE_ABORT: (E.INVALID_TXN_STATE, E.CONCURRENT_TRANSACTIONS),
    S.COMPLETE_COMMIT: (E.NONE, E.INVALID_TXN_STATE),
    S.COMPLETE_ABORT: (E.INVALID_TXN_STATE, E.NONE),
}
V2 = {
    # state: (abort retry, abort current, commit retry, commit current)
    S.EMPTY: (E.PRODUCER_FENCED, S.PREPARE_ABORT, E.PRODUCER_FENCED, E.INVALID_TXN_STATE),
    S.ONGOING: (E.PRODUCER_FENCED, S.PREPARE_ABORT, E.PRODUCER_FENCED, S.PREPARE_COMMIT),
    S.PREPARE_COMMIT: (
        E.INVALID_TXN_STATE, E.PRODUCER_FENCED, E.CONCURRENT_TRANSACTIONS, E.PRODUCER_FENCED,
    ),
    S.PREPARE_ABORT: (
        E.CONCURRENT_TRANSACTIONS, E.PRODUCER_FENCED, E.INVALID_TXN_STATE, E.PRODUCER_FENCED,
    ),
    S.COMPLETE_COMMIT: (E.INVALID_TXN_STATE, S.PREPARE_ABORT, E.NONE, E.INVALID_TXN_STATE),
    S.COMPLETE_ABORT: (E.NONE, S.PREPARE_ABORT, E.INVALID_TXN_STATE, E.INVALID_TXN_STATE),
}  # fmt: skip


@pytest.mark.parametrize(("state", "commits"), list(itertools.product(STORED, [True, False])))
def test_version_1_table(state, commits) -> None:
    metadata = build_metadata(state)
    request = EndTxnRequest(PID, EPOCH, commits)
    assert decide_end_txn_v1(metadata, request, is_pending=False) is V1[state][not commits]
    # A transition under way: after the identity, before the state.
    pending = decide_end_txn_v1(metadata, request, is_pending=True)
    assert pending is E.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize(
    ("state", "commits", "epoch"), list(itertools.product(STORED, [True, False], [0, 2, 4, 32766]))
)
def test_version_1_fences_every_other_epoch(state, commits, epoch) -> None:
    request = EndTxnRequest(PID, epoch, commits)
    for is_pending in (True, False):
        verdict = decide_end_txn_v1(build_metadata(state), request, is_pending=is_pending)
        assert verdict is E.PRODUCER_FENCED


@pytest.mark.parametrize(
    ("state", "commits", "is_retry"), list(itertools.product(STORED, [True, False], [True, False]))
)
def test_version_2_table(state, commits, is_retry) -> None:
    request = EndTxnRequest(PID, EPOCH - 1 if is_retry else EPOCH, commits)
    expected = V2[state][2 * commits + (not is_retry)]
    metadata = build_metadata(state)
    assert decide_end_txn_v2(metadata, request, is_pending=False) is expected
    pending = decide_end_txn_v2(metadata, request, is_pending=True)
    assert pending is E.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize(
    ("state", "commits", "epoch"), list(itertools.product(STORED, [True, False], [0, 1, 4, 32766]))
)
def test_version_2_fences_epochs_that_are_neither_current_nor_a_retry(
    state, commits, epoch
) -> None:
    request = EndTxnRequest(PID, epoch, commits)
    verdict = decide_end_txn_v2(build_metadata(state), request, is_pending=False)
    assert verdict is E.PRODUCER_FENCED


@pytest.mark.parametrize("decide", [decide_end_txn_v1, decide_end_txn_v2])
@pytest.mark.parametrize("state", STORED)
def test_another_producer_id_is_no_mapping(decide, state) -> None:
    request = EndTxnRequest(PID + 1, EPOCH, committed=True)
    verdict = decide(build_metadata(state), request, is_pending=False)
    assert verdict is E.INVALID_PRODUCER_ID_MAPPING


def test_with_both_wrong_version_1_names_the_id_and_version_2_the_transition_under_way() -> None:
    metadata, request = build_metadata(S.ONGOING), EndTxnRequest(PID + 1, 9, committed=True)
    v1 = decide_end_txn_v1(metadata, request, is_pending=True)
    v2 = decide_end_txn_v2(metadata, request, is_pending=True)
    assert (v1, v2) == (E.INVALID_PRODUCER_ID_MAPPING, E.CONCURRENT_TRANSACTIONS)


@pytest.mark.parametrize("state", [S.DEAD, S.PREPARE_EPOCH_FENCE])
@pytest.mark.parametrize("decide", [decide_end_txn_v1, decide_end_txn_v2])
def test_a_state_that_is_never_stored_is_our_bug(decide, state) -> None:
    with pytest.raises(InvariantViolation):
        decide(build_metadata(state), EndTxnRequest(PID, EPOCH, True), is_pending=False)


@pytest.mark.parametrize(
    ("state", "commits", "expected"),
    [
        (S.COMPLETE_COMMIT, True, E.NONE),
        (S.COMPLETE_COMMIT, False, E.INVALID_TXN_STATE),
        (S.COMPLETE_ABORT, False, E.NONE),
        (S.COMPLETE_ABORT, True, E.INVALID_TXN_STATE),
        (S.EMPTY, True, E.PRODUCER_FENCED),
        (S.ONGOING, True, E.PRODUCER_FENCED),
    ],
)
def test_the_retry_of_an_end_that_used_up_the_epoch_is_known(state, commits, expected) -> None:
    metadata = build_metadata(state, producer_id=9, previous_producer_id=PID, producer_epoch=0)
    request = EndTxnRequest(PID, EPOCH_LAST, commits)
    assert decide_end_txn_v2(metadata, request, is_pending=False) is expected


def test_a_commit_that_lost_against_the_timeout_can_be_answered_as_newer_brokers_do() -> None:
    request = EndTxnRequest(PID, EPOCH - 1, committed=True)
    verdict = decide_end_txn_v2(
        build_metadata(S.COMPLETE_ABORT), request, is_pending=False, fence_commit_after_abort=True
    )
    assert verdict is E.PRODUCER_FENCED


# ---------------------------------------------------------------- the same, through requests


def build_world(version: int) -> tuple[World, ProducerIdResult]:
    world = World(ONE_V1 if version == 1 else ONE)
    world.host.create(*DATA)
    return world, world.init()


def build_exhausted_world() -> tuple[World, ProducerIdResult]:
    """`t` holds the last epoch that a client may hold."""
    metadata = build_metadata(S.COMPLETE_COMMIT, producer_epoch=EPOCH_LAST)
    world = World(ONE, host=MemoryHost.holding(metadata))
    world.host.create(*DATA)
    return world, ProducerIdResult(E.NONE, PID, EPOCH_LAST)


@pytest.mark.parametrize("commits", [True, False])
def test_version_1_end_answers_no_ids_and_its_retry_is_idempotent(commits) -> None:
    world, ids = build_world(1)
    assert world.begin(ids, version=0) is E.NONE
    assert world.end(ids, commit=commits, version=0) == ProducerIdResult(E.NONE)
    assert world.state() == ("CompleteCommit" if commits else "CompleteAbort")
    assert world.end(ids, commit=commits, version=0) == ProducerIdResult(E.NONE)
    other = world.end(ids, commit=not commits, version=0)
    assert other == ProducerIdResult(E.INVALID_TXN_STATE)
    assert len(world.host.logs[DATA].markers()) == 1
    assert world.begin(ids, version=0) is E.NONE


@pytest.mark.parametrize("commits", [True, False])
def test_version_2_end_answers_the_next_epoch_and_so_does_its_retry(commits) -> None:
    world, ids = build_world(2)
    assert world.begin(ids) is E.NONE
    after = world.end(ids, commit=commits)
    assert after == ProducerIdResult(E.NONE, ids.producer_id, ids.producer_epoch + 1)
    assert world.end(ids, commit=commits) == after
    assert world.end(ids, commit=not commits).error is E.INVALID_TXN_STATE
    (marker,) = world.host.logs[DATA].markers()
    assert (marker.producer_id, marker.producer_epoch) == (after.producer_id, after.producer_epoch)
    assert world.begin(ids) is E.PRODUCER_FENCED
    assert world.begin(after) is E.NONE


def test_version_2_empty_abort_raises_the_epoch_from_each_settled_state() -> None:
    world, ids = build_world(2)
    for commit_first in (None, True, False):
        if commit_first is not None:
            assert world.begin(ids) is E.NONE
            ids = world.end(ids, commit=commit_first)
        after = world.end(ids, commit=False)
        assert after.error is E.NONE
        assert after.producer_epoch == ids.producer_epoch + 1
        assert world.end(after, commit=True).error is E.INVALID_TXN_STATE
        ids = after
    assert world.state() == "CompleteAbort"


def test_an_end_that_uses_up_the_epoch_moves_to_a_new_producer_id_and_so_does_its_retry() -> None:
    world, ids = build_exhausted_world()
    assert world.begin(ids) is E.NONE
    after = world.end(ids, commit=True)
    assert (after.error, after.producer_epoch) == (E.NONE, 0)
    assert after.producer_id != ids.producer_id
    assert world.end(ids, commit=True) == after
    # The marker itself carries the epoch that no client ever holds.
    assert world.host.logs[DATA].markers()[-1].producer_epoch == EPOCH_LAST + 1
    assert world.begin(after) is E.NONE
    assert world.end(ids, commit=True).error is E.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("transactional_id", ["", "unknown"])
def test_end_of_an_unknown_or_empty_id(transactional_id) -> None:
    world, _ = build_world(2)
    result = world.ask(
        world.transactions.end_txn, transactional_id, producer_id=1, producer_epoch=0,
        committed=True, client_transaction_version=2,
    )  # fmt: skip
    assert result.error is (
        E.INVALID_PRODUCER_ID_MAPPING if transactional_id else E.INVALID_REQUEST
    )


@pytest.mark.parametrize(
    ("refusal", "answer"),
    [
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.UNKNOWN_TOPIC_OR_PARTITION, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.COORDINATOR_NOT_AVAILABLE),
        (E.REQUEST_TIMED_OUT, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
        (E.RECORD_LIST_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_failed_append_decides_nothing_and_blocks_nothing(refusal, answer) -> None:
    world, ids = build_world(2)
    assert world.begin(ids) is E.NONE
    world.host.refusals["__transaction_state", 0] = refusal
    assert world.end(ids, commit=True).error is answer
    assert world.state() == "Ongoing"
    assert not world.host.logs[DATA].markers()
    world.host.refusals.clear()
    assert world.end(ids, commit=True).error is E.NONE


def test_without_a_new_producer_id_the_last_epoch_cannot_end_yet() -> None:
    world, ids = build_exhausted_world()
    world.host.has_blocks = False
    assert world.end(ids, commit=False).error is E.COORDINATOR_LOAD_IN_PROGRESS
    world.host.has_blocks = True
    assert world.end(ids, commit=False).error is E.NONE
