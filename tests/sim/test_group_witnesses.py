"""The witnesses of a simulated consumer group: each is shown a history that must not be."""

import pytest

from broker_sim.sim.group_history import Committed, GroupHistory, metadata_of
from broker_sim.sim.violation import Violation
from txnlog_spark.wire.records import Record


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
