"""InitProducerId: every row of the table, KIP-360, exhaustion, and the fence of a running one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.core.coordinators import DATA, FIRST_ID, STATE, World, build_metadata

from broker_sim.core.controller import producer_ids
from broker_sim.core.effects import StorageSpace
from broker_sim.core.transaction.metadata import EPOCH_LAST
from broker_sim.core.transaction.results import ProducerIdResult
from broker_sim.core.transaction.states import TransactionState
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import PRODUCER_EPOCH_MAX

S, E = TransactionState, ErrorCode
PID, EPOCH = 5, 3
SETTLED = [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT]


def build_world(state: S = S.EMPTY, version: int = 2, **more) -> World:
    return World({"transaction.version": version}, transactions=[build_metadata(state, **more)])


def holder(producer_id: int, producer_epoch: int) -> dict[str, int]:
    return {"producer_id": producer_id, "producer_epoch": producer_epoch}


def test_an_idempotent_producer_gets_an_id_of_its_own_each_time() -> None:
    world = World()
    answers = [world.init(None, 0) for _ in range(3)]
    assert {answer.error for answer in answers} == {E.NONE}
    assert {answer.producer_epoch for answer in answers} == {0}
    assert len({answer.producer_id for answer in answers}) == 3
    assert world.stored(STATE) == []


@pytest.mark.parametrize(
    ("transactional_id", "timeout_ms", "expected"),
    [
        ("", 1000, E.INVALID_REQUEST),
        ("t", 0, E.INVALID_TRANSACTION_TIMEOUT),
        ("t", -1, E.INVALID_TRANSACTION_TIMEOUT),
        ("t", 900_001, E.INVALID_TRANSACTION_TIMEOUT),
        ("t", 900_000, E.NONE),
        ("t", 1, E.NONE),
    ],
)
def test_what_is_refused_before_the_state_is_looked_at(
    transactional_id, timeout_ms, expected
) -> None:
    assert World().init(transactional_id, timeout_ms).error is expected


@pytest.mark.parametrize("half", [holder(5, -1), holder(-1, 3)])
def test_half_an_identity_is_an_invalid_request(half) -> None:
    assert World().init(**half).error is E.INVALID_REQUEST


@pytest.mark.parametrize("expected", [{}, holder(1234, 7)])
def test_an_unknown_id_begins_at_epoch_0_whatever_the_client_holds(expected) -> None:
    assert World().init(**expected) == ProducerIdResult(E.NONE, FIRST_ID, 0)


@pytest.mark.parametrize("state", SETTLED)
@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        ({}, ProducerIdResult(E.NONE, PID, EPOCH + 1)),
        (holder(PID, EPOCH), ProducerIdResult(E.NONE, PID, EPOCH + 1)),
        (holder(PID, EPOCH - 1), ProducerIdResult(E.PRODUCER_FENCED)),
        (holder(PID, EPOCH + 1), ProducerIdResult(E.PRODUCER_FENCED)),
        (holder(PID + 1, EPOCH), ProducerIdResult(E.PRODUCER_FENCED)),
    ],
)
def test_settled_states_bump_for_a_new_instance_and_the_present_holder(
    state, expected, answer
) -> None:
    world = build_world(state)
    assert world.init(**expected) == answer
    assert world.state() == ("Empty" if answer.error is E.NONE else state.label)


def test_the_retry_of_a_bump_is_answered_again_without_another_one() -> None:
    world = build_world()
    first = world.init(**holder(PID, EPOCH))
    assert world.init(**holder(PID, EPOCH)) == first
    assert world.init(**holder(PID, EPOCH)) == first


def test_a_new_instance_makes_the_retry_of_an_older_one_fenced() -> None:
    world = build_world()
    world.init(**holder(PID, EPOCH))
    world.init()
    assert world.init(**holder(PID, EPOCH)).error is E.PRODUCER_FENCED


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("names_it", [False, True])
def test_while_markers_are_written_the_client_is_to_come_back(commit, names_it) -> None:
    world = World()
    ids = world.init()
    world.begin(ids)
    world.refuse(*DATA, E.NOT_ENOUGH_REPLICAS)
    after = world.end(ids, commit=commit)
    held = holder(after.producer_id, after.producer_epoch) if names_it else {}
    assert world.init(**held).error is E.CONCURRENT_TRANSACTIONS
    world.refusals.clear()
    world.advance(100)
    assert world.init(**held).error is E.NONE


@pytest.mark.parametrize("state", SETTLED)
@pytest.mark.parametrize("expected", [{}, holder(PID, EPOCH_LAST)])
def test_with_the_epoch_used_up_there_is_a_new_producer_id(state, expected) -> None:
    world = build_world(state, producer_epoch=EPOCH_LAST)
    assert world.init(**expected) == ProducerIdResult(E.NONE, FIRST_ID, 0)
    if expected:
        # Its retry names the previous id with its last epoch: known, and not rotated again.
        assert world.init(**expected) == ProducerIdResult(E.NONE, FIRST_ID, 0)


@pytest.mark.parametrize("epoch", [EPOCH_LAST - 1, 0])
def test_with_the_epoch_used_up_any_other_epoch_is_an_unknown_error(epoch) -> None:
    """A retry of the last bump fails, too: Kafka has no answer there (`IllegalStateException`)."""
    world = build_world(S.EMPTY, producer_epoch=EPOCH_LAST - 1)
    assert world.init(**holder(PID, EPOCH_LAST - 1)).producer_epoch == EPOCH_LAST
    assert world.init(**holder(PID, epoch)).error is E.UNKNOWN_SERVER_ERROR


def test_the_fence_of_the_last_epoch_in_version_1_is_followed_by_a_new_producer_id() -> None:
    world = build_world(S.ONGOING, 1, producer_epoch=EPOCH_LAST, partitions=frozenset({DATA}))
    assert world.init().error is E.CONCURRENT_TRANSACTIONS
    assert world.markers(DATA)[0].producer_epoch == PRODUCER_EPOCH_MAX
    assert world.init() == ProducerIdResult(E.NONE, FIRST_ID, 0)


def test_the_fence_of_the_last_epoch_in_version_2_moves_to_the_new_id_at_once() -> None:
    world = build_world(S.ONGOING, producer_epoch=EPOCH_LAST, partitions=frozenset({DATA}))
    assert world.init().error is E.CONCURRENT_TRANSACTIONS
    described = world.transactions.describe("t")
    assert (described.producer_id, described.producer_epoch) == (FIRST_ID, 0)
    # The delayed abort of the fenced producer is a retry, and gets ids that work (KAFKA-20090).
    old = ProducerIdResult(E.NONE, PID, EPOCH_LAST)
    assert world.end(old, commit=False) == ProducerIdResult(E.NONE, FIRST_ID, 0)


@pytest.mark.parametrize(("server", "version"), [(1, 0), (2, 2)])
def test_an_ongoing_transaction_is_aborted_once_and_its_producer_fenced(server, version) -> None:
    world = World({"transaction.version": server})
    old = world.init()
    assert world.begin(old, version=version) is E.NONE
    world.produce_in(old)
    assert world.init() == ProducerIdResult(E.CONCURRENT_TRANSACTIONS)
    assert world.state() == "CompleteAbort"
    assert world.log(*DATA).first_unstable_offset is None
    (marker,) = world.markers(DATA)
    assert (marker.marker_type.name, marker.producer_epoch) == ("ABORT", old.producer_epoch + 1)
    new = world.init()
    assert (new.error, new.producer_epoch) == (E.NONE, old.producer_epoch + 2)
    assert world.begin(old, version=version) is E.PRODUCER_FENCED
    assert world.end(old, commit=True, version=version).error is E.PRODUCER_FENCED
    assert world.begin(new, version=version) is E.NONE


@pytest.mark.invariant(16)
def test_a_fence_that_cannot_be_written_raises_no_epoch_however_often_it_is_tried() -> None:
    world = build_world(S.ONGOING, partitions=frozenset({DATA}))
    world.refuse(*STATE, E.NOT_ENOUGH_REPLICAS)
    for _ in range(5):
        assert world.init().error is E.COORDINATOR_NOT_AVAILABLE
    world.refusals.clear()
    assert world.init().error is E.CONCURRENT_TRANSACTIONS
    assert world.init() == ProducerIdResult(E.NONE, PID, EPOCH + 2)


def test_an_id_whose_first_record_cannot_be_written_is_still_unknown() -> None:
    world = World()
    world.refuse(*STATE, E.KAFKA_STORAGE_ERROR)
    assert world.init().error is E.NOT_COORDINATOR
    assert world.transactions.describe("t").error is E.TRANSACTIONAL_ID_NOT_FOUND
    world.refusals.clear()
    assert world.init() == ProducerIdResult(E.NONE, FIRST_ID + 1, 0)


def test_without_a_block_of_producer_ids_the_client_is_to_come_back() -> None:
    world = World()
    world.step(StorageSpace(is_low=True))
    assert world.init().error is E.COORDINATOR_LOAD_IN_PROGRESS
    assert world.init(None, 0).error is E.COORDINATOR_LOAD_IN_PROGRESS
    world.step(StorageSpace(is_low=False))
    assert world.init().error is E.NONE


@pytest.mark.invariant(16)
def test_producer_ids_are_never_given_twice_over_blocks_and_crashes(monkeypatch) -> None:
    monkeypatch.setattr(producer_ids, "PRODUCER_ID_BLOCK_SIZE", 3)
    world, seen = World(), []
    for _ in range(3):
        seen += [world.init(None, 0).producer_id for _ in range(5)]
        world = world.crashed()
    assert len(set(seen)) == 15


def test_the_request_sets_the_timeout_and_empties_the_transaction() -> None:
    world = build_world(S.COMPLETE_ABORT)
    world.init(timeout_ms=777)
    described = world.transactions.describe("t")
    assert (described.timeout_ms, described.start_ms, described.partitions) == (777, -1, ())


def test_a_partition_that_is_not_here() -> None:
    world = World()
    ids = world.init()
    world.call(world.transactions.unload, 0)
    expected = E.NOT_COORDINATOR
    assert world.init().error is expected
    assert world.begin(ids) is expected
    assert world.end(ids, commit=True).error is expected
    assert world.transactions.describe("t").error is expected
    verified = world.transactions.verify_partitions("t", [("a", 0)], **holder(1, 1))
    assert verified == {("a", 0): expected}


def test_the_resume_of_a_fenced_holder_after_a_crash_is_refused() -> None:
    world = World()
    old = world.init()
    new = world.init()
    world = world.crashed()
    resume = holder(old.producer_id, old.producer_epoch)
    assert world.init(**resume).error is E.PRODUCER_FENCED
    resumed = world.init(**holder(new.producer_id, new.producer_epoch))
    assert resumed == replace(new, producer_epoch=new.producer_epoch + 1)
