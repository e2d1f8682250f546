"""A broker may answer anything in a login: it is one line, and never another kind of error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnlog_kafka.host.handshake import Handshake
from txnlog_kafka.host.link import ConnectionFailed
from txnlog_kafka.host.login import Login, LoginRefused
from txnlog_kafka.wire.messages import APIS, ApiKey
from txnlog_kafka.wire.sasl import OAuthBearer, password_mechanism

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
VERSIONS = APIS[ApiKey.API_VERSIONS].response
HANDSHAKE = APIS[ApiKey.SASL_HANDSHAKE]
AUTHENTICATE = APIS[ApiKey.SASL_AUTHENTICATE]
WORDS = st.text("rsieva=,0123456789 Az+/", max_size=40).map(str.encode)


def login(mechanism):
    if mechanism == "OAUTHBEARER":
        made = OAuthBearer("hunter2", {})
    else:
        made = password_mechanism(mechanism, "u", "hunter2", nonce="nonce")
    return Login(mechanism, made, who="user 'u'", look_at="the option", secrets=["hunter2"])


@given(mechanism=st.sampled_from(MECHANISMS), answers=st.lists(st.binary() | WORDS, max_size=4))
def test_any_answers_end_in_a_login_or_in_one_line(mechanism, answers):
    each, answer = login(mechanism), b""
    for answer in answers:
        each.next_bytes()
        try:
            each.on_answer(answer)
        except LoginRefused as error:
            assert "\n" not in str(error)
            assert "hunter2" not in str(error)
            return
        if each.is_done:
            break
    # A login that is done was let in: by an empty answer, as SCRAM's proof cannot be guessed.
    assert not each.is_done or answer == b""


def test_a_scram_answer_with_another_nonce_is_refused():
    each = login("SCRAM-SHA-256")
    each.next_bytes()
    with pytest.raises(LoginRefused, match="not one of SCRAM-SHA-256"):
        each.on_answer(b"r=other,s=c2FsdA==,i=4096")


def versions(*ranges, code=0):
    keys = [
        VERSIONS.ApiVersion(api_key=key, min_version=low, max_version=high)
        for key, low, high in ranges
    ]
    return VERSIONS(error_code=code, api_keys=keys)


def greeted(*ranges):
    handshake = Handshake("broker")
    assert handshake.ask_versions().version == APIS[ApiKey.API_VERSIONS].version_max
    assert handshake.on_versions(versions(*ranges)) is None
    return handshake


def test_versions_are_asked_again_once_at_what_the_broker_knows():
    handshake = Handshake("broker")
    handshake.ask_versions()
    assert handshake.on_versions(versions((18, 0, 2), code=35)).version == 2
    with pytest.raises(ConnectionFailed, match="refused ApiVersions: UNSUPPORTED_VERSION"):
        handshake.on_versions(versions((18, 0, 2), code=35))


@pytest.mark.parametrize(("highest", "lifetime_ms"), [(0, 0), (1, 9000), (2, 9000)])
def test_a_login_is_a_handshake_and_then_the_mechanisms_bytes(highest, lifetime_ms):
    handshake = greeted((17, 0, 1), (36, 0, highest))
    said = handshake.log_in(login("PLAIN"))
    assert (said.version, said.message.mechanism) == (1, "PLAIN")
    said = handshake.on_login_answer(HANDSHAKE, 1, HANDSHAKE.response(error_code=0, mechanisms=[]))
    assert said.version == highest
    assert bytes(said.message.auth_bytes) == b"u\0u\0hunter2"
    done = AUTHENTICATE.response(error_code=0, auth_bytes=b"", session_lifetime_ms=9000)
    assert handshake.on_login_answer(AUTHENTICATE, highest, done) is None
    assert handshake.session_lifetime_ms == lifetime_ms


def test_an_answer_that_nobody_asked_for_is_refused():
    with pytest.raises(ConnectionFailed, match="was not begun"):
        Handshake("broker").on_login_answer(AUTHENTICATE, 0, AUTHENTICATE.response())


@pytest.mark.parametrize("ranges", [(), ((17, 0, 0),), ((17, 2, 3),)])
def test_a_broker_without_a_common_handshake_is_refused(ranges):
    with pytest.raises(ConnectionFailed, match="does not support SaslHandshake v1") as caught:
        greeted(*ranges).log_in(login("PLAIN"))
    assert (caught.value.final, caught.value.is_security) == (True, True)
