"""What a crash leaves, and what the next life makes of it; markers; the order on the disk."""

from __future__ import annotations

import pytest
from support.core.coordinators import NOW_MS, ONE, ONE_PARTITION, ONE_V1, MemoryHost, World
from support.core.transaction_values import build_metadata

from broker_sim.core.config import BrokerConfig
from broker_sim.core.effects import Append, Flush
from broker_sim.core.group.requests import OffsetToCommit, TxnOffsetCommit
from broker_sim.core.transaction import TransactionFilters
from broker_sim.core.transaction.log_records import decode_value
from broker_sim.core.transaction.states import TransactionState
from txnlog_kafka.wire import records
from txnlog_kafka.wire.errors import ErrorCode
from txnlog_kafka.wire.invariants import InvariantViolation
from txnlog_kafka.wire.records import Record

S, E = TransactionState, ErrorCode
A, B, OFFSETS = ("a", 0), ("b", 0), ("__consumer_offsets", 0)
VERSIONS = [(ONE_V1, 0), (ONE, 2)]


def build_world(config: BrokerConfig = ONE) -> World:
    world = World(config)
    world.host.create(*A)
    world.host.create(*B)
    return world


def commit_offset_in(world: World, ids, offset: int) -> None:
    request = TxnOffsetCommit(
        group_id="g", producer_id=ids.producer_id, producer_epoch=ids.producer_epoch,
        offsets=(OffsetToCommit("in", 0, offset),),
    )  # fmt: skip
    assert set(world.ask(world.groups.txn_offset_commit, request).values()) == {E.NONE}


def fill(world: World, ids, *, version: int, offset: int = 7) -> None:
    """A transaction with two data partitions and an offset, all written, nothing decided."""
    assert world.begin(ids, A, B, OFFSETS, version=version) is E.NONE
    world.produce(ids, *A)
    world.produce(ids, *B)
    commit_offset_in(world, ids, offset)


def kinds(world: World) -> dict[tuple[str, int], list[str]]:
    return {
        partition: [marker.marker_type.name for marker in world.host.logs[partition].markers()]
        for partition in (A, B, OFFSETS)
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
@pytest.mark.parametrize(("config", "version"), VERSIONS)
@pytest.mark.parametrize("loses_unflushed", [True, False])
def test_a_crash_after_any_operation_decides_the_same_everywhere(
    config, version, commits, loses_unflushed
) -> None:
    world = build_world(config)
    ids = world.init()
    world.commit_offset(1)
    before = len(world.disk)
    fill(world, ids, version=version)
    assert world.end(ids, commit=commits, version=version).error is E.NONE
    outcomes = []
    for after in range(before, len(world.disk) + 1):
        revived = world.crashed(after=after, loses_unflushed=loses_unflushed)
        settle(revived)
        assert revived.state() == "Empty"
        assert all(not log.open_producers() for log in revived.host.logs.values())
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
@pytest.mark.parametrize(("config", "version"), VERSIONS)
def test_the_order_on_disk_is_data_decision_markers_completion(config, version) -> None:
    world = build_world(config)
    ids = world.init()
    fill(world, ids, version=version)
    before = len(world.disk)
    world.end(ids, commit=True, version=version)
    story = []
    for operation in world.disk[before:]:
        if isinstance(operation, Flush):
            story.append("flush " + " ".join(sorted(operation.paths)))
            continue
        assert isinstance(operation, Append)
        header = records.parse_header(operation.data)
        if operation.path == "__transaction_state-0":
            (record,) = records.decode_records(operation.data, 0, header)
            story.append(decode_value("t", record.value or b"").state.label)
        else:
            story.append(f"marker {operation.path}")
    everything = "__consumer_offsets-0 a-0 b-0"
    assert story == [
        f"flush {everything}",
        "PrepareCommit",
        "flush __transaction_state-0",
        "marker __consumer_offsets-0", "marker a-0", "marker b-0",
        f"flush {everything}",
        "CompleteCommit",
    ]  # fmt: skip


def test_without_flush_on_commit_nothing_is_flushed() -> None:
    config = BrokerConfig(ONE_PARTITION | {"flush.on.commit": False})
    world = build_world(config)
    ids = world.init()
    assert world.begin(ids, A) is E.NONE
    world.produce(ids, *A)
    world.end(ids, commit=True)
    assert not [operation for operation in world.disk if isinstance(operation, Flush)]


@pytest.mark.invariant(25)
@pytest.mark.parametrize(
    "refusal",
    [
        E.UNKNOWN_TOPIC_OR_PARTITION, E.NOT_LEADER_OR_FOLLOWER, E.NOT_ENOUGH_REPLICAS,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.REQUEST_TIMED_OUT, E.KAFKA_STORAGE_ERROR,
    ],
)  # fmt: skip
def test_a_partition_that_refuses_its_marker_delays_itself_only(refusal) -> None:
    world = build_world()
    ids = world.init()
    fill(world, ids, version=2)
    world.host.refusals[B] = refusal
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
    world.host.refusals.clear()
    world.advance(200)
    assert kinds(world) == {A: ["COMMIT"], B: ["COMMIT"], OFFSETS: ["COMMIT"]}
    assert world.state() == "CompleteCommit"
    assert world.begin(after, A) is E.NONE


def test_a_deleted_topic_does_not_hold_the_transaction() -> None:
    world = build_world()
    ids = world.init()
    fill(world, ids, version=2)
    del world.host.logs[B]
    assert world.end(ids, commit=True).error is E.NONE
    assert world.state() == "CompleteCommit"


@pytest.mark.parametrize("refusal", [E.INVALID_PRODUCER_EPOCH, E.TRANSACTION_COORDINATOR_FENCED])
def test_a_coordinator_that_was_replaced_stops_and_writes_no_completion(refusal) -> None:
    world = build_world()
    ids = world.init()
    fill(world, ids, version=2)
    world.host.refusals[A] = refusal
    assert world.end(ids, commit=True).error is E.NONE
    world.host.refusals.clear()
    world.advance(10_000)
    assert world.state() == "PrepareCommit"
    assert kinds(world)[A] == []
    # Its successor knows the decision from the log.
    assert world.crashed().state() == "CompleteCommit"


def test_a_marker_that_no_log_can_refuse_so_is_our_bug() -> None:
    world = build_world()
    ids = world.init()
    fill(world, ids, version=2)
    world.host.refusals[A] = E.CORRUPT_MESSAGE
    with pytest.raises(InvariantViolation):
        world.end(ids, commit=True)


def test_the_completion_record_is_tried_until_it_is_written() -> None:
    world = build_world()
    ids = world.init()
    fill(world, ids, version=2)
    world.host.refusals[B] = E.NOT_ENOUGH_REPLICAS
    world.end(ids, commit=True)
    world.host.refusals = {("__transaction_state", 0): E.NOT_ENOUGH_REPLICAS}
    world.advance(1_000)
    assert kinds(world)[B] == ["COMMIT"]
    assert world.state() == "PrepareCommit"
    world.host.refusals.clear()
    world.advance(100)
    assert world.state() == "CompleteCommit"
    assert kinds(world)[B] == ["COMMIT"]


@pytest.mark.parametrize(
    ("state", "kind"), [(S.PREPARE_COMMIT, "COMMIT"), (S.PREPARE_ABORT, "ABORT")]
)
def test_a_load_finishes_what_was_decided_with_its_own_coordinator_epoch(state, kind) -> None:
    host = MemoryHost.holding(build_metadata(state, partitions=frozenset({A, B})))
    host.create(*A)
    host.create(*B)
    host.logs["__transaction_state", 0].leader_epoch = 4
    world = World(ONE, host=host)
    assert world.state() == ("CompleteCommit" if kind == "COMMIT" else "CompleteAbort")
    for partition in (A, B):
        (marker,) = host.logs[partition].markers()
        assert (marker.marker_type.name, marker.coordinator_epoch) == (kind, 4)
        assert (marker.producer_id, marker.producer_epoch) == (5, 3)


def test_a_load_at_the_overflow_goes_on_with_the_next_producer_id() -> None:
    metadata = build_metadata(
        S.PREPARE_COMMIT, producer_epoch=32767, next_producer_id=88,
        client_transaction_version=2, partitions=frozenset({A}),
    )  # fmt: skip
    host = MemoryHost.holding(metadata)
    host.create(*A)
    world = World(ONE, host=host)
    described = world.transactions.describe("t")
    assert (described.state, described.producer_id, described.producer_epoch) == (
        "CompleteCommit", 88, 0,
    )  # fmt: skip


def test_the_last_record_of_an_id_wins_and_a_tombstone_removes_it() -> None:
    host = MemoryHost.holding(
        build_metadata(S.ONGOING, transactional_id="t"),
        build_metadata(S.COMPLETE_ABORT, transactional_id="t"),
        build_metadata(S.EMPTY, transactional_id="u"),
    )
    log = host.logs["__transaction_state", 0]
    log.add(records.encode_batch([Record(b"\x00\x00\x00\x01u", None, NOW_MS)]))
    log.add(records.encode_batch([Record(b"\x00\x09unknown kind", b"x", NOW_MS)]))
    world = World(ONE, host=host)
    rows = world.transactions.list_transactions(NOW_MS, TransactionFilters()).transactions
    assert [(row.transactional_id, row.state) for row in rows] == [("t", "CompleteAbort")]


@pytest.mark.parametrize(
    "value", [b"\x00\x02from the future", b"\x00\x01\x00", b"", b"\x00\x00" + b"\xff" * 40]
)
def test_a_log_that_cannot_be_understood_is_not_guessed_at(value) -> None:
    host = MemoryHost()
    key = b"\x00\x00\x00\x01t"
    host.logs["__transaction_state", 0].add(records.encode_batch([Record(key, value, NOW_MS)]))
    world = World(ONE, host=host)
    assert world.init().error is E.NOT_COORDINATOR


def test_a_load_stops_the_retries_of_the_life_before() -> None:
    world = build_world()
    ids = world.init()
    fill(world, ids, version=2)
    world.host.refusals[B] = E.NOT_ENOUGH_REPLICAS
    world.end(ids, commit=True)
    world.step(world.transactions.unload, 0)
    world.host.refusals.clear()
    world.advance(1_000)
    assert kinds(world)[B] == []
    world.step(world.transactions.load, 0, world.host.logs["__transaction_state", 0])
    assert world.state() == "CompleteCommit"
    # The partitions that had their marker got it again: the log makes that harmless.
    assert kinds(world) == {A: ["COMMIT"] * 2, B: ["COMMIT"], OFFSETS: ["COMMIT"] * 2}
    assert world.offset(stable=True) == (7, E.NONE)
