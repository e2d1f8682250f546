"""Opening a link: every address of a host is tried, and nothing is left open."""

from __future__ import annotations

import contextlib
import errno
import os
import socket

import pytest
from support.brokers.probe import free_ports

from txnlog_kafka.host import link as link_module
from txnlog_kafka.host.client import Client
from txnlog_kafka.host.failures import TlsFailed
from txnlog_kafka.host.security import Security
from txnlog_kafka.host.tls import Tls
from txnlog_kafka.operations.effects import ANY_NODE, Call, Calls, Reply, Unanswered
from txnlog_kafka.wire.framing import FrameDecoder, encode_response
from txnlog_kafka.wire.messages import APIS, ApiKey


@pytest.fixture
def resolves(monkeypatch):
    """The host `many` has these addresses."""

    def to(*addresses):
        def look_up(address, flags):
            if address[0] != "many" or flags:
                raise socket.gaierror(socket.EAI_NONAME, "not known")
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", each) for each in addresses]

        monkeypatch.setattr(link_module, "_resolve_address", look_up)

    return to


@pytest.fixture
def deaf():
    """An address that takes no connection and refuses none: its queue is full."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()


def ask(timeout_ms=20_000):
    request = APIS[ApiKey.METADATA].request(topics=[])
    return (yield Calls((Call(ANY_NODE, request, timeout_ms),)))


def refused():
    return ("127.0.0.1", free_ports(1)[0])


def test_the_next_address_is_tried_when_one_refuses(broker, resolves):
    resolves(refused(), ("127.0.0.1", broker.port))
    with Client("many:9092") as client:
        assert isinstance(client.run(ask())[0], Reply)


def no_socket_of(monkeypatch, *families):
    """The machine has no sockets of these families."""
    make = socket.socket

    def made(family=-1, *rest, **more):
        if family in families:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return make(family, *rest, **more)

    monkeypatch.setattr(link_module.socket, "socket", made)


def test_the_next_address_is_tried_when_the_machine_has_no_sockets_of_one(broker, monkeypatch):
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", broker.port)),
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", broker.port)),
    ]
    monkeypatch.setattr(link_module, "_resolve_address", lambda address, flags: [*found])
    no_socket_of(monkeypatch, socket.AF_INET6)
    with Client("many:9092") as client:
        assert isinstance(client.run(ask())[0], Reply)
    found.pop()
    with Client("many:9092") as client:
        (outcome,) = client.run(ask(timeout_ms=200))
    assert isinstance(outcome, Unanswered)
    assert "cannot connect to many:9092: [Errno 97]" in outcome.reason


def test_the_next_address_is_tried_when_one_does_not_answer(broker, resolves, deaf):
    resolves(deaf, ("127.0.0.1", broker.port))
    with Client("many:9092", connect_timeout_s=0.2) as client:
        assert isinstance(client.run(ask())[0], Reply)


def test_a_host_of_which_no_address_answers_is_given_up(resolves, deaf):
    resolves(deaf, deaf)
    with Client("many:9092", connect_timeout_s=0.1) as client:
        (outcome,) = client.run(ask())
    assert outcome == Unanswered("cannot connect to many:9092: timed out", sent=False)


def test_the_last_reason_is_shown_when_all_refuse(resolves):
    resolves(refused(), refused())
    with Client("many:9092") as client:
        (outcome,) = client.run(ask())
    assert "cannot connect to many:9092" in outcome.reason
    assert "Connection refused" in outcome.reason


def test_a_host_without_addresses_is_an_error(resolves):
    resolves()
    with Client("many:9092") as client:
        (outcome,) = client.run(ask())
    assert "the host has no address" in outcome.reason


def test_what_a_closed_client_was_asked_goes_nowhere_else(broker, deaf):
    """A stream that is given up while its connection opens; the second address stays unasked."""
    address = f"{deaf[0]}:{deaf[1]},{broker.bootstrap_servers}"
    client = Client(address)
    pending = client._start_call(Call(ANY_NODE, APIS[ApiKey.METADATA].request(topics=[]), 20_000))
    client.close()
    assert pending.outcome == Unanswered("the client was closed", sent=False)
    assert client._connections == {}
    assert broker.connections == 0


def test_a_handshake_that_cannot_begin_leaves_no_socket(monkeypatch):
    """Such as one of a context without any version."""

    def fails(_self):
        raise TlsFailed("no version", final=True)

    monkeypatch.setattr(Tls, "start", fails)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = "{}:{}".format(*listening.getsockname())
        with Client(address, security=Security("SSL")) as client:
            (outcome,) = client.run(ask())
            connected, _ = listening.accept()
            with connected:
                connected.settimeout(60)
                assert connected.recv(1) == b""
    assert outcome == Unanswered(
        f"{address}: no version", sent=False, retriable=False, is_security=True
    )


def test_of_a_large_answer_all_but_its_beginning_is_received_where_it_stays(broker, monkeypatch):
    response = APIS[ApiKey.METADATA].response
    names = [f"topic-{number:06}" for number in range(20_000)]
    topics = [response.MetadataResponseTopic(name=name) for name in names]
    sizes, received, filled = [], [], FrameDecoder.filled

    def react(header, message):
        answer = response(topics=topics)
        key, version, number = header.api_key, header.api_version, header.correlation_id
        sizes.append(len(encoded := encode_response(key, version, number, answer)))
        return encoded

    def count(decoder, size_bytes):
        received.append(size_bytes)
        filled(decoder, size_bytes)

    broker.react = react
    monkeypatch.setattr(FrameDecoder, "filled", count)
    with Client(broker.bootstrap_servers) as client:
        (outcome,) = client.run(ask())
    assert [topic.name for topic in outcome.message.topics] == names
    assert sum(sizes) > sum(received) >= sum(sizes) - link_module.RECEIVE_BYTES
