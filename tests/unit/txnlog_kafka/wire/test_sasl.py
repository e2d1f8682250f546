"""A client's side of SASL, by the examples of its RFCs."""

from __future__ import annotations

import pytest

from txnlog_kafka.wire.sasl import OAuthBearer, Plain, Scram, TooFewIterations

SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
NONCE = "rOprNGfwEbeRWgbNEkqO"
BROKERS = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"r={NONCE}{BROKERS},s={SALT},i=4096".encode()
SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram() -> Scram:
    """The example of RFC 7677, section 3."""
    return Scram("SCRAM-SHA-256", "user", "pencil", NONCE)


def test_scram_has_the_messages_of_its_rfc() -> None:
    login = scram()
    assert login.next_bytes() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    login.receive(FIRST)
    assert login.next_bytes() == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert not login.is_complete
    login.receive(SIGNATURE)
    assert login.is_complete


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (FIRST.replace(b"i=4096", b"i=4095"), TooFewIterations),
        (FIRST.replace(b"i=4096", b"i=1000001"), ValueError),
        (FIRST.replace(b"i=4096", b"i=many"), ValueError),
        (b"r=another" + FIRST[2:], ValueError),
        (b"e=unknown-user", KeyError),
        (b"", ValueError),
        (b"\xff", ValueError),
    ],
)
def test_a_first_answer_that_is_none_of_scram_is_refused(said: bytes, error: type) -> None:
    with pytest.raises(error):
        scram().receive(said)


@pytest.mark.parametrize("said", [b"v=" + b"A" * 43 + b"=", b"e=invalid-proof"])
def test_a_broker_that_does_not_know_the_password_is_refused(said: bytes) -> None:
    login = scram()
    login.receive(FIRST)
    with pytest.raises((ValueError, KeyError)):
        login.receive(said)
    assert not login.is_complete


def test_a_name_is_escaped() -> None:
    assert b"n,,n=u=2C=3D,r=" in Scram("SCRAM-SHA-512", "u,=", "p", "n").next_bytes()


def test_plain_is_one_message() -> None:
    login = Plain("u,=", "p")
    assert (login.next_bytes(), login.is_complete) == (b"u,=\0u,=\0p", False)
    with pytest.raises(ValueError, match="is empty"):
        login.receive(b"\0")
    assert not login.is_complete
    login.receive(b"")
    assert login.is_complete


def test_a_token_is_one_message_and_a_refusal_is_answered_by_one_byte() -> None:
    login = OAuthBearer("t", {"pool": "a"})
    assert login.next_bytes() == b"n,,\1auth=Bearer t\1pool=a\1\1"
    login.receive(b'{"status": "invalid_token"}')
    assert (login.next_bytes(), login.is_complete) == (b"\1", False)
    accepted = OAuthBearer("t", {})
    accepted.receive(b"")
    assert accepted.is_complete
