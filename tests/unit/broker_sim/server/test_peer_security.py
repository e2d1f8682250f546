"""A broker that connects to others by TLS and SASL: the login, its renewal, and real clusters."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from support.brokers.certificates import LOCAL, Authority
from support.brokers.probe import free_ports, wait_until
from support.clients.sasl_client import MECHANISM_IDS, SASL_CONFIG, add_user
from support.core.broker_build import BrokerOnDisk, request
from support.sockets.secured_broker import SecuredBroker

from broker_sim import LocalCluster
from broker_sim.core.config import BrokerConfig, ConfigError
from broker_sim.core.effects import PeerAnswer, PeerLost, Send
from broker_sim.core.endpoint import Endpoint
from broker_sim.core.registry_client import REGISTRY_PEER
from broker_sim.server.peer_connections import PeerConnections
from broker_sim.server.peer_security import PeerUser, read_peer_security
from txnlog_kafka.wire.framing import encode_response
from txnlog_kafka.wire.login import RENEWED_AFTER, LoginRefused
from txnlog_kafka.wire.messages import APIS, ApiKey, api_of

WAIT_SECONDS = 20
PEER = 7
METADATA = request(ApiKey.METADATA, topics=[])
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def jaas(mechanism: str, user: str = "alice", more: str = "") -> str:
    module = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
    return f'x.{module} required username="{user}" password="{user}-secret"{more};'


def options(protocol: str, mechanism: str = "PLAIN", **more: str) -> dict[str, str]:
    """Return the configuration of broker 3, whose only listener is for brokers."""
    own = {
        "node.id": "3",
        "registry.connect": "127.0.0.1:1",
        "listeners": "IN://127.0.0.1:1",
        "listener.security.protocol.map": f"IN:{protocol}",
        "inter.broker.listener.name": "IN",
    }
    if protocol.startswith("SASL"):
        own |= {
            "sasl.enabled.mechanisms": mechanism,
            "sasl.mechanism.inter.broker.protocol": mechanism,
            f"listener.name.in.{mechanism.lower()}.sasl.jaas.config": jaas(mechanism),
        }
    return own | {name.replace("_", "."): value for name, value in more.items()}


def with_key(folder: Path, ca: Authority, *hosts: str) -> dict[str, str]:
    return {
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": str(ca.sign(*(hosts or LOCAL)).write_pem(folder / "broker.pem")),
        "ssl_truststore_type": "PEM",
        "ssl_truststore_certificates": ca.pem,
    }


class Owner:
    """A host for peer connections, with one endpoint for every peer."""

    def __init__(self, port: int) -> None:
        self.endpoint = Endpoint("127.0.0.1", port)
        self._items: asyncio.Queue = asyncio.Queue()

    def peers(self, config: dict[str, str]) -> PeerConnections:
        return PeerConnections(self.submit, self.peer_endpoint, BrokerConfig(config))

    def peer_endpoint(self, peer: int) -> Endpoint:
        return self.endpoint

    def submit(self, item: PeerAnswer | PeerLost, size_bytes: int = 0) -> None:
        self._items.put_nowait(item)

    async def next(self) -> PeerAnswer | PeerLost:
        return await asyncio.wait_for(self._items.get(), WAIT_SECONDS)


def answering(header: Any, _message: Any) -> bytes:
    made = APIS[header.api_key].response(throttle_time_ms=0, brokers=[], topics=[])
    return encode_response(header.api_key, header.api_version, header.correlation_id, made)


def ask(broker: SecuredBroker, config: dict[str, str], count: int = 1) -> list[Any]:
    """Send `count` requests to a peer, one after another; return the inputs that come back."""

    async def everything() -> list[Any]:
        owner = Owner(broker.port)
        peers = owner.peers(config)
        found = []
        for number in range(count):
            peers.send(Send(PEER, number, 12, METADATA))
            found.append(await owner.next())
        peers.close()
        return found

    return asyncio.run(everything())


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_requests_go_after_the_login(mechanism):
    with SecuredBroker(answering, mechanisms=(mechanism,)) as broker:
        found = ask(broker, options("SASL_PLAINTEXT", mechanism), 3)
        assert [each.correlation_id for each in found] == [0, 1, 2]
        assert broker.log[0] == "SASL_HANDSHAKE"
        assert broker.log[-3:] == ["METADATA"] * 3
        assert broker.log.count("SASL_HANDSHAKE") == 1


def test_a_login_in_tls_and_a_certificate_that_names_another_host(tmp_path):
    ca = Authority()
    context = ca.sign(*LOCAL).server_context(tmp_path, ca)
    with SecuredBroker(answering, tls=context, mechanisms=("PLAIN",)) as broker:
        config = options("SASL_SSL", **with_key(tmp_path, ca))
        assert isinstance(ask(broker, config)[0], PeerAnswer)
    context = ca.sign("elsewhere").server_context(tmp_path, ca)
    for protocol in ("SSL", "SASL_SSL"):
        mechanisms = ("PLAIN",) if protocol == "SASL_SSL" else ()
        with SecuredBroker(answering, tls=context, mechanisms=mechanisms) as broker:
            config = options(protocol, **with_key(tmp_path, ca))
            assert ask(broker, config) == [PeerLost(PEER)]
            assert broker.log == []
            unchecked = config | {"ssl.endpoint.identification.algorithm": ""}
            assert isinstance(ask(broker, unchecked)[0], PeerAnswer)


def test_a_listener_of_another_ca_is_not_spoken_to(tmp_path):
    context = Authority().sign(*LOCAL).server_context(tmp_path)
    with SecuredBroker(answering, tls=context) as broker:
        config = options("SSL", **with_key(tmp_path, Authority()))
        assert ask(broker, config) == [PeerLost(PEER)]


def test_a_refused_login_loses_the_peer_and_no_text_has_the_password(caplog):
    with SecuredBroker(answering, mechanisms=("PLAIN",)) as broker:
        broker.users = {"alice": "another"}
        assert ask(broker, options("SASL_PLAINTEXT"), 2) == [PeerLost(PEER)] * 2
    assert "it refuses the login of 'alice' by PLAIN: SASL_AUTHENTICATION_FAILED" in caplog.text
    assert "alice-secret" not in caplog.text
    assert "METADATA" not in broker.log


def test_a_listener_that_asks_for_few_iterations_learns_no_proof(caplog):
    with SecuredBroker(answering, mechanisms=("SCRAM-SHA-256",)) as broker:
        broker.iterations = 1
        assert ask(broker, options("SASL_PLAINTEXT", "SCRAM-SHA-256")) == [PeerLost(PEER)]
    assert "fewer than 4096 SCRAM iterations" in caplog.text
    assert broker.log.count("SASL_AUTHENTICATE") == 1


def test_a_login_that_ends_is_renewed_on_its_connection_before_the_next_request():
    async def everything(broker: SecuredBroker) -> list[Any]:
        owner = Owner(broker.port)
        peers = owner.peers(options("SASL_PLAINTEXT"))
        found = []
        for number in range(3):
            peers.send(Send(PEER, number, 12, METADATA))
            found.append(await owner.next())
            (link,) = peers._peers[PEER]._links.values()
            assert 0 < link._renews_at - asyncio.get_running_loop().time() < 3_600
            link._renews_at = 0.0
        peers.close()
        return found

    with SecuredBroker(answering, mechanisms=("PLAIN",)) as broker:
        broker.lifetime_ms = 3_600_000
        found = asyncio.run(everything(broker))
        assert [each.correlation_id for each in found] == [0, 1, 2]
        assert broker.log == ["SASL_HANDSHAKE", "SASL_AUTHENTICATE", "METADATA"] * 3


def test_the_registry_is_neither_encrypted_nor_logged_in_to():
    async def everything() -> Any:
        with SecuredBroker(answering) as broker:
            owner = Owner(broker.port)
            peers = owner.peers(options("SASL_PLAINTEXT"))
            peers.send(Send(REGISTRY_PEER, 0, 12, METADATA))
            found = await owner.next()
            peers.close()
            return found, broker.log

    found, log = asyncio.run(everything())
    assert isinstance(found, PeerAnswer)
    assert log == ["METADATA"]


def test_a_refused_mechanism_is_one_line_without_the_password():
    user = PeerUser("PLAIN", "alice", "alice-secret")
    login = user.new_login()
    login.begin()
    refused = r"it refuses the login of 'alice' by PLAIN: UNSUPPORTED_SASL_MECHANISM"
    with pytest.raises(LoginRefused, match=refused):
        login.on_answer(APIS[ApiKey.SASL_HANDSHAKE].response(error_code=33, mechanisms=[]))
    assert "alice-secret" not in repr(user) + repr(login)


def test_a_login_takes_no_answer_but_its_own(caplog):
    class Lying(SecuredBroker):
        def _answer(self, header: Any, message: Any) -> Any:
            return super()._answer(replace(header, correlation_id=9), message)

    with Lying(answering, mechanisms=("PLAIN",)) as broker:
        assert ask(broker, options("SASL_PLAINTEXT")) == [PeerLost(PEER)]
    assert "an answer to request 9, which was not asked" in caplog.text
    assert broker.log == ["SASL_HANDSHAKE"]


@pytest.mark.parametrize("mechanism", ["PLAIN", *MECHANISM_IDS])
def test_a_broker_is_let_in_by_a_broker_and_again_when_its_login_ends(mechanism):
    option = f"listener.name.sasl_plaintext.{mechanism.lower()}.connections.max.reauth.ms"
    broker = BrokerOnDisk(SASL_CONFIG | {option: 60_000})
    broker.listener, user = "PLAINTEXT", PeerUser(mechanism, "bob", "bob-secret")
    if mechanism != "PLAIN":
        assert add_user(broker, "bob", "bob-secret", mechanism) == 0
    broker.listener = "SASL_PLAINTEXT"
    for _ in range(2):
        login = user.new_login()
        sent = login.begin()
        while sent is not None:
            sent = login.on_answer(broker.ask(sent, api_of(sent).version_max))
        assert login.renewed_after_s == 60 * RENEWED_AFTER
        assert broker.ask(METADATA, 12).brokers
        broker.advance(60_001)
    assert broker.broker.parts.logins._logins[1].principal == "User:bob"


@pytest.mark.parametrize("missing", ["username", "password"])
def test_a_login_module_without_a_user_is_refused(missing):
    config = options("SASL_PLAINTEXT")
    name = "listener.name.in.plain.sasl.jaas.config"
    config[name] = config[name].replace(missing, f"user_{missing}")
    with pytest.raises(ConfigError, match=f"{name} must have {missing}=") as caught:
        read_peer_security(BrokerConfig(config))
    assert "alice-secret" not in str(caught.value)


def test_a_broker_that_is_alone_needs_no_user_and_no_trusted_certificates():
    config = options("SASL_PLAINTEXT") | {"registry.connect": ""}
    found = read_peer_security(BrokerConfig(config))
    assert (found.context, found.user) == (None, None)


# ------------------------------------------------------------------ real clusters


def cluster_options(
    tmp_path: Path, ca: Authority, protocol: str
) -> tuple[dict[str, str], list[dict[str, str]], list[int]]:
    """Clients come by CLIENTS as they are; brokers find each other by INSIDE."""
    clients, inside = free_ports(3), free_ports(3)
    users = ' user_broker="broker-secret"'
    config = {
        "listener.security.protocol.map": f"CLIENTS:PLAINTEXT,INSIDE:{protocol}",
        "inter.broker.listener.name": "INSIDE",
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:broker;User:CN=localhost;User:ANONYMOUS",
        **{name.replace("_", "."): value for name, value in with_key(tmp_path, ca).items()},
    }
    if protocol.startswith("SASL"):
        config |= {
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.inside.plain.sasl.jaas.config": jaas("PLAIN", "broker", users),
            "listener.name.inside.connections.max.reauth.ms": "3000",
        }
    else:
        config["listener.name.inside.ssl.client.auth"] = "required"
    listeners = [
        {"listeners": f"CLIENTS://127.0.0.1:{one},INSIDE://127.0.0.1:{other}"}
        for one, other in zip(clients, inside, strict=True)
    ]
    return config, listeners, clients


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_brokers_of_a_cluster_replicate_by_the_listener_that_is_theirs(tmp_path, protocol):
    config, listeners, ports = cluster_options(tmp_path, Authority(), protocol)
    with LocalCluster(tmp_path / "data", 3, config, ports, broker_configs=listeners) as cluster:
        servers = cluster.bootstrap_servers
        admin = KafkaAdminClient(bootstrap_servers=servers)
        admin.create_topics([NewTopic("kept", 3, 3)])
        producer = KafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True)
        for number in range(30):
            producer.send("kept", b"v", partition=number % 3).get(60)
        cluster.restart(1)

        def whole() -> bool:
            (topic,) = admin.describe_topics(["kept"])
            return all(len(each["isr_nodes"]) == 3 for each in topic["partitions"])

        wait_until(whole, "all replicas in sync")
        for number in range(30):
            producer.send("kept", b"v", partition=number % 3).get(60)
        producer.close()
        admin.close()
