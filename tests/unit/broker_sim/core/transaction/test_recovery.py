"""Recovery after a crash: transactions, markers, and the order of writes on the disk."""

from __future__ import annotations

import pytest
from support.core.coordinators import (
    NOW_MS,
    OFFSETS,
    STATE,
    A,
    B,
    World,
    build_metadata,
    preset,
)

from broker_sim.core.effects import Append, Flush
from broker_sim.core.transaction import TransactionFilters
from broker_sim.core.transaction.log_records import decode_value
from broker_sim.core.transaction.results import ProducerIdResult
from broker_sim.core.transaction.states import TransactionState
from txnlog_kafka.wire import records
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import InvariantViolation
from txnlog_kafka.wire.records import Record
from txnlog_kafka.wire.topic_partition import TopicPartition

S, E = TransactionState, ErrorCode
VERSIONS = [1, 2]
"""Transaction versions; clients of version 1 send request version 0."""


def fill(world: World, ids, *, version: int = 2) -> None:
    """A transaction with two data partitions and an offset, all written, nothing decided."""
    assert world.begin(ids, A, B, OFFSETS, version=version) is E.NONE
    world.produce_in(ids, A)
    world.produce_in(ids, B)
    told = world.commit_pending(7, ids.producer_id, producer_epoch=ids.producer_epoch)
    assert told is E.NONE


def filled() -> tuple[World, ProducerIdResult]:
    """Return a world with such a transaction, and its producer."""
    world = World()
    ids = world.init()
    fill(world, ids)
    return world, ids


def kinds(world: World) -> dict[TopicPartition, list[str]]:
    return {
        place: [marker.marker_type.name for marker in world.markers(place)]
        for place in (A, B, OFFSETS)
    }


def settle(world: World) -> None:
    """Retries, and a new instance of the producer that ends what is open."""
    world.advance(200)
    for _ in range(3):
        if world.init().error is E.NONE:
            return
    raise AssertionError("InitProducerId never succeeds")


@pytest.mark.invariant(19, 20, 68)
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("server", VERSIONS)
@pytest.mark.parametrize("loses_unflushed", [True, False])
def test_a_crash_after_any_operation_decides_the_same_everywhere(
    server, commits, loses_unflushed
) -> None:
    world, version = World({"transaction.version": server}), server // 2 * 2
    ids = world.init()
    world.commit_offset(1)
    before = len(world.operations)
    fill(world, ids, version=version)
    assert world.end(ids, commit=commits, version=version).error is E.NONE
    outcomes = []
    for after in range(before, len(world.operations) + 1):
        revived = world.crashed(after=after, loses_unflushed=loses_unflushed)
        settle(revived)
        assert revived.state() == "Empty"
        logs = [revived.log(*place) for place in (A, B, OFFSETS)]
        assert [log.first_unstable_offset for log in logs] == [None] * 3
        offset, error = revived.offset(stable=True)
        assert error is E.NONE
        written = {kind for found in kinds(revived).values() for kind in found}
        # One decision: never a commit here and an abort there, and the offset agrees.
        assert len(written) <= 1
        assert offset == (7 if written == {"COMMIT"} else 1)
        outcomes.append(written == {"COMMIT"})
        if written == {"COMMIT"}:
            assert all(found for found in kinds(revived).values())
    # Once decided, decided for every later crash too.
    assert outcomes == sorted(outcomes)
    assert outcomes[-1] is commits


@pytest.mark.invariant(25, 69)
@pytest.mark.parametrize("server", VERSIONS)
def test_the_order_on_disk_is_data_decision_markers_completion(server) -> None:
    world, version = World({"transaction.version": server}), server // 2 * 2
    ids = world.init()
    fill(world, ids, version=version)
    before = len(world.operations)
    world.end(ids, commit=True, version=version)
    story: list[str] = []
    for operation in world.operations[before:]:
        if isinstance(operation, Flush):
            (path,) = operation.paths
            story.append(f"flush {folder(path)}")
        elif isinstance(operation, Append) and operation.path.endswith(".log"):
            header = records.parse_header(operation.data)
            if folder(operation.path) == "__transaction_state-0":
                (record,) = records.decode_records(operation.data, 0, header)
                story.append(decode_value("t", record.value or b"").state.label)
            else:
                story.append(f"marker {folder(operation.path)}")
    places = ("__consumer_offsets-0", "a-0", "b-0")
    flushed, marked = ([f"{what} {place}" for place in places] for what in ("flush", "marker"))
    assert story == [
        *flushed,
        "PrepareCommit",
        "flush __transaction_state-0",
        *marked,
        *flushed,
        "CompleteCommit",
    ]


def folder(path: str) -> str:
    """A partition's."""
    return path.partition("/")[0]


def test_without_flush_on_commit_nothing_is_flushed() -> None:
    world = World({"flush.on.commit": "false"})
    ids = world.init()
    before = len(world.operations)
    assert world.begin(ids, A) is E.NONE
    world.produce_in(ids, A)
    world.end(ids, commit=True)
    assert not any(isinstance(operation, Flush) for operation in world.operations[before:])


@pytest.mark.invariant(25)
@pytest.mark.parametrize(
    "refusal",
    [
        E.UNKNOWN_TOPIC_OR_PARTITION, E.NOT_LEADER_OR_FOLLOWER, E.NOT_ENOUGH_REPLICAS,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.REQUEST_TIMED_OUT, E.KAFKA_STORAGE_ERROR,
    ],
)  # fmt: skip
def test_a_partition_that_refuses_its_marker_delays_itself_only(refusal) -> None:
    world, ids = filled()
    world.refuse(*B, refusal)
    after = world.end(ids, commit=True)
    assert after.error is E.NONE
    assert world.state() == "PrepareCommit"
    assert kinds(world) == {A: ["COMMIT"], B: [], OFFSETS: ["COMMIT"]}
    assert world.offset(stable=True) == (7, E.NONE)
    # The whole id waits: its next transaction might write there too.
    assert world.begin(after, A) is E.CONCURRENT_TRANSACTIONS
    assert world.init().error is E.CONCURRENT_TRANSACTIONS
    assert world.end(ids, commit=True).error is E.CONCURRENT_TRANSACTIONS
    world.advance(10_000)
    assert kinds(world)[A] == ["COMMIT"]
    world.refusals.clear()
    world.advance(200)
    assert kinds(world) == {A: ["COMMIT"], B: ["COMMIT"], OFFSETS: ["COMMIT"]}
    assert world.state() == "CompleteCommit"
    assert world.begin(after, A) is E.NONE


@pytest.mark.parametrize("refusal", [E.INVALID_PRODUCER_EPOCH, E.TRANSACTION_COORDINATOR_FENCED])
def test_a_coordinator_that_was_replaced_stops_and_writes_no_completion(refusal) -> None:
    world, ids = filled()
    world.refuse(*A, refusal)
    assert world.end(ids, commit=True).error is E.NONE
    world.refusals.clear()
    world.advance(10_000)
    assert world.state() == "PrepareCommit"
    assert kinds(world)[A] == []
    # Its successor knows the decision from the log.
    assert world.crashed().state() == "CompleteCommit"


def test_a_marker_that_no_log_can_refuse_so_is_our_bug() -> None:
    world, ids = filled()
    world.refuse(*A, E.CORRUPT_MESSAGE)
    with pytest.raises(InvariantViolation):
        world.end(ids, commit=True)


def test_the_completion_record_is_tried_until_it_is_written() -> None:
    world, ids = filled()
    world.refuse(*B, E.NOT_ENOUGH_REPLICAS)
    world.end(ids, commit=True)
    world.refusals.clear()
    world.refuse(*STATE, E.NOT_ENOUGH_REPLICAS)
    world.advance(1_000)
    assert kinds(world)[B] == ["COMMIT"]
    assert world.state() == "PrepareCommit"
    world.refusals.clear()
    world.advance(100)
    assert world.state() == "CompleteCommit"
    assert kinds(world)[B] == ["COMMIT"]


@pytest.mark.parametrize(
    ("state", "kind"), [(S.PREPARE_COMMIT, "COMMIT"), (S.PREPARE_ABORT, "ABORT")]
)
def test_a_load_finishes_what_was_decided_with_its_own_coordinator_epoch(state, kind) -> None:
    world = World()
    world.append(STATE, preset(build_metadata(state, partitions=frozenset({A, B}))))
    for _ in range(3):
        world.kill()
    assert world.state() == ("CompleteCommit" if kind == "COMMIT" else "CompleteAbort")
    for place in (A, B):
        (marker,) = world.markers(place)
        assert marker.marker_type.name == kind
        assert marker.coordinator_epoch == world.log(*STATE).leader_epoch - 2 > 0
        assert (marker.producer_id, marker.producer_epoch) == (5, 3)


def test_a_load_at_the_overflow_goes_on_with_the_next_producer_id() -> None:
    metadata = build_metadata(
        S.PREPARE_COMMIT, producer_epoch=32767, next_producer_id=88,
        client_transaction_version=2, partitions=frozenset({A}),
    )  # fmt: skip
    world = World(transactions=[metadata])
    described = world.transactions.describe("t")
    assert (described.state, described.producer_id, described.producer_epoch) == (
        "CompleteCommit", 88, 0,
    )  # fmt: skip


def test_the_last_record_of_an_id_wins_and_a_tombstone_removes_it() -> None:
    written = [
        build_metadata(S.ONGOING, transactional_id="t"),
        build_metadata(S.COMPLETE_ABORT, transactional_id="t"),
        build_metadata(S.EMPTY, transactional_id="u"),
        records.encode_batch([Record(b"\x00\x00\x00\x01u", None, NOW_MS)]),
        records.encode_batch([Record(b"\x00\x09unknown kind", b"x", NOW_MS)]),
    ]
    world = World(transactions=written)
    rows = world.transactions.list_transactions(NOW_MS, TransactionFilters()).transactions
    assert [(row.transactional_id, row.state) for row in rows] == [("t", "CompleteAbort")]


@pytest.mark.parametrize(
    "value", [b"\x00\x02from the future", b"\x00\x01\x00", b"", b"\x00\x00" + b"\xff" * 40]
)
def test_a_log_that_cannot_be_understood_is_not_guessed_at(value) -> None:
    key = b"\x00\x00\x00\x01t"
    world = World(transactions=[records.encode_batch([Record(key, value, NOW_MS)])])
    assert world.init().error is E.NOT_COORDINATOR


def test_a_load_stops_the_retries_of_the_life_before() -> None:
    world, ids = filled()
    world.refuse(*B, E.NOT_ENOUGH_REPLICAS)
    world.end(ids, commit=True)
    world.call(world.transactions.unload, 0)
    world.refusals.clear()
    world.advance(1_000)
    assert kinds(world)[B] == []
    world.call(world.transactions.load, 0, world.log(*STATE))
    assert world.state() == "CompleteCommit"
    # The partitions that had their marker got it again: the log makes that harmless.
    assert kinds(world) == {A: ["COMMIT"] * 2, B: ["COMMIT"], OFFSETS: ["COMMIT"] * 2}
    assert world.offset(stable=True) == (7, E.NONE)
