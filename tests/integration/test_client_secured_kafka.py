"""The client on every kind of listener of both brokers, and what it says when not let in."""

from __future__ import annotations

import re
import time

import pytest
from support.brokers.probe import wait_until
from support.brokers.tls_kafka import LISTENERS, PASSWORD, SESSION_MS, TLS_BROKERS, TOKEN_USER, USER
from support.clients.librdkafka import read_topic, values_of
from support.harness.availability import started_when_asked
from support.query.commit_plans import build_plan, commit_on, record_batch, staged
from support.stores.token_endpoint import TokenEndpoint, unsigned_token

from txnlog_kafka.host.client import Client
from txnlog_kafka.host.security import read_security
from txnlog_kafka.operations.effects import ANY_NODE, Call, Calls, Receive, Reply, Send
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.operations.session import SessionConfig
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_spark.errors import DeadlineExceeded, SecurityRefused, TxnLogError

SHORT = SessionConfig(bootstrap_timeout_ms=3_000, request_timeout_ms=2_500)
MODULES = "org.apache.kafka.common.security"
PLAIN = f'{MODULES}.plain.PlainLoginModule required username="{USER}" password="{PASSWORD}";'
SCRAM = PLAIN.replace("plain.Plain", "scram.Scram")
LOGINS = {"PLAIN": PLAIN, "SCRAM-SHA-256": SCRAM, "SCRAM-SHA-512": SCRAM}


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Return a function that starts a broker of each kind when a test first asks for the kind."""
    with started_when_asked(TLS_BROKERS, tmp_path_factory.mktemp) as broker_of:
        yield broker_of


@pytest.fixture
def kafka(broker_name, started):
    """Each of both brokers."""
    return started(broker_name)


def options_for(kafka, listener, mechanism=None, jaas=None):
    """Security options of a listener, trusting its CA."""
    options = {
        "security.protocol": LISTENERS[listener],
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(kafka.security.ca_file),
    }
    if mechanism is not None:
        options |= {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": jaas or LOGINS[mechanism],
        }
    return options


def connect(kafka, listener, options, **settings):
    return Client(kafka.security.address(listener), security=read_security(options), **settings)


def commit_and_read(client, kafka, unique):
    """A transaction of two records and a group's offset, as seen by somebody else."""
    topic, source = unique("out"), unique("in")
    client.create_topic(topic, partitions=1)
    client.create_topic(source, partitions=1)
    plan = build_plan(
        0,
        staged=staged(topic, 0, record_batch("a", "b")),
        transactional_id=unique("t"),
        group_id=unique("g"),
        progress_group_id=unique("progress"),
        source_offsets={(source, 0): 7},
        source_digest="digest",
    )
    outcome = commit_on(client, plan)
    assert outcome.produced_records == 2
    assert client.committed_offsets(unique("g"), partitions=[(source, 0)]) == {(source, 0): 7}
    return values_of(read_topic(kafka.bootstrap_servers, topic))


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        ("SSL", None),
        *(("SASL_SSL", mechanism) for mechanism in LOGINS),
        *(("SASL_PLAINTEXT", mechanism) for mechanism in LOGINS),
    ],
)
def test_a_transaction_is_committed_and_read_by_every_listener(kafka, unique, listener, mechanism):
    with connect(kafka, listener, options_for(kafka, listener, mechanism)) as client:
        assert commit_and_read(client, kafka, unique) == ["a", "b"]


def test_a_client_certificate_lets_in(kafka, unique, tmp_path):
    file = kafka.security.ca.sign().write_pem(tmp_path / "client.pem")
    options = options_for(kafka, "MUTUAL")
    options |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(file)}
    with connect(kafka, "MUTUAL", options) as client:
        assert commit_and_read(client, kafka, unique) == ["a", "b"]


@pytest.mark.parametrize("listener", ["SASL_SSL", "SIGNED"])
def test_a_token_of_an_endpoint_lets_in(kafka, unique, listener):
    now_s = int(time.time())
    good, late = {"exp": now_s + 3600, "iat": now_s}, {"exp": now_s - 60, "iat": now_s - 120}

    def token(times):
        if listener == "SIGNED":
            return kafka.security.signed_token(**times)
        return unsigned_token(TOKEN_USER, times["exp"], times["iat"])

    options = options_for(kafka, listener) | {"sasl.mechanism": "OAUTHBEARER"}
    with TokenEndpoint({"access_token": token(good)}) as endpoint:
        options |= {
            "sasl.oauthbearer.token.endpoint.url": endpoint.url,
            "sasl.oauthbearer.client.credentials.client.id": endpoint.client,
            "sasl.oauthbearer.client.credentials.client.secret": endpoint.secret,
        }
        with connect(kafka, listener, options) as client:
            assert commit_and_read(client, kafka, unique) == ["a", "b"]
        endpoint.answer = {"access_token": token(late)}
        text = refused(kafka, listener, options)
    assert f"refused the login of client '{endpoint.client}'" in text
    assert endpoint.answer["access_token"] not in text


def test_a_connection_outlives_its_login(kafka):
    """A client must renew its login: the broker ends a connection at a request after the expiry.

    The test sends requests all the time, so each later request follows a login that would have
    expired.
    """
    options = options_for(kafka, "SHORT", "SCRAM-SHA-256")
    with connect(kafka, "SHORT", options) as client:
        client.run(refresh_metadata(client.session, ()))
        (first,) = client._connections.values()
        until_s = time.monotonic() + 3 * SESSION_MS / 1000

        def over():
            client.run(refresh_metadata(client.session, ()))
            return time.monotonic() > until_s

        wait_until(over, "three logins to be over")
        assert list(client._connections.values()) == [first]


def test_requests_on_their_way_are_answered_while_a_login_is_renewed(kafka):
    """The client's clock runs ahead, so that it renews the login while the broker is at work."""
    ahead_s = [0.0]
    ask = Call(ANY_NODE, APIS[ApiKey.METADATA].request(topics=[]), 60_000)

    def operation():
        yield Calls((ask,))
        tickets = [(yield Send(ask)), (yield Send(ask))]
        ahead_s[0] += SESSION_MS / 1000
        tickets += [(yield Send(ask)), (yield Send(ask))]
        outcomes = []
        for ticket in tickets:
            received = yield Receive(frozenset({ticket}))
            outcomes.append(received[1])
        return outcomes

    options = options_for(kafka, "SHORT", "SCRAM-SHA-256")
    with connect(kafka, "SHORT", options, clock=lambda: time.monotonic() + ahead_s[0]) as client:
        client.run(refresh_metadata(client.session, ()))
        (first,) = client._connections.values()
        due_s = first._login_due_s
        outcomes = client.run(operation())
        assert list(client._connections.values()) == [first]
        assert first._login_due_s > due_s
    assert [type(outcome) for outcome in outcomes] == [Reply] * 4


# ------------------------------------------------------------------ who is not let in


def refused(kafka, listener, options, kind=SecurityRefused, config=None):
    with (
        connect(kafka, listener, options, config=config) as client,
        pytest.raises(kind) as caught,
    ):
        client.run(refresh_metadata(client.session, ()))
    assert "\n" not in str(caught.value)
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("mechanism", LOGINS)
def test_a_wrong_password(kafka, mechanism):
    jaas = LOGINS[mechanism].replace(PASSWORD, "hunter2")
    text = refused(kafka, "SASL_SSL", options_for(kafka, "SASL_SSL", mechanism, jaas))
    assert f"the broker refused the login of user '{USER}' by {mechanism}" in text
    assert "look at the user's name and password in kafka.sasl.jaas.config" in text
    assert "hunter2" not in text


def test_another_ca(kafka, tmp_path):
    options = options_for(kafka, "SSL")
    del options["ssl.truststore.type"], options["ssl.truststore.location"]
    text = refused(kafka, "SSL", options)
    assert "not signed by a CA that is trusted here: look at kafka.ssl.truststore" in text


def test_a_certificate_for_another_host(kafka):
    options = options_for(kafka, "ELSEWHERE")
    text = refused(kafka, "ELSEWHERE", options)
    assert "kafka.ssl.endpoint.identification.algorithm" in text
    options["ssl.endpoint.identification.algorithm"] = ""
    with connect(kafka, "ELSEWHERE", options) as client:
        client.run(refresh_metadata(client.session, ()))


REFUSED = {
    "a mechanism that the listener does not have": (
        "SHORT", "SHORT", "PLAIN", (SecurityRefused, None),
        r"kafka\.sasl\.mechanism=PLAIN is not enabled on this .*which has: SCRAM-SHA-256",
    ),
    "an expired certificate": (
        "EXPIRED", "EXPIRED", None, (SecurityRefused, None),
        r"a certificate of the broker has expired.*kafka\.ssl\.truststore",
    ),
    "no certificate where one is asked for": (
        "MUTUAL", "MUTUAL", None, (TxnLogError, SHORT), r"look at kafka\.ssl\.keystore\.location",
    ),
    "plain text to TLS": (
        "SSL", None, None, (TxnLogError, SHORT),
        r"set kafka\.security\.protocol to SSL or SASL_SSL",
    ),
    "no login where one is asked for": (
        "SASL_PLAINTEXT", None, None, (DeadlineExceeded, SHORT),
        r"set kafka\.security\.protocol to SASL_PLAINTEXT or SASL_SSL",
    ),
    "TLS to plain text": (
        "SASL_PLAINTEXT", "SSL", None, (TxnLogError, SHORT), r"look at kafka\.security\.protocol",
    ),
    "a login where none is asked for": (
        "SSL", "SASL_SSL", "PLAIN", (SecurityRefused, None),
        r"does not ask for SASL: set kafka\.security\.protocol to PLAINTEXT or SSL",
    ),
}  # fmt: skip
"""The listener, the one that the options are for, the login, how it is refused, what is told."""


@pytest.mark.parametrize(
    ("listener", "meant", "mechanism", "how", "told"), REFUSED.values(), ids=REFUSED
)
def test_a_client_that_is_not_let_in_is_told_the_option_to_look_at(
    kafka, listener, meant, mechanism, how, told
):
    options = options_for(kafka, meant, mechanism) if meant else {}
    assert re.search(told, refused(kafka, listener, options, *how))
