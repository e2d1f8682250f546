"""PLAIN and SCRAM on the broker's side: the RFC's own example, and everything that is refused."""

from __future__ import annotations

import base64
import hashlib

import pytest

from broker_sim.core.controller.credentials import ScramCredential, ScramMechanism
from broker_sim.core.security.mechanisms import (
    VALID_PREVIOUS,
    LoginRefused,
    PlainExchange,
    ScramExchange,
    ScramState,
)

SHA_256 = ScramMechanism.SCRAM_SHA_256
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
NONCES = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FINAL = f"c=biws,r={NONCES},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()


def scram() -> ScramExchange:
    """The server of RFC 7677's example."""
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    credential = ScramCredential.of_salted_password(SHA_256, salted, SALT, 4096)
    return ScramExchange(
        SHA_256, {"user": credential}.get, NONCES.removeprefix("rOprNGfwEbeRWgbNEkqO")
    )


def test_the_example_of_rfc_7677():
    exchange = scram()
    first = f"r={NONCES},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    assert exchange.respond(CLIENT_FIRST) == first
    assert exchange.user is None
    final = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.respond(CLIENT_FINAL) == final
    assert exchange.user == "user"
    with pytest.raises(LoginRefused):
        exchange.respond(CLIENT_FINAL)
    assert exchange.state is ScramState.FAILED


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\xff\xfe",
        b"y,,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,,n=user",
        b"n,,n=,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=nobody,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,,n=user,r=abc,tokenauth=true",
        CLIENT_FINAL,
    ],
)
def test_a_first_message_that_is_refused(token):
    exchange = scram()
    with pytest.raises(LoginRefused):
        exchange.respond(token)
    assert exchange.state is ScramState.FAILED
    with pytest.raises(LoginRefused):
        exchange.respond(CLIENT_FIRST)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"dHzb", b"eHzb"),
        (b"dHzb", b"!!!!"),
        (b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"p=AAAA"),
        (b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b""),
        (b"%hvY", b"%hvX"),
        (b"c=biws", b"c=eSws"),
        (b"c=biws", b"c=b"),
    ],
)
def test_a_final_message_that_is_refused(old, new):
    exchange = scram()
    exchange.respond(CLIENT_FIRST)
    with pytest.raises(LoginRefused):
        exchange.respond(CLIENT_FINAL.replace(old, new))
    assert exchange.user is None
    with pytest.raises(LoginRefused):
        exchange.respond(CLIENT_FINAL)


def test_every_state_of_scram_is_in_the_table():
    assert set(VALID_PREVIOUS) == set(ScramState)
    assert ScramState.CLIENT_FIRST not in {s for many in VALID_PREVIOUS.values() for s in many} - {
        ScramState.CLIENT_FIRST
    }


def test_a_credential_shows_none_of_its_keys():
    credential = ScramCredential.of_salted_password(SHA_256, b"salted", b"the salt", 4096)
    assert repr(credential) == "ScramCredential(iterations=4096)"


PLAIN = {"alice": "alice-secret", "empty": ""}


def test_plain_lets_in_who_has_the_password():
    for token in (b"\0alice\0alice-secret", b"alice\0alice\0alice-secret"):
        exchange = PlainExchange(PLAIN)
        assert exchange.respond(token) == b""
        assert exchange.user == "alice"


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"alice\0alice-secret",
        b"\0alice\0alice-secret\0",
        b"\0alice\0wrong",
        b"\0alice\0",
        b"\0\0alice-secret",
        b"\0empty\0",
        b"\0nobody\0x",
        b"bob\0alice\0alice-secret",
        b"\0alice\0\xff",
    ],
)
def test_plain_refuses_and_repeats_nothing(token):
    exchange = PlainExchange(PLAIN)
    with pytest.raises(LoginRefused) as caught:
        exchange.respond(token)
    assert exchange.user is None
    assert not any(word in str(caught.value) for word in ("alice", "bob", "nobody", "secret"))
