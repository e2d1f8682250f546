"""TLS and SASL against a small server: logins that succeed, and one clear line for refusals."""

from __future__ import annotations

import contextlib
import pickle
import socket

import pytest
from support.brokers.certificates import LOCAL, Authority
from support.sockets.few_attempts import client_of_few_attempts
from support.sockets.secured_broker import SASL_VERSIONS, SecuredBroker
from support.sockets.socket_broker import SocketBroker, answer_bytes

from txnlog_kafka.errors import (
    DeadlineExceeded,
    OptionError,
    SecurityRefused,
    TxnLogError,
    WrongCluster,
)
from txnlog_kafka.host.client import Client
from txnlog_kafka.host.security import read_security
from txnlog_kafka.operations.cluster_view import ClusterView
from txnlog_kafka.operations.effects import Call, Calls, Receive, Reply, Send
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.operations.session import SessionConfig
from txnlog_kafka.wire.messages import APIS, ApiKey

METADATA = APIS[ApiKey.METADATA].request
PRODUCE = APIS[ApiKey.PRODUCE].request
SHORT = SessionConfig(bootstrap_timeout_ms=400, request_timeout_ms=300)
SECRET = "alice-secret"
PLAIN_LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="alice" password="{SECRET}";'
)
SCRAM_LOGIN = PLAIN_LOGIN.replace("plain.Plain", "scram.Scram")


@pytest.fixture(scope="module")
def other_ca():
    return Authority("another CA")


@pytest.fixture
def start(tmp_path, ca):
    """Starts a broker with a certificate of `ca`, or without TLS."""
    with contextlib.ExitStack() as stack:

        def started(*mechanisms, signed=None, client_ca=None, tls=True, versions=None):
            signed = signed or ca.sign(*LOCAL)
            context = signed.server_context(tmp_path, client_ca) if tls else None
            broker = SecuredBroker(tls=context, mechanisms=mechanisms, versions=versions)
            return stack.enter_context(broker)

        yield started


def trusting(ca, **options):
    """SSL that trusts a CA, with more options; `_` stands for a dot."""
    given = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": ca.pem,
    }
    return read_security(given | {n.replace("_", "."): v for n, v in options.items()})


def sasl(mechanism, jaas, ca=None):
    protocol = "SASL_PLAINTEXT" if ca is None else "SASL_SSL"
    options = {"security_protocol": protocol, "sasl_mechanism": mechanism, "sasl_jaas_config": jaas}
    if ca is not None:
        return trusting(ca, **options)
    return read_security({n.replace("_", "."): v for n, v in options.items()})


def ask(*calls):
    return (yield Calls(calls))


def call(node=-1, timeout_ms=20_000):
    return Call(node, METADATA(topics=[]), timeout_ms)


def refused(address, security, kind=SecurityRefused, config=None):
    """The one line of a user who is not let in."""
    if config is None:
        opened = client_of_few_attempts(address, security)
    else:
        opened = Client(address, security=security, config=config)
    with opened as client, pytest.raises(kind) as caught:
        client.run(refresh_metadata(client.session, ()))
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)
    return str(caught.value)


LOGINS = [("PLAIN", PLAIN_LOGIN), ("SCRAM-SHA-256", SCRAM_LOGIN), ("SCRAM-SHA-512", SCRAM_LOGIN)]


@pytest.mark.parametrize("with_tls", [True, False])
@pytest.mark.parametrize(("mechanism", "jaas"), LOGINS)
def test_a_login_is_said_between_the_versions_and_the_first_request(
    start, ca, mechanism, jaas, with_tls
):
    broker = start(mechanism, tls=with_tls)
    security = sasl(mechanism, jaas, ca if with_tls else None)
    with Client(broker.bootstrap_servers, security=security) as client:
        assert isinstance(client.run(ask(call()))[0], Reply)
        assert isinstance(client.run(ask(call()))[0], Reply)
    rounds = 1 if mechanism == "PLAIN" else 2
    said = ["API_VERSIONS", "SASL_HANDSHAKE", *["SASL_AUTHENTICATE"] * rounds]
    assert broker.log == [*said, "METADATA", "METADATA"]
    assert broker.connections == 1


def test_a_name_with_a_comma_and_an_equals_sign_is_a_name(start):
    broker = start("SCRAM-SHA-256", tls=False)
    broker.users["a=b,c"] = SECRET
    security = sasl("SCRAM-SHA-256", SCRAM_LOGIN.replace('"alice"', '"a=b,c"'))
    with Client(broker.bootstrap_servers, security=security) as client:
        assert isinstance(client.run(ask(call()))[0], Reply)


def test_requests_larger_than_all_buffers_get_through_tls(start, ca):
    broker = start()
    serve, sizes = broker.react, []

    def react(header, message):
        if header.api_key == ApiKey.PRODUCE:
            sizes.append(len(message.topic_data[0].partition_data[0].records))
            return answer_bytes(header, APIS[ApiKey.PRODUCE].response(responses=[]))
        return serve(header, message)

    broker.react = react
    topic = PRODUCE.TopicProduceData
    part = topic.PartitionProduceData(index=0, records=b"x" * 8_000_000)
    big = PRODUCE(acks=-1, timeout_ms=1, topic_data=[topic(name="t", partition_data=[part])])
    with Client(broker.bootstrap_servers, security=trusting(ca)) as client:
        outcomes = client.run(ask(Call(-1, big, 60_000, 9), call()))
    assert all(isinstance(o, Reply) for o in outcomes)
    assert sizes == [8_000_000]


def test_a_client_certificate_is_shown_to_a_broker_that_asks_for_one(start, ca, other_ca):
    broker = start(client_ca=other_ca)
    client = other_ca.sign()
    security = trusting(
        ca,
        ssl_keystore_type="PEM",
        ssl_keystore_key=client.encrypted_key_pem("k"),
        ssl_keystore_certificate_chain=client.chain_pem,
        ssl_key_password="k",
    )
    with Client(broker.bootstrap_servers, security=security) as connected:
        assert isinstance(connected.run(ask(call()))[0], Reply)
    # TLS 1.3 has the client believe that it is in until it reads.
    text = refused(broker.bootstrap_servers, trusting(ca), TxnLogError)
    assert "kafka.ssl.keystore.location" in text


# ------------------------------------------------------------------ who is not let in


def test_another_ca_is_one_line_at_once(start, other_ca):
    text = refused(start().bootstrap_servers, trusting(other_ca))
    assert "not signed by a CA that is trusted here: look at kafka.ssl.truststore" in text


def test_an_expired_certificate_is_one_line_at_once(start, ca):
    broker = start(signed=ca.sign(*LOCAL, days=-1))
    text = refused(broker.bootstrap_servers, trusting(ca))
    assert "has expired: renew it on the broker" in text
    assert "kafka.ssl.truststore" in text


def test_a_certificate_for_another_host_is_refused_unless_any_is_accepted(start, ca):
    broker = start(signed=ca.sign("elsewhere.example"))
    text = refused(broker.bootstrap_servers, trusting(ca))
    assert "kafka.ssl.endpoint.identification.algorithm" in text
    security = trusting(ca, ssl_endpoint_identification_algorithm="")
    with Client(broker.bootstrap_servers, security=security) as client:
        assert isinstance(client.run(ask(call()))[0], Reply)


@pytest.mark.parametrize(("mechanism", "jaas"), LOGINS)
def test_a_wrong_password_is_one_line_without_it(start, mechanism, jaas):
    broker = start(mechanism, tls=False)
    broker.users["alice"] = "another"
    text = refused(broker.bootstrap_servers, sasl(mechanism, jaas))
    assert f"the broker refused the login of user 'alice' by {mechanism}" in text
    assert "look at the user's name and password in kafka.sasl.jaas.config" in text


def test_a_broker_that_repeats_the_password_is_not_repeated(start):
    broker = start("PLAIN", tls=False)
    broker.say = f"no\n{SECRET} here"
    assert "no ... here" in refused(broker.bootstrap_servers, sasl("PLAIN", PLAIN_LOGIN))


def test_a_mechanism_that_the_listener_has_not_is_named_with_those_it_has(start):
    broker = start("SCRAM-SHA-512", "OAUTHBEARER", tls=False)
    text = refused(broker.bootstrap_servers, sasl("PLAIN", PLAIN_LOGIN))
    assert "kafka.sasl.mechanism=PLAIN is not enabled" in text
    assert "OAUTHBEARER, SCRAM-SHA-512" in text


def test_too_few_iterations_are_not_answered_with_a_proof(start):
    broker = start("SCRAM-SHA-256", tls=False)
    broker.iterations = 1
    text = refused(broker.bootstrap_servers, sasl("SCRAM-SHA-256", SCRAM_LOGIN))
    assert "fewer than 4096 SCRAM iterations" in text


def test_a_listener_that_asks_for_no_login_is_one_line(start):
    broker = start(tls=False, versions=SASL_VERSIONS)
    text = refused(broker.bootstrap_servers, sasl("PLAIN", PLAIN_LOGIN))
    assert "does not ask for SASL: set kafka.security.protocol to PLAINTEXT or SSL" in text


def test_a_broker_too_old_for_a_login_in_frames_is_one_line(start):
    broker = start(tls=False)
    text = refused(broker.bootstrap_servers, sasl("PLAIN", PLAIN_LOGIN))
    assert "does not support SaslHandshake v1" in text


def test_plain_text_to_a_tls_listener_names_the_option(start):
    text = refused(start().bootstrap_servers, read_security({}), TxnLogError)
    assert "TLS" in text
    assert "set kafka.security.protocol to SSL or SASL_SSL" in text


@contextlib.contextmanager
def listening(answer: bytes | None):
    """Answers the first bytes with these and closes; with None it only accepts."""
    with SocketBroker() as broker:

        def serve(connection):
            connection.recv(65536)
            if answer is not None:
                # The client may have ended the test, which closes the connection.
                with contextlib.suppress(OSError):
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_RDWR)

        broker._serve = serve
        yield broker


def test_tls_to_a_listener_in_plain_text_names_the_option(ca):
    with listening(b"") as broker:
        text = refused(broker.bootstrap_servers, trusting(ca), DeadlineExceeded)
        assert "closed the connection within the TLS handshake" in text
        assert "look at kafka.security.protocol" in text
    with listening(b"HTTP/1.1 400 Bad Request\r\n\r\n") as broker:
        text = refused(broker.bootstrap_servers, trusting(ca))
        assert "is not TLS" in text
        assert "look at kafka.security.protocol" in text


def test_a_listener_that_is_silent_in_the_handshake_is_given_up_in_time(ca):
    with listening(None) as broker:
        text = refused(broker.bootstrap_servers, trusting(ca), DeadlineExceeded, SHORT)
    assert "did not answer in time within the TLS handshake" in text


def test_a_silent_handshake_holds_up_nobody_else(start, ca):
    good = start()

    def operation(session, silent):
        session.cluster = ClusterView({1: ("127.0.0.1", silent.port), 2: ("127.0.0.1", good.port)})
        first = yield Send(call(node=1))
        second = yield Send(call(node=2))
        return second, (yield Receive(frozenset({first, second})))

    with listening(None) as silent, Client(good.bootstrap_servers, security=trusting(ca)) as client:
        second, (received, outcome) = client.run(operation(client.session, silent))
    assert received == second
    assert isinstance(outcome, Reply)


def test_a_host_name_is_looked_up_and_connected_to(start, ca):
    broker = start()
    with Client(f"localhost:{broker.port}", security=trusting(ca)) as client:
        assert isinstance(client.run(ask(call()))[0], Reply)


def test_a_host_that_nobody_knows_is_named():
    text = refused("no-such-host.invalid:9092", read_security({}), DeadlineExceeded)
    assert "cannot connect to no-such-host.invalid:9092" in text


# ------------------------------------------------------------------ a login for a time


def test_a_login_is_renewed_on_the_same_connection_before_it_ends(start, clock):
    broker = start("SCRAM-SHA-256", tls=False)
    broker.lifetime_ms = 60_000
    security = sasl("SCRAM-SHA-256", SCRAM_LOGIN)
    login = ["SASL_HANDSHAKE", "SASL_AUTHENTICATE", "SASL_AUTHENTICATE"]
    with Client(broker.bootstrap_servers, security=security, clock=clock) as client:
        client.run(ask(call()))
        clock.now_s += 50
        client.run(ask(call()))
        clock.now_s += 2
        outcomes = client.run(ask(call(), call()))
        assert all(isinstance(o, Reply) for o in outcomes)
        broker.users["alice"] = "another"
        clock.now_s += 52
        with pytest.raises(SecurityRefused, match="refused the login"):
            client.run(refresh_metadata(client.session, ()))
    once = ["API_VERSIONS", *login, "METADATA", "METADATA", *login, "METADATA", "METADATA"]
    assert broker.log[: len(once)] == once
    assert broker.connections == 1


@pytest.mark.parametrize("newest", [4, 5])
def test_brokers_are_named_again_after_the_login_which_is_when_they_look(start, newest):
    """KIP-1242: the request before the login is not compared. Older brokers never look."""
    broker = start("PLAIN", tls=False)
    broker.versions = SASL_VERSIONS | {ApiKey.API_VERSIONS: (0, newest)}
    with Client(broker.bootstrap_servers, security=sasl("PLAIN", PLAIN_LOGIN)) as client:
        client.run(refresh_metadata(client.session, ()))
        broker.close_connections()
        asked_before = len(broker.log)
        client.run(refresh_metadata(client.session, ()))
        before = ["API_VERSIONS"] * (6 - newest)  # once more in a version that the broker knows
        login = ["SASL_HANDSHAKE", "SASL_AUTHENTICATE"]
        again = ["API_VERSIONS"] if newest == 5 else []
        assert broker.log[asked_before:][-4:] == [*before, *login, *again, "METADATA"][-4:]
        broker.close_connections()
        broker.cluster_id = "other"
        with pytest.raises(WrongCluster):
            client.run(refresh_metadata(client.session, ()))


def test_requests_on_their_way_are_answered_while_a_login_is_renewed(start, clock):
    broker = start("PLAIN", tls=False)
    broker.lifetime_ms = 60_000

    def operation():
        tickets = [(yield Send(call()))]
        clock.now_s += 10
        yield Receive(frozenset(tickets))
        tickets = [(yield Send(call(timeout_ms=90_000)))]
        clock.now_s += 52
        tickets.append((yield Send(call(timeout_ms=90_000))))
        first = yield Receive(frozenset({tickets[0]}))
        second = yield Receive(frozenset({tickets[1]}))
        return [first[1], second[1]]

    with Client(
        broker.bootstrap_servers, security=sasl("PLAIN", PLAIN_LOGIN), clock=clock
    ) as client:
        outcomes = client.run(operation())
    assert [type(o) for o in outcomes] == [Reply, Reply]
    assert broker.log.count("SASL_HANDSHAKE") == 2
    assert broker.connections == 1


# ------------------------------------------------------------------ what is said of secrets


def test_a_repr_has_no_secret_and_a_pickle_is_the_same_again(ca):
    security = sasl("PLAIN", PLAIN_LOGIN, ca)
    assert repr(security) == "Security(protocol='SASL_SSL')"
    assert pickle.loads(pickle.dumps(security)) == security
    assert SECRET not in repr(security.login_module)


NEEDED = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}


@pytest.mark.parametrize(
    ("options", "option", "text"),
    [
        ({"sasl.mechanism": ""}, "sasl.mechanism", "set it, to one of PLAIN"),
        ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism", "Kerberos"),
        ({}, "sasl.jaas.config", "ScramLoginModule"),
        ({"sasl.jaas.config": PLAIN_LOGIN}, "sasl.jaas.config", "needs the login module Scram"),
        ({"sasl.jaas.config": SCRAM_LOGIN[:-1]}, "sasl.jaas.config", "semicolon"),
        ({"sasl.jaas.config": 'a.ScramLoginModule required username="u";'}, "sasl.jaas.config",
         'password="..." is missing'),
        ({"sasl.jaas.config": SCRAM_LOGIN[:-1] + " tokenauth=true;"}, "sasl.jaas.config",
         "'tokenauth' is not supported yet"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "sasl.oauthbearer.token.endpoint.url", "set it"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.login.callback.handler.class": "com.a.Handler"},
         "sasl.login.callback.handler.class", "no JVM"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "file:/t"},
         "sasl.oauthbearer.token.endpoint.url", "https"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://t"},
         "sasl.oauthbearer.client.credentials.client.id", "set it"),
        ({"sasl.mechanism": "AWS_MSK_IAM", "security.protocol": "SASL_PLAINTEXT"},
         "security.protocol", "SASL_SSL"),
    ],
)  # fmt: skip
def test_what_does_not_belong_together_names_the_option(options, option, text):
    with pytest.raises(OptionError) as caught:
        read_security(NEEDED | options)
    assert caught.value.name == f"kafka.{option}"
    assert text in str(caught.value)
    assert SECRET not in str(caught.value)
