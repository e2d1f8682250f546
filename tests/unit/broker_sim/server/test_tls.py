"""TLS listeners of a running broker: keys of every kind, client certificates, who may not in."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from support.brokers.certificates import LOCAL, Authority
from support.brokers.probe import free_ports, wait_until
from support.clients.tls_client import asked, port_in

from broker_sim import LocalCluster
from broker_sim.core.config import BrokerConfig, ConfigError
from broker_sim.core.endpoint import read_listeners
from broker_sim.core.security.principals import distinguished_name
from broker_sim.server.tls import build_tls_context, certified_principal
from txnlog_kafka.wire.messages import ApiKey

PASSWORD = "store-secret"


@pytest.fixture(scope="module")
def ca() -> Authority:
    return Authority()


def trusting(ca: Authority, signed=None, folder: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=ca.pem)
    if signed is not None:
        context.load_cert_chain(signed.write_pem(folder / "client.pem"))
    return context


def test_each_listener_answers_with_its_own_address(tmp_path, ca):
    plain, tls, mutual = free_ports(3)
    config = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls},"
        f"MUTUAL://127.0.0.1:{mutual}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://localhost:{tls},"
        f"MUTUAL://127.0.0.1:{mutual}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,MUTUAL:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(ca.sign(*LOCAL).write_pem(tmp_path / "broker.pem")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": ca.pem,
        "listener.name.mutual.ssl.client.auth": "required",
    }
    with LocalCluster(tmp_path / "data", config=config):
        for port, context, host in (
            (plain, None, "127.0.0.1"),
            (tls, trusting(ca), "localhost"),
            (mutual, trusting(ca, ca.sign(), tmp_path), "127.0.0.1"),
        ):
            with port_in(port, context) as sock:
                (node,) = asked(sock, ApiKey.METADATA, 12, topics=[]).brokers
                assert (node.host, node.port) == (host, port)
                found = asked(
                    sock, ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"]
                ).coordinators[0]
                assert (found.host, found.port) == (host, port)
                (node,) = asked(sock, ApiKey.DESCRIBE_CLUSTER, 0).brokers
                assert (node.host, node.port) == (host, port)
        with pytest.raises((OSError, ConnectionError)), port_in(mutual, trusting(ca)) as sock:
            asked(sock, ApiKey.METADATA, 12, topics=[])
        with pytest.raises((OSError, ConnectionError)), port_in(tls) as sock:
            asked(sock, ApiKey.METADATA, 12, topics=[])
        with port_in(plain) as sock:
            assert asked(sock, ApiKey.METADATA, 12, topics=[]).brokers


def context_of(options: dict[str, str]) -> ssl.SSLContext:
    config = BrokerConfig({"listeners": "SSL://h:1"} | options)
    (listener,) = read_listeners(config)
    built = build_tls_context(listener, config)
    assert built is not None
    return built


@pytest.mark.parametrize("kind", ["PEM file", "PEM text", "encrypted PEM text", "PKCS12"])
def test_keys_of_every_kind_are_taken(tmp_path, ca, kind):
    signed = ca.sign(*LOCAL)
    store = tmp_path / "store"
    store.write_bytes(signed.pkcs12(PASSWORD))
    options = {
        "PEM file": {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(signed.write_pem(tmp_path / "key.pem")),
        },
        "PEM text": {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": signed.key_pem,
            "ssl.keystore.certificate.chain": signed.chain_pem,
        },
        "encrypted PEM text": {
            "ssl.keystore.key": signed.encrypted_key_pem(PASSWORD),
            "ssl.keystore.certificate.chain": signed.chain_pem,
            "ssl.key.password": PASSWORD,
        },
        "PKCS12": {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(store),
            "ssl.keystore.password": PASSWORD,
        },
    }[kind]
    assert handshake(context_of(options), trusting(ca))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Both ends in memory; the server's."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    left = list(ends)
    for _ in range(20):
        for end in list(left):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            left.remove(end)
    assert not left
    return ends[1]


def test_a_client_certificate_is_asked_for_or_wanted(tmp_path, ca):
    options = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(ca.sign(*LOCAL).write_pem(tmp_path / "key.pem")),
        "ssl.truststore.certificates": ca.pem,
        "ssl.client.auth": "requested",
    }
    server = context_of(options)
    assert certified_principal(handshake(server, trusting(ca)).getpeercert()) == "User:ANONYMOUS"
    client = trusting(ca, ca.sign("alice"), tmp_path)
    assert certified_principal(handshake(server, client).getpeercert()) == "User:CN=alice"
    with pytest.raises(ssl.SSLError):
        handshake(context_of(options | {"ssl.client.auth": "required"}), trusting(ca))
    strange = trusting(ca, Authority("another").sign("mallory"), tmp_path)
    with pytest.raises(ssl.SSLError):
        handshake(server, strange)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, r"listener SSL: ssl\.keystore\.location: set it"),
        ({"ssl.keystore.location": "/nowhere/store"}, r"ssl\.keystore\.location: cannot be read"),
        ({"ssl.keystore.key": "nonsense"}, r"ssl\.keystore\.certificate\.chain"),
        ({"ssl.enabled.protocols": "SSLv3"}, r"ssl\.enabled\.protocols"),
    ],
)
def test_a_key_that_cannot_be_used_is_named_without_its_text(options, match):
    with pytest.raises(ConfigError, match=match) as caught:
        context_of(options)
    assert "kafka." not in str(caught.value)
    assert "nonsense" not in str(caught.value)


def test_subjects_are_written_as_java_writes_them():
    subject = (
        (("countryName", "DE"),),
        (("organizationName", "A, B"),),
        (("organizationalUnitName", " x "), ("commonName", "#1")),
        (("emailAddress", "a@b"),),
    )
    wanted = "1.2.840.113549.1.9.1=#1603614062,OU=\\ x\\ +CN=\\#1,O=A\\, B,C=DE"
    assert distinguished_name(subject) == wanted


def test_handshakes_count_as_connections_and_those_that_fail_are_forgotten(tmp_path, ca):
    plain, tls = free_ports(2)
    config = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(ca.sign(*LOCAL).write_pem(tmp_path / "broker.pem")),
        "max.connections": 3,
    }
    with LocalCluster(tmp_path / "data", config=config):
        silent = [port_in(tls) for _ in range(3)]
        with port_in(tls) as late:
            assert late.recv(1) == b""
        with port_in(plain) as late:
            assert late.recv(1) == b""
        for each in silent:
            each.sendall(b"no TLS")
            each.close()
        wait_until(lambda: answers(plain), "the failed handshakes to be forgotten")


def answers(port: int) -> bool:
    with port_in(port) as sock:
        try:
            return bool(asked(sock, ApiKey.METADATA, 12, topics=[]).brokers)
        except ConnectionError:
            return False


def test_a_request_before_the_login_is_small_and_one_after_it_may_be_large(tmp_path):
    (port,) = free_ports(1)
    jaas = 'x.PlainLoginModule required user_alice="alice-secret";'
    config = {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
        "sasl.server.max.receive.size": 2000,
    }
    with LocalCluster(tmp_path, config=config):
        with port_in(port) as sock:
            sock.sendall((2001).to_bytes(4, "big"))
            assert sock.recv(1) == b""
        with port_in(port) as sock:
            assert asked(sock, ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == 0
            token = b"\0alice\0alice-secret"
            answer = asked(sock, ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=token)
            assert answer.error_code == 0
            names = [f"group-{number}" for number in range(1000)]
            found = asked(sock, ApiKey.DESCRIBE_GROUPS, 4, groups=names)
            assert len(found.groups) == len(names)
