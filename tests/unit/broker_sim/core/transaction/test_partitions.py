"""Adding and verifying partitions, timeouts, expiry, and what the admin requests show."""

from __future__ import annotations

import pytest
from support.core.coordinators import FIRST_ID, NOW_MS, STATE, A, B, World, build_metadata

from broker_sim.core.coordinator.partition_writer import PartitionWriter
from broker_sim.core.transaction import TransactionCoordinator
from broker_sim.core.transaction.metadata import EPOCH_LAST
from broker_sim.core.transaction.results import ProducerIdResult, TransactionFilters
from broker_sim.core.transaction.states import TransactionState
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.records import PRODUCER_EPOCH_MAX

S, E = TransactionState, ErrorCode
PID, EPOCH = 5, 3
OWN = ProducerIdResult(E.NONE, PID, EPOCH)


def build_world(state: S, version: int = 2, **more) -> World:
    return World({"transaction.version": version}, transactions=[build_metadata(state, **more)])


def verify(world: World, ids: ProducerIdResult, *partitions, transactional_id: str = "t"):
    return world.transactions.verify_partitions(
        transactional_id, partitions, producer_id=ids.producer_id,
        producer_epoch=ids.producer_epoch,
    )  # fmt: skip


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_the_first_partition_begins_the_transaction_and_its_clock(state) -> None:
    world = build_world(state)
    assert world.begin(OWN, A) is E.NONE
    described = world.transactions.describe("t")
    assert (described.state, described.start_ms) == ("Ongoing", world.now_ms)
    assert described.partitions == (A,)
    began_ms = world.now_ms
    world.advance(500)
    assert world.begin(OWN, B) is E.NONE
    described = world.transactions.describe("t")
    assert (described.partitions, described.start_ms) == ((A, B), began_ms)


def test_partitions_that_are_there_are_added_without_a_write() -> None:
    world = build_world(S.ONGOING, partitions=frozenset({A, B}))
    before = len(world.operations)
    assert world.begin(OWN, A) is E.NONE
    assert world.begin(OWN, A, B) is E.NONE
    assert len(world.operations) == before


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (ProducerIdResult(E.NONE, PID + 1, EPOCH), E.INVALID_PRODUCER_ID_MAPPING),
        (ProducerIdResult(E.NONE, PID, EPOCH - 1), E.PRODUCER_FENCED),
        (ProducerIdResult(E.NONE, PID, EPOCH + 1), E.PRODUCER_FENCED),
    ],
)
@pytest.mark.parametrize("state", [S.EMPTY, S.ONGOING, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_another_identity_is_refused_in_every_state(state, ids, expected) -> None:
    world = build_world(state)
    assert world.begin(ids, A) is expected
    assert set(verify(world, ids, A, B).values()) == {expected}
    assert world.state() == state.label


@pytest.mark.parametrize("commit", [True, False])
def test_while_markers_are_written_nobody_can_add(commit) -> None:
    world = World()
    ids = world.init()
    world.begin(ids, A)
    world.refuse(*A, E.NOT_LEADER_OR_FOLLOWER)
    after = world.end(ids, commit=commit)
    assert world.begin(after, A) is E.CONCURRENT_TRANSACTIONS
    assert verify(world, after, A) == {A: E.CONCURRENT_TRANSACTIONS}
    # The transition under way is named before a wrong identity, for the id may be changing.
    other = ProducerIdResult(E.NONE, PID, 0)
    assert world.begin(other, A) is E.CONCURRENT_TRANSACTIONS
    assert verify(world, other, A) == {A: E.INVALID_PRODUCER_ID_MAPPING}


@pytest.mark.parametrize(
    ("transactional_id", "expected"),
    [("", E.INVALID_REQUEST), ("unknown", E.INVALID_PRODUCER_ID_MAPPING)],
)
def test_an_empty_or_unknown_transactional_id(transactional_id, expected) -> None:
    world = World()
    assert world.begin(OWN, A, name=transactional_id) is expected
    assert verify(world, OWN, A, transactional_id=transactional_id) == {A: expected}


def test_verification_tells_partitions_of_the_transaction_from_others() -> None:
    world = build_world(S.ONGOING, partitions=frozenset({A}))
    assert verify(world, OWN, A, B) == {A: E.NONE, B: E.TRANSACTION_ABORTABLE}


@pytest.mark.parametrize("version", [0, 2])
def test_a_forged_last_epoch_gets_as_far_as_in_kafka_and_no_epoch_overflows(version) -> None:
    """A client that names the last epoch, 32767, is treated as its holder.

    On a cluster of version 1 a fence at the last epoch leaves 32767 in the log, although no client
    was given it. A client that names 32767 can only abort in version 2.
    """
    world = build_world(S.ONGOING, 1, producer_epoch=EPOCH_LAST, partitions=frozenset({A}))
    assert world.init().error is E.CONCURRENT_TRANSACTIONS
    assert world.transactions.describe("t").producer_epoch == PRODUCER_EPOCH_MAX
    reserved = ProducerIdResult(E.NONE, PID, PRODUCER_EPOCH_MAX)
    assert world.begin(reserved, A, version=version) is E.NONE
    committed = world.end(reserved, commit=True, version=version)
    if version == 0:
        assert committed.error is E.NONE
        assert (
            world.init(producer_id=PID, producer_epoch=PRODUCER_EPOCH_MAX).producer_id == FIRST_ID
        )
    else:
        assert (committed.error, world.state()) == (E.UNKNOWN_SERVER_ERROR, "Ongoing")
        assert world.end(reserved, commit=False) == ProducerIdResult(E.NONE, FIRST_ID, 0)
        assert world.state() == "CompleteAbort"


def test_a_timeout_at_the_last_epoch_ends_the_transaction_in_version_2() -> None:
    world = build_world(S.ONGOING, producer_epoch=PRODUCER_EPOCH_MAX, partitions=frozenset({A}))
    assert world.init().error is E.CONCURRENT_TRANSACTIONS
    assert world.init() == ProducerIdResult(E.NONE, FIRST_ID, 1)


# ---------------------------------------------------------------- timeouts and expiry


@pytest.mark.invariant(43)
@pytest.mark.parametrize(("server", "version"), [(1, 0), (2, 2)])
def test_a_timed_out_transaction_is_aborted_and_its_producer_fenced(server, version) -> None:
    world = World({"transaction.version": server})
    ids = world.init(timeout_ms=15_000)
    assert world.begin(ids, A, version=version) is E.NONE
    world.produce_in(ids, A)
    world.advance(15_000)
    assert world.state() == "Ongoing"
    world.advance(10_000)
    assert world.state() == "CompleteAbort"
    (marker,) = world.markers(A)
    assert (marker.marker_type.name, marker.producer_epoch) == ("ABORT", ids.producer_epoch + 1)
    assert world.begin(ids, A, version=version) is E.PRODUCER_FENCED
    late = world.end(ids, commit=True, version=version).error
    assert late is (E.PRODUCER_FENCED if version == 0 else E.INVALID_TXN_STATE)
    world.advance(60_000)
    assert len(world.markers(A)) == 1


def test_the_sweep_leaves_young_settled_and_deciding_transactions_alone() -> None:
    world = World()
    ids = world.init(timeout_ms=50_000)
    assert world.begin(ids, A) is E.NONE
    world.advance(49_000)
    assert world.state() == "Ongoing"
    ids = world.end(ids, commit=True)
    world.advance(100_000)
    assert world.state() == "CompleteCommit"
    world.refuse(*A, E.NOT_ENOUGH_REPLICAS)
    assert world.begin(ids, A) is E.NONE
    assert world.end(ids, commit=True).error is E.NONE
    world.advance(100_000)
    assert world.state() == "PrepareCommit"


def test_a_sweep_that_cannot_write_tries_again() -> None:
    world = World()
    ids = world.init(timeout_ms=1)
    assert world.begin(ids, A) is E.NONE
    world.refuse(*STATE, E.NOT_ENOUGH_REPLICAS)
    world.advance(30_000)
    assert world.state() == "Ongoing"
    world.refusals.clear()
    world.advance(10_000)
    assert world.state() == "CompleteAbort"
    assert len(world.markers(A)) == 1


DAY_MS = 86_400_000


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_an_idle_id_expires_with_a_tombstone(state) -> None:
    world = build_world(state, last_update_ms=NOW_MS)
    world.advance(7 * DAY_MS - 3_600_000)
    assert world.transactions.describe("t").error is E.NONE
    world.advance(2 * 3_600_000)
    assert world.transactions.describe("t").error is E.TRANSACTIONAL_ID_NOT_FOUND
    assert world.crashed().transactions.describe("t").error is E.TRANSACTIONAL_ID_NOT_FOUND
    assert world.begin(OWN, A) is E.INVALID_PRODUCER_ID_MAPPING
    assert world.init() == ProducerIdResult(E.NONE, FIRST_ID, 0)


def test_tombstones_go_in_batches_that_no_limit_of_the_topic_refuses() -> None:
    names = [f"{number}-{'x' * 3000}" for number in range(40)]
    world = World(
        transactions=[
            build_metadata(S.EMPTY, transactional_id=name, last_update_ms=0) for name in names
        ]
    )
    written = len(world.stored(STATE))
    world.advance(3_600_000)
    tombstones = world.stored(STATE)[written:]
    assert max(map(len, tombstones)) <= 16_384
    assert len(tombstones) < len(names) / 4
    assert {world.transactions.describe(name).error for name in names} == {
        E.TRANSACTIONAL_ID_NOT_FOUND
    }


def test_an_expiry_that_cannot_be_written_leaves_the_id_usable() -> None:
    world = build_world(S.EMPTY, last_update_ms=0)
    world.refuse(*STATE, E.NOT_ENOUGH_REPLICAS)
    world.advance(3_600_000)
    world.refusals.clear()
    assert world.begin(OWN, A) is E.NONE


# ---------------------------------------------------------------- admin


def test_describe_shows_the_partitions_that_still_want_their_marker() -> None:
    world = World()
    ids = world.init(timeout_ms=5_000)
    assert world.begin(ids, A, B) is E.NONE
    world.refuse(*B, E.NOT_LEADER_OR_FOLLOWER)
    assert world.end(ids, commit=True).error is E.NONE
    described = world.transactions.describe("t")
    assert (described.state, described.partitions) == ("PrepareCommit", (B,))
    assert described.timeout_ms == 5_000


def test_describe_of_an_empty_or_unknown_id() -> None:
    world = World()
    assert world.transactions.describe("").error is E.INVALID_REQUEST
    assert world.transactions.describe("t").error is E.TRANSACTIONAL_ID_NOT_FOUND


def test_list_filters_by_state_producer_duration_and_pattern() -> None:
    world = World()
    ids = {name: world.init(name) for name in ("t", "u", "v")}
    assert world.begin(ids["t"], A) is E.NONE
    world.advance(2_000)

    def listing(**filters):
        return world.transactions.list_transactions(world.now_ms, TransactionFilters(**filters))

    def names(**filters) -> list[str]:
        return [row.transactional_id for row in listing(**filters).transactions]

    assert names() == ["t", "u", "v"]
    assert names(states=["Ongoing"]) == ["t"]
    assert names(states=["Empty", "Nonsense"]) == ["u", "v"]
    assert listing(states=["Nonsense", "Nonsense"]).unknown_state_filters == ("Nonsense",)
    assert names(producer_ids=[ids["u"].producer_id]) == ["u"]
    assert names(states=["Ongoing"], running_for_ms=1_999) == ["t"]
    assert names(states=["Ongoing"], running_for_ms=2_000) == []
    assert names(id_pattern="[tv]") == ["t", "v"]
    assert names(id_pattern="") == ["t", "u", "v"]


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("app-.*", True),
        ("app", False),  # the whole id, as RE2/J's `matches`
        (r"(?i)APP-\p{L}+\d", True),
        (r"\Qapp-é1\E", True),
        ("(.*)(.*)(.*)(.*)(.*)b", False),  # backtracking would not end
    ],
)
def test_a_pattern_lists_the_ids_that_match_as_a_whole(pattern: str, matches: bool) -> None:
    world = World()
    world.init("app-é1")
    world.init("a" * 3000)
    listing = world.transactions.list_transactions(0, TransactionFilters(id_pattern=pattern))
    assert [row.transactional_id for row in listing.transactions] == ["app-é1"] * matches


@pytest.mark.parametrize(
    "pattern", ["[", "(", "a**", r"\y", "(?=a)", r"(a)\1", "a{1001}", "((a{99}){99}){99}"]
)
def test_a_pattern_that_is_not_of_re2_is_refused(pattern: str, capfd) -> None:
    world = World()
    listing = world.transactions.list_transactions(0, TransactionFilters(id_pattern=pattern))
    assert listing.error is E.INVALID_REGULAR_EXPRESSION
    assert capfd.readouterr().err == ""


def test_before_the_start_admin_requests_are_not_available() -> None:
    world = World()
    parts = world.parts
    coordinator = TransactionCoordinator(
        world.config, PartitionWriter(parts.logs, parts.replicas), parts.markers, world
    )
    told = [coordinator.describe("t"), coordinator.list_transactions(0, TransactionFilters())]
    assert {each.error for each in told} == {E.COORDINATOR_NOT_AVAILABLE}
