"""The witnesses of a simulated consumer group: each is shown a history that must not be."""

import pytest

from broker_sim.core.group.offsets import OffsetStore
from simulation import broker_options
from simulation.checkers.group_history import Committed, GroupHistory, metadata_of
from simulation.cli import run_seed
from simulation.violation import Violation
from txnlog_kafka.wire.records import Record


def committed(offset, generation=1):
    return Committed(offset, generation, metadata_of(generation, offset))


def history():
    made = GroupHistory()
    made.on_assigned(1, "a", [0, 1])
    made.on_processed(0, records(3))
    newest = made.on_commit_sent(1, {0: 3})
    made.on_committed(1, newest)
    made.on_durable({0: 3})
    return made


def records(count):
    return [Record(b"n", b"%d" % n, record_offset=n) for n in range(count)]


def copies(*names):
    return [Record(b"c", name.encode(), record_offset=n) for n, name in enumerate(names)]


def test_a_clean_history_breaks_nothing():
    good = history()
    good.on_assigned(1, "a", [0, 1])
    good.on_assigned(2, "b", [0, 1])
    good.on_stable_read({0: committed(3)}, {0: 3})
    good.check_processed(0, records(5))
    good.check_copied({0: records(5), 1: []}, copies("0:0", "0:1", "0:2"))


def old_generation(made):
    newest = made.on_commit_sent(1, {0: 4})
    made.on_committed(1, newest)
    made.on_assigned(2, "b", [0])
    made.on_committed(1, made.on_commit_sent(1, {0: 4}))


@pytest.mark.invariant(3, 20, 32, 33, 34, 74)
@pytest.mark.parametrize(
    ("number", "bad"),
    [
        (74, lambda made: made.on_assigned(1, "b", [1])),
        (33, old_generation),
        (33, lambda made: made.check_copied({0: records(1)}, copies("0:0", "0:0"))),
        (32, lambda made: made.on_stable_read({}, {0: 3})),
        (34, lambda made: made.on_stable_read({0: committed(3, generation=2)}, {})),
        (3, lambda made: made.on_durable({0: 4}) or made.check_processed(0, records(4))),
        (20, lambda made: made.check_copied({0: records(3)}, copies("0:0", "0:1"))),
        (20, lambda made: made.check_copied({0: records(2)}, copies("0:0", "0:1", "0:9"))),
    ],
)
def test_a_history_that_must_not_be_is_noticed(number, bad):
    with pytest.raises(Violation, match=f"^invariant {number}:"):
        bad(history())


def copying(*, found_before, found_after):
    """A copier that does not know of its commit, and stable reads before and after it began
    again."""
    made = GroupHistory()
    for offset in (2, 3):
        made.on_commit_sent(1, {0: offset})
    assert made.on_copy("b", {0: 3}) == b"00000000"
    assert made.on_copy("a", {0: 3}) == b"00000001"
    made.on_stable_read(found_before, {}, made.initialised)
    made.on_initialised("b")
    made.on_stable_read(found_before, {}, made.initialised)
    made.on_initialised("a")
    made.on_stable_read(found_after, {}, made.initialised)
    return made


@pytest.mark.invariant(32)
def test_a_stable_read_after_init_producer_id_has_the_commit_of_before():
    names = "0:0", "0:1", "0:2"

    def copies(*names):
        return [Record(b"00000001", name.encode()) for name in names]

    good = copying(found_before={}, found_after={0: committed(3)})
    good.check_copied({0: records(3)}, copies(*names))
    aborted = copying(found_before={}, found_after={})
    aborted.check_copied({0: records(3)}, copies())
    for found in ({}, {0: committed(2)}):
        bad = copying(found_before={}, found_after=found)
        bad.on_durable({0: 3})
        with pytest.raises(Violation, match=r"^invariant 32\b"):
            bad.check_copied({0: records(3)}, copies(*names))


def sweeping(monkeypatch, seeds):
    """Groups without offsets are looked for all the time: what failed."""
    key = "offsets.retention.check.interval.ms"
    monkeypatch.setitem(broker_options.BROKER_OPTIONS, key, 50)
    found = [run_seed(seed, "calm") for seed in seeds]
    return [verdict.failure for verdict in found if verdict.failure]


@pytest.mark.invariant(34)
def test_a_group_with_pending_offsets_that_expires_is_noticed(monkeypatch):
    assert sweeping(monkeypatch, range(4)) == []
    monkeypatch.setattr(OffsetStore, "has_open_transactions", lambda *_: False)
    failures = sweeping(monkeypatch, range(4))
    assert any(failure.startswith("invariant 34:") for failure in failures), failures
