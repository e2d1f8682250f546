"""The client that injects faults: what an armed failpoint does to the requests that follow."""

from __future__ import annotations

import pytest
from support.sockets.socket_broker import SocketBroker

from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.effects import ANY_NODE, Call, Calls, Failpoint, Receive, Reply, Send
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_testing import failpoints, points
from txnlog_testing.failpoints import FailpointRaised
from txnlog_testing.points import FaultInjectingClient
from txnlog_testing.variables import ARMED_VARIABLE, FIRED_VARIABLE

METADATA = APIS[ApiKey.METADATA].request


def metadata_call():
    return Call(ANY_NODE, METADATA(topics=[]), 20_000)


@pytest.fixture
def broker():
    with SocketBroker() as running:
        yield running


def step_then_ask():
    yield Failpoint("end_txn", "before", 3)
    return (yield Calls((metadata_call(),)))


@pytest.fixture
def armed(monkeypatch, tmp_path):
    monkeypatch.setattr(failpoints, "_fired_here", set())
    monkeypatch.setenv(FIRED_VARIABLE, str(tmp_path / "fired"))
    return lambda text: monkeypatch.setenv(ARMED_VARIABLE, text)


def test_drop_request_sends_nothing_and_is_unknown(broker, armed):
    armed("end_txn:before:drop-request@3")
    with FaultInjectingClient(broker.bootstrap_servers) as client:
        (outcome,) = client.run(step_then_ask())
        assert outcome.sent
        assert not broker.headers
        assert isinstance(client.run(step_then_ask())[0], Reply), "fires once"


def test_drop_response_sends_and_is_unknown(broker, armed):
    armed("end_txn:before:drop-response")
    with FaultInjectingClient(broker.bootstrap_servers) as client:
        (outcome,) = client.run(step_then_ask())
    assert outcome.sent
    assert broker.headers[-1].api_key == ApiKey.METADATA


def test_raise_is_thrown_into_the_operation(broker, armed):
    armed("end_txn:before:raise")
    client = FaultInjectingClient(broker.bootstrap_servers)
    with client, pytest.raises(FailpointRaised, match="end_txn:before:raise"):
        client.run(step_then_ask())


def test_another_batch_is_left_alone(broker, armed):
    armed("end_txn:before:raise@4")
    with FaultInjectingClient(broker.bootstrap_servers) as client:
        assert isinstance(client.run(step_then_ask())[0], Reply)
    assert failpoints.fired() == ()


def send_then_receive():
    yield Failpoint("produce.first", "after", 3)
    yield Receive(frozenset(), within_ms=0)
    first = yield Send(metadata_call())
    second = yield Send(metadata_call())
    outcomes = []
    for ticket in (first, second):
        outcomes.append((yield Receive(frozenset({ticket}))))
    ticket = yield Send(metadata_call())
    outcomes.append((yield Receive(frozenset({ticket}))))
    return [outcome for _, outcome in outcomes]


@pytest.mark.parametrize(("action", "seen"), [("drop-request", 1), ("drop-response", 3)])
def test_all_that_is_sent_before_the_next_answer_is_lost_and_nothing_after(
    broker, armed, action, seen
):
    armed(f"produce.first:after:{action}")
    with FaultInjectingClient(broker.bootstrap_servers) as client:
        *lost, last = client.run(send_then_receive())
    assert [o.sent for o in lost] == [True, True]
    assert isinstance(last, Reply)
    assert [h.api_key for h in broker.headers].count(ApiKey.METADATA) == seen


def test_a_client_that_injects_no_faults_passes_every_failpoint(broker, armed):
    armed("end_txn:before:raise")
    with Client(broker.bootstrap_servers) as client:
        assert isinstance(client.run(step_then_ask())[0], Reply)
    assert failpoints.fired() == ()


def send_and_come_to_a_step_of_the_other_half():
    yield Failpoint("txn_offset_commit", "before", 3)
    ticket = yield Send(metadata_call())
    yield Failpoint("produce", "before", 3)
    _, outcome = yield Receive(frozenset((ticket,)), within_ms=None)
    return outcome


def test_a_step_that_is_come_to_before_the_answer_leaves_the_request_interfered_with(
    broker, armed, monkeypatch
):
    killed = []
    monkeypatch.setattr(points, "kill_driver", lambda: killed.append(len(broker.headers)))
    armed("txn_offset_commit:before:kill-driver-on-send")
    with FaultInjectingClient(broker.bootstrap_servers) as client:
        client.run(send_and_come_to_a_step_of_the_other_half())
    assert len(killed) == 1
