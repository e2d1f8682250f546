"""The simulator's own parts: what they promise, before anything is concluded from a run."""

import contextlib
import random

import pytest
from support.histories.transaction_records import state_record

from broker_sim.core.effects import Append, Delete, Flush, Rename, Truncate, WriteFile
from simulation.checkers.log_oracle import LogOracle
from simulation.hosts.disk import SimDisk
from simulation.hosts.scheduler import Scheduler
from simulation.load.background_load import BackgroundLoad
from simulation.load.routing import Routing
from simulation.scenario import ScenarioError
from simulation.scenario_loading import draw_random, load_scenario, parse_scenario, scenario_names
from simulation.violation import Violation
from txnlog_kafka.wire.invariants import InvariantViolation
from txnlog_kafka.wire.records import (
    MarkerType,
    Record,
    TransactionMarker,
    encode_batch,
    encode_marker,
    stamp_offsets,
)


def test_events_of_one_instant_run_in_the_order_of_their_scheduling():
    scheduler, seen = Scheduler(), []
    for number in (1, 2, 3):
        scheduler.after(5, lambda number=number: seen.append(number))
    scheduler.after(4, lambda: seen.append(0))
    scheduler.after(5, lambda: seen.append(9)).cancel()
    assert not scheduler.run_until(lambda: False, limit_us=10)
    assert (seen, scheduler.now_us) == ([0, 1, 2, 3], 10)


def filled_disk():
    disk = SimDisk()
    disk.apply(Append("a/1.log", 0, b"abc"))
    disk.apply(Flush(("a/1.log",)))
    disk.apply(Append("a/1.log", 3, b"defgh"))
    disk.apply(Append("a/2.log", 0, b"xyz"))
    disk.apply(WriteFile("a/meta", b"m"))
    return disk


def test_the_disk_shows_what_was_written_until_power_is_lost():
    disk = filled_disk()
    assert disk.read("a/1.log", 2, 100) == b"cdefgh"
    assert (disk.size_bytes("a/2.log"), disk.size_bytes("no")) == (3, None)
    assert disk.list("a") == ("1.log", "2.log", "meta")
    assert disk.list("") == ("a",)


def test_a_loss_of_power_keeps_what_was_flushed_and_any_prefix_of_the_rest():
    seen = set()
    for seed in range(60):
        disk = filled_disk()
        disk.lose_power(random.Random(seed))
        content = disk.read("a/1.log", 0, 100)
        assert content.startswith(b"abc")
        assert b"abcdefgh".startswith(content)
        assert disk.read("a/meta", 0, 9) == b"m"
        seen.add((len(content), disk.size_bytes("a/2.log")))
    assert (3, None) in seen
    assert (8, 3) in seen
    assert len(seen) > 8


def test_truncate_rename_and_delete_do_what_their_names_say():
    disk = filled_disk()
    disk.apply(Truncate("a/1.log", 1))
    disk.apply(Rename("a", "b"))
    disk.apply(Delete("b/2.log"))
    assert (disk.list("b"), disk.read("b/1.log", 0, 9)) == (("1.log", "meta"), b"a")
    disk.lose_power(random.Random(1))
    assert disk.read("b/1.log", 0, 9) == b"a"
    disk.apply(Delete("b"))
    assert disk.list("") == ()


def test_an_append_that_is_not_at_the_end_is_our_own_bug():
    with pytest.raises(InvariantViolation, match="gap or overwrites"):
        filled_disk().apply(Append("a/1.log", 3, b"x"))


def batch(base_offset, **producer):
    data = bytearray(encode_batch([Record(b"k", b"v")], transactional=True, **producer))
    stamp_offsets(data, 0, base_offset=base_offset, leader_epoch=0)
    return bytes(data)


def ids(epoch, sequence, producer_id=7):
    return {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}


def recorded(oracle, *topics):
    """The coordinator has recorded partitions of these topics for producer 7."""
    data = state_record("ongoing", 0, *topics)
    oracle.watch(Append("__transaction_state-0/0.log", 0, data))


@pytest.mark.invariant(2, 13, 15, 19, 23)
def test_the_oracle_names_each_broken_rule_of_a_log():
    good = batch(0, **ids(1, 0))
    marker = bytearray(encode_marker(TransactionMarker(7, 1, MarkerType.COMMIT, 0), timestamp=1))
    stamp_offsets(marker, 0, base_offset=1, leader_epoch=0)
    plain = bytearray(encode_batch([Record(b"k", b"v")], **ids(1, 1)))
    stamp_offsets(plain, 0, base_offset=1, leader_epoch=0)
    cases = {
        "invariant 2:": batch(2, **ids(1, 1)),
        "invariant 13:": batch(1, **ids(1, 2)),
        "invariant 15:": batch(1, **ids(0, 1)),
        "invariant 19:": bytes(marker),
        "invariant 23:": bytes(plain),
    }
    for expected, bad in cases.items():
        oracle = LogOracle(SimDisk())
        recorded(oracle, "t")
        assert oracle.watch(Append("t-0/0.log", 0, good)) == ["data"]
        with pytest.raises(Violation, match=expected):
            oracle.watch(Append("t-0/0.log", len(good), bad))


def test_the_oracle_forgets_a_partition_whose_files_are_cut_or_removed_and_no_other():
    disk = SimDisk()
    oracle = LogOracle(disk)
    recorded(oracle, "t", "t.x")
    first, second = batch(0, **ids(1, 0)), batch(1, **ids(1, 1))
    for directory in ("t-0", "t-1", "t.x-2"):
        for position, data in ((0, first), (len(first), second)):
            append = Append(f"{directory}/0.log", position, data)
            disk.apply(append)
            oracle.watch(append)
    for operation in (Truncate("t-0/0.log", len(first)), Delete("t.x-2"), Rename("t-1", "t-3")):
        disk.apply(operation)
        oracle.watch(operation)
    undecided = [("t-0", 7, 0), ("t-3", 7, 0)]
    assert oracle.open_transactions() == undecided
    assert oracle.watch(Append("t-0/0.log", len(first), second)) == ["data"]
    assert oracle.watch(Append("t-3/0.log", 9, batch(2, **ids(1, 2)))) == ["data"]
    assert oracle.watch(Append("t.x-2/0.log", 0, first)) == ["data"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (([b"1", b"2"], [b"1"]), "invariant 20: intermediate-read .* a part"),
        (([b"1", b"1"], [b"1", b"1"]), "invariant 22: .* answered as committed is not there once"),
        (([b"2"], [b"2"]), "invariant 22: .* answered as committed is not there once"),
        (([b"1", b"3"], [b"1", b"3"]), "invariant 22: .* committed that no producer committed"),
        (([b"1", b"2"], [b"1", b"2"]), None),
    ],
)
def test_what_neighbours_were_answered_is_held_against_what_is_there(values, expected):
    neighbours = BackgroundLoad(1, seed=1, new_places=lambda: Routing(1), stamp_ms=-1,
                               now_ms=lambda: 0, may_go_on=lambda: True)  # fmt: skip
    (member,) = neighbours._members
    member.committed, member.aborted = {1}, {3}
    found = [[Record(b"neighbour-0", value) for value in part] for part in values]
    with pytest.raises(Violation, match=expected) if expected else contextlib.nullcontext():
        neighbours.check(found)


def test_a_scenario_with_an_unknown_field_is_refused_by_name():
    for text, said in {
        "chaos = 1": "x: no field chaos",
        "[faults.broker]\ncrush = 1": r"x: no field faults\.broker\.crush",
        "[faults.broker.crash]\nmore = 1": r"x: no field faults\.broker\.crash\.more",
        "faults = 1": "x: no field faults",
        '[[planned]]\nonn = "marker"': r"x, \[\[planned\]\]: no field onn",
        '[planned]\non = "marker"': r"x: a planned fault is a table \[\[planned\]\]",
    }.items():
        with pytest.raises(ScenarioError, match=f"^scenario {said}$"):
            parse_scenario("x", text)


def test_every_scenario_file_can_be_read_and_says_what_it_is_about():
    assert len(scenario_names()) >= 10
    for name in scenario_names():
        assert load_scenario(name, 0).description


@pytest.mark.invariant(51)
def test_the_random_scenario_turns_each_kind_of_fault_on_and_off():
    drawn = [draw_random(seed).values() for seed in range(50)]
    for kind in (
        "broker.crash", "driver.kill", "driver.pause", "network.connection_loss", "network.spike",
    ):  # fmt: skip
        strengths = {values[f"faults.{kind}"] > 0 for values in drawn}
        assert strengths == {True, False}, kind
