"""Each check of the simulator fails for what breaks its invariant: by the numbers it prints."""

import struct
from types import SimpleNamespace

import pytest

from broker_sim.core.effects import Append
from broker_sim.core.handlers import HANDLERS
from broker_sim.sim import operator as operator_
from broker_sim.sim import world
from broker_sim.sim.cli import run_seed
from broker_sim.sim.disk import SimDisk
from broker_sim.sim.invariants import (
    FinalState,
    Observations,
    check_decided_batches,
    check_exactly_once,
    check_groups,
    check_observed,
    check_order,
    note_owner,
)
from broker_sim.sim.log_oracle import TRANSACTION_STATES, LogOracle
from broker_sim.sim.violation import Violation
from txnlog_spark.wire.messages import APIS, ApiKey
from txnlog_spark.wire.records import Record, encode_batch, stamp_offsets

SOURCE = SimpleNamespace(partitions=1, rows=2, output_partition=lambda key: 0)


def row(position: int, at: int, partition: int = 0) -> Record:
    return Record(b"k", b"%d:%d:run" % (partition, position), record_offset=at)


def final(*records: Record, group: int = 2, progress: int = 1) -> FinalState:
    groups = {"g": {("in", 0): group}, "g.progress": {("in", 0): progress}}
    return FinalState({0: list(records)}, {}, groups)


def operator(*commits: int) -> SimpleNamespace:
    noted = {"offsets": [0], "commits": list(commits)}
    return SimpleNamespace(
        options=SimpleNamespace(group_id="g"),
        source=SimpleNamespace(ends={("in", 0): 2}),
        progress_groups=lambda: {"q": "g.progress"},
        finished=SimpleNamespace(tail_losses=0, query_id="q", batches=noted.get),
    )


def observed(value: bytes) -> Observations:
    return Observations(committed={(0, 0): value})


def given(*processes: str) -> None:
    request = APIS[ApiKey.INIT_PRODUCER_ID].request(transactional_id="t")
    answer = SimpleNamespace(error_code=0, producer_id=7, producer_epoch=1)
    owners: dict[tuple[int, int], str] = {}
    for process in processes:
        note_owner(owners, process, request, answer, 5)


def test_a_clean_history_breaks_nothing() -> None:
    good = final(row(0, 0), row(1, 1))
    check_exactly_once(SOURCE, good)
    check_order(good)
    given("a", "a")
    check_observed(observed(b"0:0:run"), good)
    check_groups(operator(0), good)


@pytest.mark.invariant(1, 16, 21, 31, 35, 37)
@pytest.mark.parametrize(
    ("number", "check"),
    [
        (1, lambda: observed(b"0:1:run").on_records(0, [row(0, 0)])),
        (16, lambda: given("a", "b")),
        (21, lambda: check_observed(observed(b"0:0:run"), final())),
        (31, lambda: Observations(groups={"g": {("t", 0): 5}}).on_group("g", {("t", 0): 4})),
        (31, lambda: Observations(groups={"g": {("t", 0): 5}}).on_group("g", {})),
        (35, lambda: check_exactly_once(SOURCE, final(row(0, 0)))),
        (35, lambda: check_exactly_once(SOURCE, final(row(0, 0), row(1, 1), row(1, 2)))),
        (35, lambda: check_exactly_once(SOURCE, final(row(0, 0), row(1, 1), row(2, 2)))),
        (35, lambda: check_order(final(row(1, 0), row(0, 1)))),
        (
            35,
            lambda: check_decided_batches(
                SimpleNamespace(committed=[("q", "a", 0), ("q", "b", 0)])
            ),
        ),
        (37, lambda: check_groups(operator(0), final(group=1))),
        (37, lambda: check_groups(operator(0), final(progress=0))),
        (37, lambda: check_groups(operator(), final())),
    ],
)
def test_what_clients_saw(number: int, check) -> None:
    with pytest.raises(Violation, match=f"^invariant {number}:"):
        check()


def state_record(state: str, base_offset: int, producer_id: int = 7) -> bytes:
    value = struct.pack(">hqhib", 0, producer_id, 1, 1000, TRANSACTION_STATES.index(state))
    data = bytearray(encode_batch([Record(struct.pack(">hh", 0, 1) + b"t", value)]))
    stamp_offsets(data, 0, base_offset=base_offset, leader_epoch=0)
    return bytes(data)


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
        (25, [("t-0", open_batch()),
              ("__transaction_state-0", state_record("prepare-commit", 0)),
              ("__transaction_state-0", state_record("complete-commit", 1))]),
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
    monkeypatch.setattr(operator_, "PRODUCE", "OffsetFetch")
    run_of("driver_dies_before_commit_log", 38)


@pytest.mark.invariant(51)
def test_an_expected_outcome_that_does_not_happen(tmp_path) -> None:
    path = tmp_path / "vain.toml"
    path.write_text("[expect]\nskipped = 1\n", encoding="utf-8")
    run_of(str(path), 51)
