"""Quotas and idle connections: what the client does with time, on a clock of the tests' own."""

from __future__ import annotations

import socket

import pytest
from support.brokers.probe import wait_until
from support.sockets.socket_broker import answer_bytes, metadata_answer

from txnlog_kafka.host.client import IDLE_S_MAX, Client
from txnlog_kafka.host.failures import ConnectionFailed
from txnlog_kafka.host.pending import Pending
from txnlog_kafka.operations.effects import ANY_NODE, Call, Calls, Give, Receive, Reply, Send
from txnlog_kafka.wire.messages import (
    APIS,
    THROTTLE_S_MAX,
    THROTTLED_FROM,
    ApiKey,
    throttle_seconds,
)

METADATA = APIS[ApiKey.METADATA].request


@pytest.fixture
def broker(broker):
    broker.throttle_ms = 0

    def react(header, _message):
        answer = metadata_answer(broker)
        answer.throttle_time_ms = broker.throttle_ms
        return answer_bytes(header, answer)

    broker.react = react
    return broker


def call(version_max=None, timeout_ms=20_000):
    return Call(ANY_NODE, METADATA(topics=[]), timeout_ms, version_max)


def ask(*calls):
    return (yield Calls(calls))


def ask_apart(*calls):
    """A stream that sends the calls, gives None, and then each outcome."""
    tickets = []
    for each in calls:
        tickets.append((yield Send(each)))
    yield Give(None)
    for ticket in tickets:
        _, outcome = yield Receive(frozenset({ticket}))
        yield Give(outcome)


def asked(broker) -> int:
    """Return the number of Metadata requests that the broker has received."""
    return sum(h.api_key == ApiKey.METADATA for h in broker.headers)


def throttled(client, broker, throttle_ms, **how):
    """Ask once, and be told to be quiet."""
    broker.throttle_ms = throttle_ms
    (reply,) = client.run(ask(call(**how)))
    assert isinstance(reply, Reply)
    broker.throttle_ms = 0


def test_no_request_goes_to_a_broker_that_asked_for_quiet_until_the_time_has_passed(broker, clock):
    with Client(broker.bootstrap_servers, clock=clock) as client:
        throttled(client, broker, 5_000)
        outcomes = client.stream(ask_apart(call(), call()))
        assert next(outcomes) is None
        (connection,) = client._connections.values()
        clock.now_s += 4.9
        connection.on_writable()
        assert not connection.wants_write
        assert asked(broker) == 1
        clock.now_s += 0.2
        assert connection.wants_write
        assert all(isinstance(o, Reply) for o in outcomes)
        assert asked(broker) == 3


def test_the_wait_is_not_taken_from_the_requests_own_time(broker, clock):
    with Client(broker.bootstrap_servers, clock=clock) as client:
        throttled(client, broker, 30_000)
        outcomes = client.stream(ask_apart(call(timeout_ms=1_000)))
        assert next(outcomes) is None
        (connection,) = client._connections.values()
        assert connection.next_deadline_s == clock.now_s + 31
        assert connection.wakes_at_s == clock.now_s + 30
        clock.now_s += 30.5
        assert isinstance(next(outcomes), Reply)


def test_a_request_that_was_queued_before_the_throttle_waits_too(broker, clock):
    with Client(broker.bootstrap_servers, clock=clock) as client:
        throttled(client, broker, 0)
        (connection,) = client._connections.values()
        connection.ask(Pending(call(), clock.now_s + 1))
        connection._throttle(2.0)
        assert connection.next_deadline_s == clock.now_s + 3
        assert not connection.wants_write


def test_a_new_connection_to_the_same_broker_waits_as_well(broker, clock):
    with Client(broker.bootstrap_servers, clock=clock) as client:
        throttled(client, broker, 5_000)
        (connection,) = client._connections.values()
        client._drop_connection(connection, ConnectionFailed("test"))
        again = client._throttled_until_s
        assert again == {("127.0.0.1", broker.port): clock.now_s + 5}
        clock.now_s += 5.1
        assert isinstance(client.run(ask(call()))[0], Reply)
        assert broker.connections == 2


def test_a_broker_that_waited_itself_before_it_answered_is_not_waited_for(broker, clock):
    old = THROTTLED_FROM[ApiKey.METADATA] - 1
    with Client(broker.bootstrap_servers, clock=clock) as client:
        throttled(client, broker, 5_000, version_max=old)
        assert isinstance(client.run(ask(call()))[0], Reply)


class Answer:
    def __init__(self, throttle_time_ms):
        self.throttle_time_ms = throttle_time_ms


@pytest.mark.parametrize(
    ("throttle_ms", "seconds"),
    [(0, 0), (-1, 0), (None, 0), (1500, 1.5), (2**31 - 1, THROTTLE_S_MAX)],
)
def test_what_a_broker_asks_for_has_a_limit(throttle_ms, seconds):
    assert throttle_seconds(ApiKey.PRODUCE, 9, Answer(throttle_ms)) == seconds


def test_every_answer_in_the_table_has_the_field_at_that_version():
    for key, version in THROTTLED_FROM.items():
        assert APIS[key].response().throttle_time_ms is not None
        assert version <= APIS[key].version_max


def test_an_idle_connection_is_closed_and_opened_anew(broker, clock):
    with Client(broker.bootstrap_servers, clock=clock) as client:
        client.run(ask(call()))
        clock.now_s += IDLE_S_MAX - 1
        client.run(ask(call()))
        assert broker.connections == 1
        clock.now_s += IDLE_S_MAX + 1
        assert isinstance(client.run(ask(call()))[0], Reply)
        wait_until(lambda: broker.connections == 2, "a second connection")


def test_a_connection_that_waits_for_an_answer_is_not_idle(broker, clock):
    with Client(broker.bootstrap_servers, clock=clock) as client:
        client.run(ask(call()))
        outcomes = client.stream(ask_apart(call(timeout_ms=10**9)))
        assert next(outcomes) is None
        clock.now_s += IDLE_S_MAX + 1
        assert isinstance(client.run(ask(call()))[0], Reply)
        assert isinstance(next(outcomes), Reply)
        assert broker.connections == 1


def test_idle_connections_stay_when_that_is_asked_for(broker, clock):
    with Client(broker.bootstrap_servers, clock=clock, idle_s_max=None) as client:
        client.run(ask(call()))
        clock.now_s += 10**6
        client.run(ask(call()))
    assert broker.connections == 1


def test_a_dead_network_is_found_out_by_the_kernel(broker):
    with Client(broker.bootstrap_servers) as client:
        client.run(ask(call()))
        (connection,) = client._connections.values()
        assert connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
