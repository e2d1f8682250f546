"""EndTxn: the answer to each request, the owner of the epoch, retries, and the last epoch.

`property/test_transaction_model.py` asks a whole broker beside a reference, in all states and with
all requests and epochs. `conformance` compares the answers with Kafka's.
"""

from __future__ import annotations

import pytest
from support.core.coordinators import DATA, FIRST_ID, STATE, World, build_metadata

from broker_sim.core.effects import StorageSpace
from broker_sim.core.transaction.end_txn import (
    EndTxnRequest,
    decide_end_txn_v1,
    decide_end_txn_v2,
)
from broker_sim.core.transaction.metadata import EPOCH_LAST
from broker_sim.core.transaction.results import ProducerIdResult
from broker_sim.core.transaction.states import TransactionState
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import InvariantViolation

S, E = TransactionState, ErrorCode
STORED = [s for s in S if s not in (S.DEAD, S.PREPARE_EPOCH_FENCE)]
PID, EPOCH = 5, 3


@pytest.mark.parametrize("decide", [decide_end_txn_v1, decide_end_txn_v2])
@pytest.mark.parametrize("state", STORED)
def test_another_producer_id_is_no_mapping_and_another_epoch_fenced(decide, state) -> None:
    metadata = build_metadata(state)
    for producer_id, epoch, expected in (
        (PID + 1, EPOCH, E.INVALID_PRODUCER_ID_MAPPING),
        *((PID, other, E.PRODUCER_FENCED) for other in (0, EPOCH - 2, EPOCH + 1, 32766)),
    ):
        request = EndTxnRequest(producer_id, epoch, committed=True)
        assert decide(metadata, request, is_pending=False) is expected


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


# ---------------------------------------------------------------- the same, through requests


def build_world(version: int = 2) -> tuple[World, ProducerIdResult]:
    world = World({"transaction.version": version})
    return world, world.init()


def build_exhausted_world() -> tuple[World, ProducerIdResult]:
    """`t` holds the last epoch that a client may hold."""
    metadata = build_metadata(S.COMPLETE_COMMIT, producer_epoch=EPOCH_LAST)
    return World(transactions=[metadata]), ProducerIdResult(E.NONE, PID, EPOCH_LAST)


@pytest.mark.parametrize("commits", [True, False])
def test_version_1_end_answers_no_ids_and_its_retry_is_idempotent(commits) -> None:
    world, ids = build_world(1)
    assert world.end(ids, commit=commits, version=0).error is E.INVALID_TXN_STATE
    assert world.begin(ids, version=0) is E.NONE
    assert world.end(ids, commit=commits, version=0) == ProducerIdResult(E.NONE)
    assert world.state() == ("CompleteCommit" if commits else "CompleteAbort")
    assert world.end(ids, commit=commits, version=0) == ProducerIdResult(E.NONE)
    other = world.end(ids, commit=not commits, version=0)
    assert other == ProducerIdResult(E.INVALID_TXN_STATE)
    assert len(world.markers(DATA)) == 1
    assert world.begin(ids, version=0) is E.NONE


@pytest.mark.parametrize("commits", [True, False])
def test_version_2_end_answers_the_next_epoch_and_so_does_its_retry(commits) -> None:
    world, ids = build_world()
    assert world.begin(ids) is E.NONE
    after = world.end(ids, commit=commits)
    assert after == ProducerIdResult(E.NONE, ids.producer_id, ids.producer_epoch + 1)
    assert world.end(ids, commit=commits) == after
    assert world.end(ids, commit=not commits).error is E.INVALID_TXN_STATE
    (marker,) = world.markers(DATA)
    assert (marker.producer_id, marker.producer_epoch) == (after.producer_id, after.producer_epoch)
    assert world.begin(ids) is E.PRODUCER_FENCED
    assert world.begin(after) is E.NONE


def test_version_2_empty_abort_raises_the_epoch_from_each_settled_state() -> None:
    world, ids = build_world()
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
    assert after == ProducerIdResult(E.NONE, FIRST_ID, 0)
    assert world.end(ids, commit=True) == after
    # The marker itself carries the epoch that no client ever holds.
    assert world.markers(DATA)[-1].producer_epoch == EPOCH_LAST + 1
    assert world.begin(after) is E.NONE
    assert world.end(ids, commit=True).error is E.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("transactional_id", ["", "unknown"])
def test_end_of_an_unknown_or_empty_id(transactional_id) -> None:
    world, _ = build_world()
    result = world.end(ProducerIdResult(E.NONE, 1, 0), commit=True, name=transactional_id)
    expected = E.INVALID_PRODUCER_ID_MAPPING if transactional_id else E.INVALID_REQUEST
    assert result.error is expected


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
    world, ids = build_world()
    assert world.begin(ids) is E.NONE
    world.refuse(*STATE, refusal)
    assert world.end(ids, commit=True).error is answer
    assert world.state() == "Ongoing"
    assert not world.markers(DATA)
    world.refusals.clear()
    assert world.end(ids, commit=True).error is E.NONE


def test_without_a_new_producer_id_the_last_epoch_cannot_end_yet() -> None:
    world, ids = build_exhausted_world()
    world.step(StorageSpace(is_low=True))
    assert world.end(ids, commit=False).error is E.COORDINATOR_LOAD_IN_PROGRESS
    world.step(StorageSpace(is_low=False))
    assert world.end(ids, commit=False).error is E.NONE
