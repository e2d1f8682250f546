"""OAUTHBEARER byte by byte, on both brokers: unsecured tokens, and tokens that a key has signed."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from support.brokers.tls_kafka import TLS_BROKERS
from support.clients.tls_client import asked, port_in
from support.harness.availability import started_when_asked

from txnlog_kafka.wire.messages import ApiKey


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> Iterator[Callable[[str], Any]]:
    """Return a function that starts a broker of each kind when a test first asks for the kind."""
    with started_when_asked(TLS_BROKERS, tmp_path_factory.mktemp) as broker_of:
        yield broker_of


@pytest.fixture
def guarded(broker_name: str, started: Callable[[str], Any]) -> Any:
    """Each of both brokers."""
    return started(broker_name)


def handshake(sock: Any) -> None:
    """SaslHandshake for OAUTHBEARER."""
    assert asked(sock, ApiKey.SASL_HANDSHAKE, 1, mechanism="OAUTHBEARER").error_code == 0


def show(sock: Any, data: bytes) -> Any:
    """SaslAuthenticate with these bytes."""
    return asked(sock, ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=data)


def bearer(token: str, who: str = "") -> bytes:
    return f"n,{who},\1auth=Bearer {token}\1\1".encode()


INVALID, ACKNOWLEDGED = b'{"status":"invalid_token"}', b"\1"
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
NOW_S = int(time.time())
TIMES = {
    "expired": {"exp": NOW_S - 60, "iat": NOW_S - 120},
    "not issued yet": {"exp": NOW_S + 7200, "iat": NOW_S + 3600},
    "issued after its end": {"exp": NOW_S + 50, "iat": NOW_S + 60},
    "not valid yet": {"nbf": NOW_S + 3600},
    "no end": {"exp": None},
    "no subject": {"sub": None},
    "empty subject": {"sub": " "},
}
CLAIMS = TIMES | {
    "good": {},
    "audiences": {"aud": ["other", "kafka"]},
    "fractions": {"exp": NOW_S + 3600.5},
    "never issued": {"iat": None},
    "another audience": {"aud": "other"},
    "another issuer": {"iss": "https://other.example"},
    "another key": {"key": OTHER_KEY},
    "another key id": {"key_id": "key-2"},
}
EVERYWHERE = {"good", "audiences", "fractions"}
TAKEN = {
    "SIGNED": EVERYWHERE | {"not issued yet"},
    "SASL_PLAINTEXT": CLAIMS.keys() - TIMES.keys() | {"not valid yet"},
}
"""Claims by listener: unsecured tokens are of any issuer, audience and key."""


@pytest.mark.parametrize("listener", ["SIGNED", "SASL_PLAINTEXT"])
@pytest.mark.parametrize("name", CLAIMS)
def test_what_a_token_is_answered(guarded, listener, name):
    """A refused token is answered with the reason, and the login fails when the client knows it."""
    text = guarded.security.signed_token(**CLAIMS[name])
    if listener != "SIGNED":
        header = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
        text = ".".join([header, text.split(".")[1], ""])
    with port_in(guarded.security.ports[listener]) as sock:
        handshake(sock)
        answer = show(sock, bearer(text))
        told = (answer.error_code, bytes(answer.auth_bytes), answer.session_lifetime_ms > 0)
        if name in TAKEN[listener]:
            assert told == (0, b"", True)
            return
        assert told == (0, INVALID, False)
        assert show(sock, ACKNOWLEDGED).error_code == 58


@pytest.mark.parametrize(
    "message",
    [b"", b"nonsense", b"n,,\1host=h\1\1", b"n,,auth=Bearer x", b"\1"],
)
def test_a_message_that_is_not_of_oauthbearer_fails_the_login(guarded, message):
    with port_in(guarded.security.ports["SIGNED"]) as sock:
        handshake(sock)
        assert show(sock, message).error_code == 58


def test_a_token_signed_or_not_is_for_its_own_listener_and_its_own_user(guarded):
    signed = guarded.security.signed_token()
    for listener, data, who, expected in (
        ("SASL_PLAINTEXT", signed, "", (0, INVALID)),
        ("SIGNED", signed.rpartition(".")[0] + ".", "", (0, INVALID)),
        ("SIGNED", signed, "a=carol", (0, b"")),
        ("SIGNED", signed, "a=alice", (58, b"")),
    ):
        with port_in(guarded.security.ports[listener]) as sock:
            handshake(sock)
            answer = show(sock, bearer(data, who))
            assert (answer.error_code, bytes(answer.auth_bytes)) == expected, listener
