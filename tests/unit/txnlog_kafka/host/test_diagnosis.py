"""Listeners that are not plain Kafka: one line that says so, instead of a timeout."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from support.brokers.probe import free_ports
from support.sockets.few_attempts import client_of_few_attempts
from support.sockets.socket_broker import SocketBroker

from txnlog_kafka.errors import DeadlineExceeded, RemoteProtocolError, SecurityRefused, TxnLogError
from txnlog_kafka.host.diagnosis import describe_answer
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_spark.client_cache import ConnectionSettings, client_for

TLS_ALERT = bytes([0x15, 3, 3, 0, 2, 2, 0x46])
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


@contextlib.contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of something that does this with each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection, contextlib.suppress(OSError):
                        serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def says(data: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(data)
        connection.recv(65536)

    return serve


def resets(connection: socket.socket) -> None:
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def closes(connection: socket.socket) -> None:
    connection.recv(65536)


def speaks_tls(connection: socket.socket) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with contextlib.suppress(ssl.SSLError):
        context.wrap_socket(connection, server_side=True).close()


def error_at(address: str, request_timeout_ms: int = 30_000) -> TxnLogError:
    """Return the error of a client that uses this address."""
    opened = client_of_few_attempts(address, request_timeout_ms=request_timeout_ms)
    with opened as client, pytest.raises(TxnLogError) as caught:
        client.run(refresh_metadata(client.session, ()))
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (
            TLS_ALERT,
            SecurityRefused,
            "requires TLS: set kafka.security.protocol to SSL or SASL_SSL",
        ),
        (BAD_REQUEST, RemoteProtocolError, "this is a web server, not a Kafka broker"),
    ],
)
def test_what_is_no_broker_without_tls_is_told_at_once(answer, kind, said):
    with listener(says(answer)) as address:
        error = error_at(address)
    assert isinstance(error, kind)
    assert said in str(error)


@pytest.mark.parametrize("serve", [resets, closes, speaks_tls])
def test_a_listener_that_hangs_up_on_the_first_request_may_want_tls(serve):
    with listener(serve) as address:
        assert "TLS" in str(error_at(address))


def test_a_listener_that_hangs_up_after_the_versions_may_want_sasl():
    with SocketBroker(lambda _header, _message: "close") as broker:
        error = error_at(broker.bootstrap_servers)
    assert isinstance(error, DeadlineExceeded)
    assert "the listener may require SASL" in str(error)


def test_a_listener_that_never_answers_may_be_no_broker():
    with listener(lambda connection: [None for _ in iter(lambda: connection.recv(9), b"")]) as at:
        text = str(error_at(at, request_timeout_ms=100))
    assert "did not answer in time: it may not be a Kafka broker" in text


def test_another_bootstrap_address_that_is_only_down_is_tried_again():
    """A wrong listener among several addresses does not end the attempts at the other addresses."""
    with listener(says(TLS_ALERT)) as address:
        error = error_at(f"{address},127.0.0.1:{free_ports(1)[0]}")
    assert isinstance(error, DeadlineExceeded)
    # The last attempt may have had too little time left for the alert.
    assert re.search("requires? TLS", str(error))


def test_the_error_of_a_query_names_the_address_and_the_option():
    with listener(says(TLS_ALERT)) as address:
        settings = ConnectionSettings.of({"kafka.bootstrap.servers": address})
        with pytest.raises(RemoteProtocolError) as caught:
            client_for(settings)
    assert f"kafka.bootstrap.servers={address}" in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\x15", b"\x00\x00\x00\x2a", b"HT", b"\x15\x04\x00\x00"])
def test_what_may_be_an_answer_is_not_a_stranger(data):
    assert describe_answer(data) is None
