"""The client's side of TLS between two buffers, against Python's own server side."""

from __future__ import annotations

import ssl

import pytest

from txnlog_kafka.host.failures import TlsFailed
from txnlog_kafka.host.tls import Tls
from txnlog_kafka.stores import build_tls_context


class Server:
    """The other side, which is given bytes and gives bytes."""

    def __init__(self, context):
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.is_open = False

    def receive(self, data: bytes) -> bytes:
        self.incoming.write(data)
        received = []
        try:
            if not self.is_open:
                self.object.do_handshake()
                self.is_open = True
            while part := self.object.read(65536):
                received.append(part)
        except ssl.SSLWantReadError:
            pass
        return b"".join(received)


@pytest.fixture(params=["TLSv1.2", "TLSv1.3"])
def pair(request, ca, tmp_path):
    """Both sides, which have not said anything yet."""
    options = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": ca.pem}
    context = build_tls_context(options | {"ssl.enabled.protocols": request.param})
    return Tls(context, "localhost"), Server(ca.sign("localhost").server_context(tmp_path))


def exchange(client: Tls, server: Server, size: int = 1 << 30) -> list[bytes]:
    """Hand bytes over, at most `size` at a time, until neither side has any; what came in."""
    received = [b"", b""]
    while True:
        ours, theirs = client.take(), server.outgoing.read()
        if not ours and not theirs:
            return received
        for start in range(0, len(ours), size):
            received[0] += server.receive(ours[start : start + size])
        for start in range(0, len(theirs), size):
            received[1] += client.receive(theirs[start : start + size])


@pytest.mark.parametrize("size", [1, 7, 1 << 30])
def test_the_handshake_is_done_however_the_bytes_arrive(pair, size):
    client, server = pair
    assert client.take() == b""
    client.start()
    exchange(client, server, size)
    assert client.is_open
    client.seal(memoryview(b"ask" * 100_000))
    server.object.write(b"answer")
    assert exchange(client, server, 4096) == [b"ask" * 100_000, b"answer"]


def test_an_orderly_end_is_told_from_silence(pair):
    client, server = pair
    client.start()
    exchange(client, server)
    assert client.receive(b"") == b""
    assert not client.has_ended
    with pytest.raises(ssl.SSLWantReadError):
        server.object.unwrap()
    assert client.receive(server.outgoing.read()) == b""
    assert client.has_ended


def test_a_peer_without_a_common_version_is_one_line(ca, tmp_path):
    options = {"ssl.enabled.protocols": "TLSv1.2"}
    client = Tls(build_tls_context(options), "localhost")
    context = ca.sign("localhost").server_context(tmp_path)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    server = Server(context)
    client.start()
    with pytest.raises(ssl.SSLError):
        server.receive(client.take())
    with pytest.raises(TlsFailed, match=r"kafka\.ssl\.enabled\.protocols") as caught:
        client.receive(server.outgoing.read())
    assert caught.value.final


def test_bytes_that_are_broken_later_on_are_not_final(pair):
    client, server = pair
    client.start()
    exchange(client, server)
    server.object.write(b"answer")
    sealed = bytearray(server.outgoing.read())
    sealed[-1] ^= 1
    with pytest.raises(TlsFailed, match="the TLS connection failed") as caught:
        client.receive(bytes(sealed))
    assert not caught.value.final


def test_what_cannot_be_the_name_of_a_host_is_refused():
    with pytest.raises(TlsFailed, match="not the name of a host"):
        Tls(build_tls_context({}), ".dot.first")
