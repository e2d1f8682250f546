"""The blocking host: versions, order, deadlines, and what it says of requests without an answer."""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
from dataclasses import replace

import pytest
from support.brokers.probe import free_ports
from support.sockets.socket_broker import VERSIONS, SocketBroker, answer_bytes

from txnlog_kafka.errors import DeadlineExceeded, OptionError, RemoteProtocolError, WrongCluster
from txnlog_kafka.host.addresses import parse_bootstrap_servers
from txnlog_kafka.host.client import Client
from txnlog_kafka.operations.cluster_view import ClusterView
from txnlog_kafka.operations.effects import (
    ANOTHER_NODE,
    ANY_NODE,
    Call,
    Calls,
    Give,
    Receive,
    Reply,
    Send,
    Sleep,
    Unanswered,
)
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.operations.session import SessionConfig
from txnlog_kafka.wire.invariants import InvariantViolation
from txnlog_kafka.wire.messages import APIS, ApiKey

METADATA = APIS[ApiKey.METADATA].request
PRODUCE = APIS[ApiKey.PRODUCE].request


def ask(*calls):
    """An operation that makes these calls and returns their outcomes."""
    return (yield Calls(calls))


def metadata_call(timeout_ms=20_000, version_max=None, node=ANY_NODE):
    return Call(node, METADATA(topics=[]), timeout_ms, version_max)


@pytest.fixture
def client(broker):
    with Client(broker.bootstrap_servers) as opened:
        yield opened


def test_a_call_is_answered_at_the_newest_common_version(client):
    (reply,) = client.run(ask(metadata_call()))
    assert isinstance(reply, Reply)
    assert reply.version == VERSIONS[ApiKey.METADATA][1]
    assert reply.message.cluster_id == "c"


def test_an_old_broker_is_asked_at_its_own_versions():
    old = VERSIONS | {ApiKey.API_VERSIONS: (0, 1), ApiKey.METADATA: (0, 5)}
    with SocketBroker(versions=old) as broker:
        with Client(broker.bootstrap_servers) as client:
            (reply,) = client.run(ask(metadata_call()))
        assert reply.version == 5


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ({}, "does not support Metadata"),
        ({ApiKey.METADATA: (0, -1)}, "does not support Metadata"),
        ({ApiKey.METADATA: (50, 60)}, "supports Metadata v50 to v60"),
    ],
)
def test_no_common_version_is_final_and_was_not_sent(versions, reason):
    offered = {ApiKey.API_VERSIONS: (0, 5)} | versions
    with SocketBroker(versions=offered) as broker:
        with Client(broker.bootstrap_servers) as client:
            (outcome,) = client.run(ask(metadata_call()))
            assert (outcome.sent, outcome.retriable) == (False, False)
            assert reason in outcome.reason
            with pytest.raises(RemoteProtocolError, match="Metadata"):
                client.run(refresh_metadata(client.session, []))
        assert [h.api_key for h in broker.headers] == [ApiKey.API_VERSIONS] * 1


def test_several_calls_share_a_connection_in_their_order(client, broker):
    outcomes = client.run(ask(*[metadata_call(version_max=v) for v in (9, 1, 12, 5)]))
    assert [o.version for o in outcomes] == [9, 1, 12, 5]
    assert [h.api_version for h in broker.headers[1:]] == [9, 1, 12, 5]
    assert broker.connections == 1


def take_over(broker: SocketBroker, cluster_id: str, node_id: int) -> None:
    """Another broker answers at the address from now on."""
    broker.close_connections()
    broker.cluster_id, broker.node_id = cluster_id, node_id


def test_another_cluster_at_a_known_address_is_refused_before_any_request(client, broker):
    """KIP-1242: its Metadata then says which cluster it is."""
    client.run(refresh_metadata(client.session, ()))
    take_over(broker, "other", 1)
    asked_before = len(broker.headers)
    (outcome,) = client.run(ask(metadata_call(node=1)))
    assert isinstance(outcome, Unanswered)
    assert (outcome.sent, outcome.retriable) == (False, True)
    assert "is not broker 1 of cluster c any more" in outcome.reason
    assert [h.api_key for h in broker.headers[asked_before:]] == [ApiKey.API_VERSIONS]
    with pytest.raises(WrongCluster, match="are of cluster 'other', and were of cluster 'c'"):
        client.run(refresh_metadata(client.session, ()))
    # A new query, which knows neither of them, may go on with this cluster.
    client.run(refresh_metadata(client.session, ()))
    assert client.session.cluster.cluster_id == "other"


def test_another_broker_of_the_cluster_at_a_known_address_is_found_by_its_new_id(client, broker):
    client.run(refresh_metadata(client.session, ()))
    take_over(broker, "c", 2)
    client.run(refresh_metadata(client.session, ()))
    assert client.session.cluster.nodes == {2: ("127.0.0.1", broker.port)}


@pytest.mark.parametrize("reason", ["it is switched off", "two brokers have the address"])
def test_a_broker_is_not_named_where_its_id_may_not_be_its_own(broker, reason):
    is_off = reason == "it is switched off"
    with Client(broker.bootstrap_servers, config=SessionConfig(names_broker=not is_off)) as client:
        client.run(refresh_metadata(client.session, ()))
        if not is_off:
            address = client.session.cluster.nodes[1]
            client.session.cluster = replace(client.session.cluster, nodes={1: address, 2: address})
        take_over(broker, "c", 7)
        client.run(refresh_metadata(client.session, ()))
        assert list(client.session.cluster.nodes) == [7]


def test_a_refused_connection_was_not_sent():
    (port,) = free_ports(1)
    with Client(f"127.0.0.1:{port}") as client:
        (outcome,) = client.run(ask(metadata_call()))
    assert (outcome.sent, outcome.retriable) == (False, True)
    assert str(port) in outcome.reason


def test_an_unreachable_bootstrap_is_an_error_in_bounded_time():
    (port,) = free_ports(1)
    config = SessionConfig(bootstrap_timeout_ms=300)
    client = Client(f"127.0.0.1:{port}", config=config)
    with client, pytest.raises(DeadlineExceeded, match=str(port)):
        client.run(refresh_metadata(client.session, []))


def test_another_node_is_each_in_its_turn_and_last_the_one_that_answered(client):
    client.run(ask(metadata_call()))
    answered = client.bootstrap[0]
    others = [("b2", 1), ("b3", 1)]
    nodes = {1: answered, 2: others[0], 3: others[1]}
    client.session.cluster = ClusterView(nodes=nodes)
    asked = [client._addresses(ANOTHER_NODE) for _ in range(6)]
    assert {addresses[0] for addresses in asked} == set(others)
    assert all(set(addresses) == {*others, answered} for addresses in asked)
    assert all(addresses[-1] == answered for addresses in asked)


def test_another_node_is_the_only_one_where_no_other_is_known(client):
    for _ in range(2):
        (reply,) = client.run(ask(metadata_call(node=ANOTHER_NODE)))
        assert isinstance(reply, Reply)
        client.session.cluster = client.session.cluster.merged(reply.message, all_topics=False)


def test_any_node_goes_on_to_the_next_bootstrap_address(broker):
    (port,) = free_ports(1)
    with Client(f"127.0.0.1:{port},{broker.bootstrap_servers}") as client:
        assert isinstance(client.run(ask(metadata_call()))[0], Reply)


def test_a_node_without_an_address_was_not_sent(client):
    (outcome,) = client.run(ask(metadata_call(node=77)))
    assert outcome.sent is False
    assert "77" in outcome.reason


def test_silence_ends_at_the_deadline_and_the_outcome_is_unknown(client, broker):
    client.run(ask(metadata_call()))
    broker.react = lambda _header, _message: None
    outcomes = client.run(ask(metadata_call(200), metadata_call(5_000)))
    assert [o.sent for o in outcomes] == [True, True]
    assert "in time" in outcomes[0].reason


def test_what_was_answered_before_the_connection_broke_keeps_its_answer(client, broker):
    broker.react = lambda h, m: "close" if h.api_version == 5 else broker.serve(h, m)
    first, second = client.run(ask(metadata_call(version_max=9), metadata_call(version_max=5)))
    assert isinstance(first, Reply)
    assert isinstance(second, Unanswered)


GARBAGE = {
    "negative length": struct.pack(">i", -5),
    "huge length": struct.pack(">i", 2**31 - 1),
    "empty frame": struct.pack(">i", 0),
    "wrong correlation id": struct.pack(">ii", 4, 12345),
    "short": struct.pack(">ih", 2, 7),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_bytes_that_are_no_answer_break_the_connection_and_nothing_else(client, broker, name):
    broker.react = lambda _header, _message: GARBAGE[name]
    (outcome,) = client.run(ask(metadata_call()))
    assert isinstance(outcome, Unanswered)
    assert outcome.sent
    broker.react = broker.serve
    assert isinstance(client.run(ask(metadata_call()))[0], Reply)


def test_an_answer_that_cannot_be_decoded_is_final(client, broker):
    broker.react = lambda h, _m: struct.pack(">iib", 5, h.correlation_id, 0)
    (outcome,) = client.run(ask(metadata_call()))
    assert (outcome.sent, outcome.retriable) == (True, False)


def test_a_connection_that_the_broker_closed_while_idle_is_opened_anew(client, broker):
    """docs/internals/faults.md B40: a trigger interval longer than connections.max.idle.ms."""
    client.run(ask(metadata_call()))
    broker.close_connections()
    assert isinstance(client.run(ask(metadata_call()))[0], Reply)
    assert broker.connections == 2


def test_requests_larger_than_the_socket_buffers_get_through(client, broker):
    topic = PRODUCE.TopicProduceData
    part = topic.PartitionProduceData(index=0, records=b"x" * 8_000_000)
    big = PRODUCE(acks=-1, timeout_ms=1, topic_data=[topic(name="t", partition_data=[part])])
    broker.react = lambda h, _m: answer_bytes(h, APIS[ApiKey.PRODUCE].response())
    outcomes = client.run(ask(*[Call(ANY_NODE, big, 20_000)] * 3))
    assert all(isinstance(o, Reply) for o in outcomes)


def test_a_closed_client_can_be_used_again(broker):
    client = Client(broker.bootstrap_servers)
    client.run(ask(metadata_call()))
    client.close()
    assert isinstance(client.run(ask(metadata_call()))[0], Reply)
    client.close()


def test_500_clients_leave_no_socket_behind(broker):
    """B37 in small: what is opened is closed."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        with Client(broker.bootstrap_servers) as client:
            client.run(ask(metadata_call()))
    broker.close_connections()
    assert len(os.listdir("/proc/self/fd")) <= before + 5


def test_a_forked_child_speaks_on_connections_of_its_own(client, broker):
    """B43: PySpark's workers are forked from a daemon."""
    client.run(ask(metadata_call()))
    client._pid = -1
    assert isinstance(client.run(ask(metadata_call()))[0], Reply)
    assert broker.connections == 2


def test_sleep_takes_its_time():
    def nap():
        yield Sleep(30)
        return "slept"

    started = time.monotonic()
    with Client("127.0.0.1:1") as client:
        assert client.run(nap()) == "slept"
    assert time.monotonic() - started >= 0.03


def test_an_operation_that_raises_is_closed(broker):
    closed = []

    def failing():
        try:
            yield Sleep(0)
            raise ValueError("inside")
        finally:
            closed.append(True)

    with Client(broker.bootstrap_servers) as client, pytest.raises(ValueError, match="inside"):
        client.run(failing())
    assert closed == [True]


# ------------------------------------------------------------------ one by one


def answers_of(broker, *held: threading.Event):
    """Requests at version 5 are answered when the event of their number is set, others at once."""
    waiting = iter(held)

    def react(header, message):
        if header.api_version == 5:
            assert next(waiting).wait(20)
        return broker.serve(header, message)

    return react


def send_all(*calls):
    """Send them without waiting; their tickets."""
    tickets = []
    for call in calls:
        tickets.append((yield Send(call)))
    return tickets


def receive_each(tickets):
    """Their outcomes, one after another."""
    outcomes = []
    for ticket in tickets:
        received = yield Receive(frozenset({ticket}))
        assert received[0] == ticket
        outcomes.append(received[1])
    return outcomes


def send_and_receive(*calls):
    tickets = yield from send_all(*calls)
    return (yield from receive_each(tickets))


def test_the_answer_of_one_broker_is_received_while_another_is_silent(broker):
    go_on = threading.Event()
    with SocketBroker() as slow:
        slow.react = answers_of(slow, go_on)

        def operation(session):
            session.cluster = ClusterView({1: address(slow), 2: address(broker)})
            first = yield Send(metadata_call(version_max=5, node=1))
            second = yield Send(metadata_call(node=2))
            received = [(yield Receive(frozenset({first, second})))]
            third = yield Send(metadata_call(node=2))
            received.append((yield Receive(frozenset({first, third}))))
            nothing = yield Receive(frozenset({first}), within_ms=0)
            go_on.set()
            received.append((yield Receive(frozenset({first}))))
            assert [ticket for ticket, _ in received] == [second, third, first]
            assert first < second < third
            return nothing, [outcome for _, outcome in received]

        with Client(broker.bootstrap_servers) as client:
            nothing, outcomes = client.run(operation(client.session))
    assert nothing is None
    assert all(isinstance(o, Reply) for o in outcomes)


def address(broker):
    return ("127.0.0.1", broker.port)


def test_of_several_outcomes_the_one_that_was_asked_for_first_is_received_first(client, broker):
    def operation():
        tickets = yield from send_all(*[metadata_call(version_max=v) for v in (9, 1, 12)])
        found = []
        while tickets:
            ticket, outcome = yield Receive(frozenset(tickets))
            tickets.remove(ticket)
            found.append(outcome.version)
        return found

    assert client.run(operation()) == [9, 1, 12]
    assert broker.connections == 1


def test_a_broken_connection_is_an_outcome_for_every_request_on_it(client, broker):
    broker.react = lambda _header, _message: "close"
    outcomes = client.run(send_and_receive(*[metadata_call()] * 3))
    assert all(isinstance(o, Unanswered) for o in outcomes)
    assert outcomes[0].sent


def test_an_outcome_is_received_once(broker):
    def operation():
        ticket = yield Send(metadata_call())
        yield Receive(frozenset({ticket}))
        yield Receive(frozenset({ticket}))

    with Client(broker.bootstrap_servers) as client, pytest.raises(InvariantViolation):
        client.run(operation())


@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_an_abandoned_request_holds_no_later_one_up(client, broker, ending):
    """Its connection is closed: the broker is still busy with it, and the next one is answered."""
    go_on = threading.Event()
    broker.react = answers_of(broker, go_on)

    def leaving():
        yield Send(metadata_call(version_max=5))
        if ending == "raises":
            raise ValueError("inside")

    if ending == "raises":
        with pytest.raises(ValueError, match="inside"):
            client.run(leaving())
    else:
        client.run(leaving())
    assert isinstance(client.run(ask(metadata_call()))[0], Reply)
    go_on.set()
    assert broker.connections == 2


def test_answers_that_came_and_were_not_received_close_nothing(client, broker):
    def operation():
        yield Send(metadata_call())
        ticket = yield Send(metadata_call())
        yield Receive(frozenset({ticket}))

    client.run(operation())
    client.run(operation())
    assert broker.connections == 1


def giving(*items):
    for item in items:
        yield Give(item)
        yield Sleep(0)


def test_a_stream_goes_on_when_the_next_item_is_asked_for(client):
    items = client.stream(giving(1, 2))
    assert next(items) == 1
    assert isinstance(client.run(ask(metadata_call()))[0], Reply)
    assert list(items) == [2]
    with pytest.raises(InvariantViolation, match="stream"):
        client.run(giving(1))


# ------------------------------------------------------------------ addresses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", (("a", 1),)),
        ("a:1, b:2,", (("a", 1), ("b", 2))),
        ("PLAINTEXT://a:1", (("a", 1),)),
        ("[::1]:9092", (("::1", 9092),)),
        ("fe80::1%eth0:9", (("fe80::1%eth0", 9),)),
        ("SASL_SSL://[fe80::1%eth0]:1", (("fe80::1%eth0", 1),)),
        ("a_b.c-d.:1 ,\n2.3.4.5:6", (("a_b.c-d.", 1), ("2.3.4.5", 6))),
    ],
)
def test_bootstrap_addresses_are_read(text, expected):
    assert parse_bootstrap_servers(text) == expected


NO_ADDRESSES = ("", ",", "a", "a:", ":1", "a:b", "a:0", "a:65536", "a:-1", "a:²", "a..b:1")


WRONG_PARTS = (
    "h:1;g:2", "h:1 g:2", "h:1\tg:2", "h:1\ng:2", "h:1\u00a0g:2", "h:1|g:2", "h:1/g:2", "h:1:g:2",
    "h:1;SSL://g:2", "h:1/path", "http://h:1/", "h:1/?a=b", "u@h:1", "h\0:1", "größe:1",
    "h:1\u200b", "h]:1", "[h:1",
)  # fmt: skip


@pytest.mark.parametrize("part", WRONG_PARTS)
def test_another_separator_than_a_comma_is_refused_at_once_and_its_part_named(part):
    with pytest.raises(OptionError) as refused:
        parse_bootstrap_servers(f"a:1, {part}")
    assert refused.value.text.endswith(("separate several with commas", "not a valid host name"))
    assert repr("h:1:g" if part == "h:1:g:2" else part) in refused.value.text


@pytest.mark.parametrize("text", [*NO_ADDRESSES, "x" * 64 + ":1"])
def test_a_wrong_bootstrap_address_names_the_option(text):
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers"):
        Client(text)


def test_a_notice_becomes_a_warning_in_the_log_as_it_is(caplog):
    with caplog.at_level(logging.WARNING), Client("127.0.0.1:1") as client:
        client.session.notice("100% of 5 s")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("WARNING", "100% of 5 s")]
