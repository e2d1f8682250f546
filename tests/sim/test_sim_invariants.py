"""Each check of the simulator fails for what breaks its invariant: by the numbers it prints."""

from types import SimpleNamespace

import pytest
from support.histories.transaction_records import state_record, tombstone

from broker_sim.core.broker import CHECKPOINT_TIMER
from broker_sim.core.effects import Append, Effects
from broker_sim.core.handlers import HANDLERS
from broker_sim.core.replica.delayed_fetch import FETCH_TIMER, DelayedFetches
from broker_sim.core.replica.delayed_produce import PRODUCE_TIMER
from broker_sim.core.replica.fetch_session import FetchContext
from broker_sim.registry.sessions import SESSION_TIMER
from broker_sim.registry.waits import WAIT_TIMER
from simulation import world
from simulation.checkers import leak_check
from simulation.checkers.fetch_oracle import check_aborted, check_last_stable_offset
from simulation.checkers.invariants import (
    FinalState,
    Observations,
    check_decided_batches,
    check_exactly_once,
    check_groups,
    check_observed,
    check_order,
)
from simulation.checkers.log_oracle import LogOracle, check_compaction
from simulation.checkers.producer_history import ProducerHistory
from simulation.cli import run_seed
from simulation.hosts.disk import SimDisk
from simulation.load import running
from simulation.scenario import QuerySettings
from simulation.violation import Violation
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.records import (
    DELETE_HORIZON_MASK,
    HEADER_BYTES,
    MarkerType,
    Record,
    TransactionMarker,
    encode_batch,
    encode_header,
    encode_marker,
    iter_batches,
    refresh_crc,
    stamp_offsets,
)
from txnlog_kafka.wire.topic_partition import TopicPartition

PLACE = TopicPartition("out", 0)
SOURCE = SimpleNamespace(ends={TopicPartition("in", 0): 2}, output_partition=lambda key: 0)


def row(position: int, at: int, partition: int = 0) -> Record:
    return Record(b"k", b"%d:%d:run:1" % (partition, position), record_offset=at)


def final(*records: Record, group: int = 2, progress: int = 1) -> FinalState:
    groups = {"g": {("in", 0): group}, "g.progress": {("in", 0): progress}}
    return FinalState({PLACE: list(records)}, {}, groups)


def deployment(*commits: int, done: int = 0) -> SimpleNamespace:
    noted = {"offsets": [0], "commits": list(commits)}
    options = SimpleNamespace(group_id="g")
    return SimpleNamespace(
        options=options,
        sinks=[options],
        progress_group_at=lambda checkpoint, sink: "g.progress",
        original=None,
        last_written=lambda checkpoint: 0,
        source=SimpleNamespace(ends={("in", 0): 2}, settings=QuerySettings()),
        progress_groups=lambda: {"q": "g.progress"},
        done_batches=lambda: {"g.progress": done},
        finished=SimpleNamespace(tail_losses=0, is_whole=True, query_id="q", batches=noted.get),
    )


def check_rows(found: FinalState) -> None:
    check_exactly_once(SOURCE, found, ["out"], {})


def observed(value: bytes) -> Observations:
    return Observations(committed={(PLACE, 0): value})


def given(*processes: str) -> None:
    request = APIS[ApiKey.INIT_PRODUCER_ID].request(transactional_id="t")
    answer = SimpleNamespace(error_code=0, producer_id=7, producer_epoch=1)
    history = ProducerHistory()
    for process in processes:
        history.on_answer(process, request, answer, 5)


def test_a_clean_history_breaks_nothing() -> None:
    good = final(row(0, 0), row(1, 1))
    check_exactly_once(SOURCE, good, ["out"], {})
    check_order(good)
    given("a", "a")
    check_observed(observed(b"0:0:run:1"), good)
    check_groups(deployment(0), good)


@pytest.mark.invariant(37)
def test_a_copy_of_a_finished_checkpoint_has_no_offsets() -> None:
    copy = deployment(0)
    copy.original = deployment(0)
    copy.last_written = lambda checkpoint: -1
    done_before = final(row(0, 0), row(1, 1))
    done_before.groups["g"].clear()
    check_groups(copy, done_before)
    with pytest.raises(Violation, match="invariant 37: the group is not at the input's end"):
        check_groups(copy, final())


@pytest.mark.invariant(1, 16, 21, 31, 35, 37, 40)
@pytest.mark.parametrize(
    ("number", "check"),
    [
        (1, lambda: observed(b"0:1:run:1").on_records(PLACE, [row(0, 0)])),
        (16, lambda: given("a", "b")),
        (21, lambda: check_observed(observed(b"0:0:run:1"), final())),
        (31, lambda: Observations(groups={"g": {("t", 0): 5}}).on_group("g", {("t", 0): 4}, 0)),
        (31, lambda: Observations(groups={"g": {("t", 0): 5}}).on_group("g", {}, 0)),
        (35, lambda: check_rows(final(row(0, 0)))),
        (35, lambda: check_rows(final(row(0, 0), row(1, 1), row(1, 2)))),
        (35, lambda: check_rows(final(row(0, 0), row(1, 1), row(2, 2)))),
        (35, lambda: check_order(final(row(1, 0), row(0, 1)))),
        (35, lambda: check_rows(final(Record(b"k", b"0:0:run")))),
        (
            35,
            lambda: check_decided_batches(
                SimpleNamespace(committed=[("q", "a", "0 plan"), ("q", "b", "0 plan")])
            ),
        ),
        (37, lambda: check_groups(deployment(0), final(group=1))),
        (37, lambda: check_groups(deployment(0), final(progress=0))),
        (37, lambda: check_groups(deployment(), final())),
        (40, lambda: check_groups(deployment(0, done=2), final())),
        (40, lambda: Observations().on_group("g", {("t", 0): 4}, 5)),
        (40, lambda: Observations().on_group("g", {}, 1)),
    ],
)
def test_what_clients_saw(number: int, check) -> None:
    with pytest.raises(Violation, match=f"^invariant {number}:"):
        check()


def open_batch() -> bytes:
    ids = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 0}
    data = bytearray(encode_batch([Record(b"k", b"v")], transactional=True, **ids))
    stamp_offsets(data, 0, base_offset=0, leader_epoch=0)
    return bytes(data)


@pytest.mark.invariant(12, 25, 28)
@pytest.mark.parametrize(
    ("number", "appends"),
    [
        (12, [("t-0", open_batch()[:-1])]),
        (28, [("__transaction_state-0", state_record("prepare-commit", 0)),
              ("__transaction_state-0", state_record("ongoing", 1))]),
        (28, [("__transaction_state-0", state_record("ongoing", 0)),
              ("__transaction_state-0", tombstone(1))]),
        (25, [("__transaction_state-0", state_record("ongoing", 0, "t")),
              ("t-0", open_batch()),
              ("__transaction_state-0", state_record("prepare-commit", 1)),
              ("__transaction_state-0", state_record("complete-commit", 2))]),
    ],
)  # fmt: skip
def test_what_lies_in_the_logs(number: int, appends: list[tuple[str, bytes]]) -> None:
    oracle, sizes = LogOracle(SimDisk()), dict.fromkeys(dict(appends), 0)
    with pytest.raises(Violation, match=f"^invariant {number}:"):
        for directory, data in appends:
            oracle.watch(Append(f"{directory}/0.log", sizes[directory], data))
            sizes[directory] += len(data)


def run_of(scenario: str, number: int) -> None:
    failure = run_seed(0, scenario).failure or ""
    assert failure.startswith(f"invariant {number}:"), failure


@pytest.mark.invariant(42)
def test_a_handler_that_raises(monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setitem(HANDLERS, ApiKey.END_TXN, broken)
    run_of("calm", 42)


@pytest.mark.invariant(43)
def test_a_transaction_that_is_never_decided(monkeypatch) -> None:
    def undecided(_places):
        yield from ()
        return ["t"]

    monkeypatch.setattr(world, "read_undecided", undecided)
    run_of("calm", 43)


@pytest.mark.invariant(38)
def test_a_skipped_batch_that_sends_what_only_a_new_one_may(monkeypatch) -> None:
    # In place of a Produce: what a skipped batch does send.
    monkeypatch.setattr(running, "PRODUCE", "OffsetFetch")
    run_of("driver_dies_before_commit_log", 38)


@pytest.mark.invariant(51)
def test_an_expected_outcome_that_does_not_happen(tmp_path) -> None:
    path = tmp_path / "vain.toml"
    path.write_text("[expect]\nskipped = 1\n", encoding="utf-8")
    run_of(str(path), 51)


def sent(value: bytes, sequence: int = 0) -> object:
    records = encode_batch([Record(b"k", value)], producer_id=7, producer_epoch=1,
                           base_sequence=sequence)  # fmt: skip
    request = APIS[ApiKey.PRODUCE].request
    part = request.TopicProduceData.PartitionProduceData(index=0, records=records)
    topic = request.TopicProduceData(name="t", partition_data=[part])
    return request(topic_data=[topic])


@pytest.mark.invariant(18)
def test_another_batch_with_a_sequence_that_was_sent() -> None:
    history = ProducerHistory()
    for request in (sent(b"a"), sent(b"a"), sent(b"b", 1)):
        history.on_sent(request)
    with pytest.raises(Violation, match=r"^invariant 18:"):
        history.on_sent(sent(b"b"))


def marker(kind: MarkerType, base_offset: int, epoch: int = 1) -> bytes:
    data = bytearray(encode_marker(TransactionMarker(7, epoch, kind, 0), timestamp=0))
    stamp_offsets(data, 0, base_offset=base_offset, leader_epoch=0)
    return bytes(data)


ABORT, COMMIT = MarkerType


@pytest.mark.invariant(50)
def test_a_marker_that_is_compacted_away_before_its_time() -> None:
    def compacted(old: bytes, new: bytes) -> None:
        disk, log = SimDisk(), "t-0/00000000000000000000.log"
        disk.apply(Append(log, 0, old))
        disk.apply(Append(f"{log}.swap", 0, new))
        check_compaction(disk, f"{log}.swap")

    ended = marker(MarkerType.ABORT, 1)
    header = next(iter_batches(ended))[0]
    due = bytearray(ended)
    due[:HEADER_BYTES] = encode_header(
        header._replace(attributes=header.attributes | DELETE_HORIZON_MASK)
    )
    refresh_crc(due, 0, len(due))
    last = marker(MarkerType.ABORT, 2)
    compacted(ended + last, ended + last)
    compacted(bytes(due) + last, last)
    compacted(ended, b"")
    with pytest.raises(Violation, match=r"^invariant 50:"):
        compacted(ended + last, last)


def logged(*appends: bytes, states: tuple[str, ...] = ("ongoing",), newest: int = -1) -> LogOracle:
    """Return an oracle that saw this transaction log, then producer 7's appends to t-0."""
    oracle, size = LogOracle(SimDisk(), {7: newest}), 0
    for number, state in enumerate(states):
        data = state_record(state, number, "t")
        oracle.watch(Append("__transaction_state-0/0.log", number * len(data), data))
    for data in appends:
        oracle.watch(Append("t-0/0.log", size, data))
        size += len(data)
    return oracle


@pytest.mark.invariant(24)
def test_data_of_a_partition_that_was_not_recorded() -> None:
    logged(open_batch())
    with pytest.raises(Violation, match=r"^invariant 24:"):
        logged(open_batch(), states=())


@pytest.mark.invariant(39)
def test_data_that_are_committed_after_a_newer_epoch_was_given() -> None:
    states = "ongoing", "prepare-commit"
    logged(open_batch(), marker(COMMIT, 1), states=states, newest=1)
    logged(open_batch(), marker(ABORT, 1), states=("ongoing", "prepare-abort"), newest=2)
    with pytest.raises(Violation, match=r"^invariant 39:"):
        logged(open_batch(), marker(COMMIT, 1), states=states, newest=2)


def fetched(high_watermark: int, last_stable: int, *aborted: tuple[int, int]) -> SimpleNamespace:
    named = [SimpleNamespace(producer_id=p, first_offset=o) for p, o in aborted]
    return SimpleNamespace(
        high_watermark=high_watermark, last_stable_offset=last_stable, aborted_transactions=named
    )


@pytest.mark.invariant(26)
@pytest.mark.parametrize(
    ("appends", "right", "wrong"),
    [
        ((), (1, 0), (1, 1)),
        ((marker(COMMIT, 1),), (2, 2), (2, 0)),
        # The marker is not below the high watermark yet.
        ((marker(COMMIT, 1),), (1, 0), (1, 1)),
    ],
)
def test_a_last_stable_offset_that_is_another_one(
    appends: tuple[bytes, ...], right: tuple[int, int], wrong: tuple[int, int]
) -> None:
    oracle = logged(open_batch(), *appends, states=("ongoing", "prepare-commit"))
    history = oracle.history("t-0")
    check_last_stable_offset("t-0", history, fetched(*right))
    with pytest.raises(Violation, match=r"^invariant 26:"):
        check_last_stable_offset("t-0", history, fetched(*wrong))


@pytest.mark.invariant(27)
@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (ABORT, [(7, 0)], []),
        (ABORT, [(7, 0)], [(7, 0), (8, 0)]),
        (ABORT, [(7, 0)], [(7, 1)]),
        (COMMIT, [], [(7, 0)]),
    ],
)
def test_a_fetch_that_names_other_aborted_transactions(
    kind: MarkerType, right: list[tuple[int, int]], wrong: list[tuple[int, int]]
) -> None:
    state = f"prepare-{kind.name.lower()}"
    oracle = logged(open_batch(), marker(kind, 1), states=("ongoing", state))
    history = oracle.history("t-0")
    check_aborted("t-0", history, fetched(2, 2, *right), open_batch())
    with pytest.raises(Violation, match=r"^invariant 27:"):
        check_aborted("t-0", history, fetched(2, 2, *wrong), open_batch())


@pytest.mark.invariant(47)
def test_a_timer_that_nobody_takes_back(monkeypatch) -> None:
    monkeypatch.setattr(leak_check, "_STANDING", leak_check._STANDING - {"log-retention"})
    run_of("calm", 47)


def closed(*, is_left: bool, correlation_id: int | None = None) -> SimpleNamespace:
    """A client, and the request of it that is carried out."""
    connection = SimpleNamespace(is_left=is_left)
    return SimpleNamespace(connection=connection, correlation_id=correlation_id)


def waiting(**changed: object) -> SimpleNamespace:
    """A broker with a delayed fetch of connection 5."""
    fetches = DelayedFetches()
    message = SimpleNamespace(max_wait_ms=100)
    request = SimpleNamespace(connection_id=5, message=message)
    fetches.add(request, FetchContext({}), [], Effects(0, 0), is_for_replica=False)
    broker = SimpleNamespace(opened=SimpleNamespace(fetches=fetches))
    found = {
        "clients": {5: closed(is_left=False)},
        "timer_keys": ((FETCH_TIMER, "0"), CHECKPOINT_TIMER),
    }
    return SimpleNamespace(name="broker-0", is_up=True, broker=broker, **(found | changed))


@pytest.mark.invariant(47)
@pytest.mark.parametrize(
    "left",
    [
        {"clients": {}},
        {"clients": {5: closed(is_left=True)}},
        {"timer_keys": ()},
        {"timer_keys": ((FETCH_TIMER, "0"), (FETCH_TIMER, "1"))},
        {"timer_keys": ((FETCH_TIMER, "0"), (PRODUCE_TIMER, "0"))},
    ],
)
def test_what_a_broker_keeps_of_others(left: dict[str, object]) -> None:
    leak_check.check_leftovers({"broker-0": leak_check.left_over(waiting())})
    goes = waiting(clients={5: closed(is_left=True, correlation_id=1)})
    leak_check.check_leftovers({"broker-0": leak_check.left_over(goes)})
    with pytest.raises(Violation, match=r"^invariant 47:"):
        leak_check.check_leftovers({"broker-0": leak_check.left_over(waiting(**left))})


@pytest.mark.invariant(47)
@pytest.mark.parametrize(
    "left",
    [
        {"clients": {1: closed(is_left=True)}},
        {"timer_keys": ((SESSION_TIMER, "1"),)},
        {"timer_keys": tuple((SESSION_TIMER, f"{n}") for n in range(3))},
        {"timer_keys": tuple((n, "1") for n in (SESSION_TIMER, SESSION_TIMER, *3 * [WAIT_TIMER]))},
        {"timer_keys": tuple((n, "1") for n in (SESSION_TIMER, SESSION_TIMER, "other"))},
    ],
)
def test_what_the_registry_keeps_of_former_sessions(left: dict[str, object]) -> None:
    timers = tuple((name, "1") for name in (SESSION_TIMER, SESSION_TIMER, WAIT_TIMER))
    registry: dict[str, object] = {"clients": {}, "timer_keys": timers}
    assert leak_check.left_at_registry(SimpleNamespace(**registry), 2) == []
    assert leak_check.left_at_registry(SimpleNamespace(**registry | left), 2) != []
