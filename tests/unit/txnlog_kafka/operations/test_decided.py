"""A transaction whose outcome is decided is described once its markers are written."""

import pytest
from support.core.core_broker import CoreBroker

from txnlog_kafka.errors import DeadlineExceeded
from txnlog_kafka.operations import admin

DECIDED = ["PrepareCommit", "PrepareAbort", "PrepareEpochFence"]


def description(state):
    return admin.TransactionDescription("t", state, 60_000, -1, 1, 0, ())


@pytest.fixture
def asked(monkeypatch):
    """Return the coordinator's answers, one for each question; the last repeats for ever."""
    states = []

    def describe(session, transactional_id):
        yield from ()
        state = states.pop(0) if len(states) > 1 else states[0]
        return None if state is None else description(state)

    monkeypatch.setattr(admin, "describe_transaction", describe)
    return states


@pytest.mark.parametrize("decided", DECIDED)
def test_the_markers_of_a_decided_transaction_are_waited_for(asked, decided):
    asked += [decided, decided, "CompleteCommit"]
    cluster = CoreBroker()
    found = cluster.run(admin.describe_decided_transaction(cluster.session(), "t"))
    assert found == description("CompleteCommit")
    assert cluster.now_ms > 0


@pytest.mark.parametrize("state", ["Empty", "Ongoing", "CompleteCommit", "CompleteAbort", None])
def test_another_transaction_is_described_at_once(asked, state):
    asked += [state]
    cluster = CoreBroker()
    found = cluster.run(admin.describe_decided_transaction(cluster.session(), "t"))
    assert found == (state and description(state))
    assert cluster.now_ms == 0


def test_markers_that_do_not_come_are_named_with_the_state(asked):
    asked += ["PrepareCommit"]
    cluster = CoreBroker()
    with pytest.raises(DeadlineExceeded, match=r"markers of transactional id 't'.*PrepareCommit"):
        cluster.run(admin.describe_decided_transaction(cluster.session(), "t"))
