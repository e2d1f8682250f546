"""Logins of connections: what is answered when, renewals, users that are added and removed."""

from __future__ import annotations

import itertools
import json

import pytest
from support.clients.sasl_client import MECHANISM_IDS, SASL_CONFIG, USERS, add_user, log_in
from support.core.broker_build import BrokerOnDisk, request

from broker_sim.apis import BROKER_APIS
from broker_sim.core.config import ConfigError
from broker_sim.core.effects import Disconnected, Effects, Request
from broker_sim.core.security.bearer import Bearer, TokenRefused
from broker_sim.core.security.logins import TAKES, VALID_PREVIOUS, Login, LoginState
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import InvariantViolation
from txnlog_kafka.wire.messages import ApiKey

PASSWORD = "alice-secret"


def secured(**options) -> BrokerOnDisk:
    """Everybody comes by the listener with SASL."""
    broker = BrokerOnDisk(SASL_CONFIG | {k.replace("_", "."): v for k, v in options.items()})
    broker.listener = "SASL_PLAINTEXT"
    return broker


def with_alice(**options) -> BrokerOnDisk:
    """A broker with a SCRAM user, added over the listener without SASL."""
    broker = secured(**options)
    broker.listener = "PLAINTEXT"
    for mechanism in MECHANISM_IDS:
        assert add_user(broker, "alice", PASSWORD, mechanism) == 0
    broker.listener = "SASL_PLAINTEXT"
    return broker


def principal_of(broker: BrokerOnDisk, connection_id: int = 1) -> str:
    return broker.parts.logins._logins[connection_id].principal


def versions() -> object:
    return request(ApiKey.API_VERSIONS, client_software_name="test", client_software_version="1")


METADATA = request(ApiKey.METADATA, topics=[])


def test_who_logs_in_may_ask():
    broker = secured()
    assert broker.ask(versions(), 3).error_code == 0
    assert log_in(broker, "bob", USERS["bob"]).error_code == 0
    assert principal_of(broker) == "User:bob"
    assert broker.ask(METADATA, 12).brokers


def test_a_broker_that_logs_in_may_ask_what_brokers_ask():
    broker, login = secured(), Login()
    login.move(LoginState.AUTHENTICATE)
    login.move(LoginState.COMPLETE)
    logins = broker.parts.logins
    logins._logins[1] = login
    for own in BROKER_APIS.values():
        asked = Request(1, 0, own.key, own.version, "broker-1", "127.0.0.1", own.request(),
                        "SASL_PLAINTEXT", "User:broker")  # fmt: skip
        assert logins.admit(asked, Effects(0, 0)) == "User:broker"


@pytest.mark.parametrize("mechanism", MECHANISM_IDS)
def test_scram_users_log_in_also_after_a_crash(mechanism):
    broker = with_alice()
    broker.kill()
    assert log_in(broker, "alice", PASSWORD, mechanism).error_code == 0
    assert principal_of(broker) == "User:alice"
    answer = log_in(broker, "alice", "wrong", mechanism, connection_id=2)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "alice" not in answer.error_message


def test_a_name_with_signs_of_scram_logs_in():
    broker = with_alice()
    broker.listener = "PLAINTEXT"
    assert add_user(broker, "a=b,c", PASSWORD) == 0
    broker.listener = "SASL_PLAINTEXT"
    assert log_in(broker, "a=b,c", PASSWORD, "SCRAM-SHA-256").error_code == 0
    assert principal_of(broker) == "User:a=b,c"


@pytest.mark.invariant(77)
def test_nothing_else_is_answered_before_the_login():
    broker = secured()
    for number, message in enumerate((METADATA, request(ApiKey.SASL_AUTHENTICATE, auth_bytes=b""))):
        broker.send(message, 0 if message is not METADATA else 12, connection_id=number)
        assert "in the state initial of the login" in broker.asked.closed[number]
    broker.ask(versions(), 3, connection_id=7)
    broker.send(versions(), 3, connection_id=7)
    assert 7 in broker.asked.closed
    broker.ask(request(ApiKey.SASL_HANDSHAKE, mechanism="PLAIN"), 1, connection_id=8)
    broker.send(METADATA, 12, connection_id=8)
    assert 8 in broker.asked.closed


def test_a_mechanism_that_is_not_enabled_is_answered_late_and_the_connection_closes():
    broker = secured(sasl_enabled_mechanisms="PLAIN")
    key = broker.send(request(ApiKey.SASL_HANDSHAKE, mechanism="SCRAM-SHA-256"), 1)
    broker.advance(99)
    assert key not in broker.asked.answers
    broker.advance(1)
    answer = broker.asked.answers[key]
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == ["PLAIN"]
    assert 1 in broker.asked.closed


def test_a_wrong_password_is_answered_late_and_the_connection_closes():
    broker = secured()
    assert log_in(broker, "bob", "wrong").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert 1 in broker.asked.closed


def test_a_client_that_leaves_is_not_answered_any_more():
    broker = secured()
    broker.ask(request(ApiKey.SASL_HANDSHAKE, mechanism="PLAIN"), 1)
    key = broker.send(request(ApiKey.SASL_AUTHENTICATE, auth_bytes=b"\0bob\0wrong"), 2)
    broker.step(Disconnected(1))
    broker.advance(1000)
    assert key not in broker.asked.answers
    assert not broker.parts.logins._logins


def test_a_listener_without_sasl_says_so():
    broker = secured()
    broker.listener = "PLAINTEXT"
    answer = broker.ask(request(ApiKey.SASL_HANDSHAKE, mechanism="PLAIN"), 1)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    answer = broker.ask(request(ApiKey.SASL_AUTHENTICATE, auth_bytes=b""), 2)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE


# ------------------------------------------------------------------ tokens


def check_token(token: str, now_ms: int) -> Bearer:
    """A token is the user's name and the seconds after which it ends."""
    user, _, seconds = token.partition(".")
    if not seconds:
        raise TokenRefused("no time")
    return Bearer(user, now_ms + int(seconds) * 1000)


def with_tokens(**options) -> BrokerOnDisk:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
    jaas = {"listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": module}
    given = {"sasl.enabled.mechanisms": "OAUTHBEARER"} | options
    broker = BrokerOnDisk(SASL_CONFIG | jaas | given)
    broker.listener = "SASL_PLAINTEXT"
    broker.parts.logins._token_checks = {"SASL_PLAINTEXT": check_token}
    return broker


def show(broker: BrokerOnDisk, token: str):
    """SaslAuthenticate with a token."""
    data = f"n,,\1auth=Bearer {token}\1\1".encode()
    return broker.ask(request(ApiKey.SASL_AUTHENTICATE, auth_bytes=data), 2)


HANDSHAKE = request(ApiKey.SASL_HANDSHAKE, mechanism="OAUTHBEARER")


@pytest.mark.parametrize(
    ("longest_ms", "lifetime_ms"), [("0", 60_000), ("10000", 10_000), ("90000", 60_000)]
)
def test_a_login_ends_with_its_token_at_the_latest(longest_ms, lifetime_ms):
    broker = with_tokens(**{"connections.max.reauth.ms": longest_ms})
    broker.ask(HANDSHAKE, 1)
    assert show(broker, "carol.60").session_lifetime_ms == lifetime_ms
    assert principal_of(broker) == "User:carol"
    broker.advance(lifetime_ms - 1)
    broker.ask(HANDSHAKE, 1)
    assert show(broker, "carol.60").error_code == 0
    broker.advance(lifetime_ms)
    assert broker.ask(METADATA, 12).brokers
    broker.advance(1)
    broker.send(METADATA, 12)
    assert broker.asked.closed[1] == "the login is over, and was not renewed"


def test_a_token_that_is_refused_may_be_followed_by_another_one():
    broker = with_tokens()
    broker.ask(HANDSHAKE, 1)
    answer = show(broker, "carol")
    assert (answer.error_code, answer.auth_bytes) == (0, b'{"status":"invalid_token"}')
    assert show(broker, "carol.60").error_code == 0
    assert principal_of(broker) == "User:carol"


# ------------------------------------------------------------------ renewals (KIP-368)


def test_a_login_ends_unless_it_is_renewed():
    broker = secured(connections_max_reauth_ms="5000")
    assert log_in(broker, "bob", USERS["bob"]).session_lifetime_ms == 5000
    broker.advance(4000)
    assert log_in(broker, "bob", USERS["bob"]).session_lifetime_ms == 5000
    broker.advance(4000)
    assert broker.ask(METADATA, 12).brokers
    broker.advance(1500)
    broker.send(METADATA, 12)
    assert broker.asked.closed[1] == "the login is over, and was not renewed"


def test_a_login_that_is_over_can_be_renewed():
    broker = secured(connections_max_reauth_ms="5000")
    log_in(broker, "bob", USERS["bob"])
    broker.advance(60_000)
    assert log_in(broker, "bob", USERS["bob"]).error_code == 0
    assert broker.ask(METADATA, 12).brokers


def test_a_login_that_does_not_end_is_not_renewed():
    broker = secured()
    log_in(broker, "bob", USERS["bob"])
    again = request(ApiKey.SASL_HANDSHAKE, mechanism="PLAIN")
    assert broker.ask(again, 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert broker.ask(METADATA, 12).brokers


def test_renewals_come_a_second_apart():
    broker = secured(connections_max_reauth_ms="60000")
    log_in(broker, "bob", USERS["bob"])
    log_in(broker, "bob", USERS["bob"])
    again = request(ApiKey.SASL_HANDSHAKE, mechanism="PLAIN")
    assert broker.ask(again, 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    broker.advance(1000)
    assert broker.ask(again, 1).error_code == 0


@pytest.mark.parametrize(("user", "password"), [("admin", USERS["admin"]), ("bob", "wrong")])
def test_a_login_is_renewed_by_its_user_only(user, password):
    broker = secured(connections_max_reauth_ms="60000")
    log_in(broker, "bob", USERS["bob"])
    answer = log_in(broker, user, password)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert 1 in broker.asked.closed


def test_a_renewal_by_another_mechanism_closes_the_connection():
    broker = with_alice(connections_max_reauth_ms="60000")
    log_in(broker, "bob", USERS["bob"])
    again = request(ApiKey.SASL_HANDSHAKE, mechanism="SCRAM-SHA-256")
    assert broker.ask(again, 1).error_code == 0
    key = broker.send(request(ApiKey.SASL_AUTHENTICATE, auth_bytes=b"n,,n=alice,r=a"), 2)
    broker.advance(200)
    assert key not in broker.asked.answers
    assert 1 in broker.asked.closed


# ------------------------------------------------------------------ users


def described(broker: BrokerOnDisk, *names: str) -> dict[str, tuple[int, dict[int, int]]]:
    users = [{"name": name} for name in names]
    message = request(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, users=users)
    return {
        each.user: (each.error_code, {i.mechanism: i.iterations for i in each.credential_infos})
        for each in broker.ask(message, 0).results
    }


def remove(broker: BrokerOnDisk, name: str, mechanism: int = 1) -> int:
    deletions = [{"name": name, "mechanism": mechanism}]
    message = request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, deletions=deletions)
    return broker.ask(message, 0).results[0].error_code


def test_users_are_described_changed_and_removed():
    broker = with_alice()
    broker.listener = "PLAINTEXT"
    assert described(broker) == {"alice": (0, {1: 4096, 2: 4096})}
    assert add_user(broker, "alice", "another", "SCRAM-SHA-256", {"iterations": 8192}) == 0
    assert described(broker, "alice", "nobody") == {
        "alice": (0, {1: 8192, 2: 4096}),
        "nobody": (ErrorCode.RESOURCE_NOT_FOUND, {}),
    }
    assert described(broker, "alice", "alice")["alice"][0] == ErrorCode.DUPLICATE_RESOURCE
    assert remove(broker, "alice") == 0
    assert remove(broker, "alice") == ErrorCode.RESOURCE_NOT_FOUND
    broker.kill()
    assert described(broker) == {"alice": (0, {2: 4096})}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 4095}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 16385}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"mechanism": 3}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
def test_a_user_that_cannot_be_is_refused(fields, error):
    broker = BrokerOnDisk()
    assert add_user(broker, "alice", PASSWORD, "SCRAM-SHA-256", fields) == error
    assert described(broker) == {}


def test_a_user_is_changed_once_in_a_request():
    broker = with_alice()
    broker.listener = "PLAINTEXT"
    deletions = [{"name": "alice", "mechanism": 1}] * 3
    message = request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, deletions=deletions)
    (result,) = broker.ask(message, 0).results
    assert result.error_code == ErrorCode.DUPLICATE_RESOURCE
    assert described(broker) == {"alice": (0, {1: 4096, 2: 4096})}


def test_no_trace_has_a_key_of_a_user():
    broker = with_alice()
    texts = [json.dumps(dict(t.fields), default=str) for s in broker.steps for t in s.traces]
    assert any("SCRAM_SHA_256" in text for text in texts)
    assert not any("_key" in text or "salt" in text for text in texts)


# ------------------------------------------------------------------ configuration and tables


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("", "must have the login module of PLAIN"),
        ("nonsense secret-word", "must be"),
        ("x.ScramLoginModule required;", "must have a PlainLoginModule for PLAIN"),
    ],
)
def test_a_login_module_that_cannot_be_is_named_without_its_text(value, match):
    option = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    with pytest.raises(ConfigError, match=match) as caught:
        BrokerOnDisk(SASL_CONFIG | {option: value})
    assert option in str(caught.value)
    assert "secret-word" not in str(caught.value)


def test_every_state_is_in_the_tables_and_all_pairs_are_checked():
    assert set(VALID_PREVIOUS) == set(TAKES) == set(LoginState)
    for before, after in itertools.product(LoginState, repeat=2):
        login = Login(before)
        if before in VALID_PREVIOUS[after]:
            login.move(after)
            assert login.state is after
        else:
            with pytest.raises(InvariantViolation):
                login.move(after)
