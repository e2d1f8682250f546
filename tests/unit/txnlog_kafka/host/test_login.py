"""A broker may answer anything in a login: it is one line, and never another kind of error."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sockets.few_attempts import client_of_few_attempts
from support.sockets.socket_broker import VERSIONS, SocketBroker

from txnlog_kafka.errors import TxnLogError
from txnlog_kafka.host.channel_builder import UserLogin
from txnlog_kafka.operations.metadata import refresh_metadata
from txnlog_kafka.wire.login import LoginRefused
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.sasl import OAuthBearer, password_mechanism

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
HANDSHAKE = APIS[ApiKey.SASL_HANDSHAKE].response(error_code=0, mechanisms=[])
AUTHENTICATE = APIS[ApiKey.SASL_AUTHENTICATE].response
WORDS = st.text("rsieva=,0123456789 Az+/", max_size=40).map(str.encode)


def begun(mechanism):
    """A login whose SaslHandshake has been answered."""
    if mechanism == "OAUTHBEARER":
        made = OAuthBearer("hunter2", {})
    else:
        made = password_mechanism(mechanism, "u", "hunter2", nonce="nonce")
    login = UserLogin(mechanism, made, who="user 'u'", look_at="the option", secrets=["hunter2"])
    assert login.begin().mechanism == mechanism
    assert login.on_answer(HANDSHAKE) is not None
    return login


@given(mechanism=st.sampled_from(MECHANISMS), answers=st.lists(st.binary() | WORDS, max_size=4))
def test_any_answers_end_in_a_login_or_in_one_line(mechanism, answers):
    login = begun(mechanism)
    for auth_bytes in answers:
        try:
            request = login.on_answer(AUTHENTICATE(error_code=0, auth_bytes=auth_bytes))
        except LoginRefused as error:
            assert "\n" not in str(error)
            assert "hunter2" not in str(error)
            return
        if request is None:
            # It was let in: by an empty answer, as SCRAM's proof cannot be guessed.
            assert auth_bytes == b""
            return


def test_a_scram_answer_with_another_nonce_is_refused():
    login = begun("SCRAM-SHA-256")
    with pytest.raises(LoginRefused, match="not one of SCRAM-SHA-256"):
        login.on_answer(AUTHENTICATE(error_code=0, auth_bytes=b"r=other,s=c2FsdA==,i=4096"))


@pytest.mark.parametrize(("lifetime_ms", "renewed_after_s"), [(0, math.inf), (10_000, 8.5)])
def test_a_login_is_a_handshake_and_then_the_mechanisms_bytes(lifetime_ms, renewed_after_s):
    login = UserLogin(
        "PLAIN", password_mechanism("PLAIN", "u", "hunter2", ""), who="user 'u'", look_at="it"
    )
    assert login.begin().mechanism == "PLAIN"
    assert bytes(login.on_answer(HANDSHAKE).auth_bytes) == b"u\0u\0hunter2"
    done = AUTHENTICATE(error_code=0, auth_bytes=b"", session_lifetime_ms=lifetime_ms)
    assert login.on_answer(done) is None
    assert login.renewed_after_s == renewed_after_s
    assert "hunter2" not in repr(login)


def test_a_broker_without_a_common_version_of_api_versions_is_asked_twice():
    asked = []

    class Newer(SocketBroker):
        def _reaction(self, frame):
            asked.append(frame[3])
            return super()._reaction(frame)

    with Newer(versions=VERSIONS | {ApiKey.API_VERSIONS: (9, 9)}) as broker:
        opened = client_of_few_attempts(broker.bootstrap_servers)
        with opened as client, pytest.raises(TxnLogError, match="refused ApiVersions: UNSUPPORTED"):
            client.run(refresh_metadata(client.session, ()))
    assert asked[:2] == [5, 0]
