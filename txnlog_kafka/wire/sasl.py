"""Client's side of the SASL mechanisms that Kafka has: bytes to send, for bytes received.

PLAIN is RFC 4616, SCRAM is RFC 5802 with RFC 7677's SHA-256 (and SHA-512 as in Kafka), OAUTHBEARER
is RFC 7628. Names and passwords are not prepared by SASLprep; Kafka does not prepare them either.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Protocol

SCRAM_ITERATIONS_MIN = 4096
"""Least iterations, as in Kafka's own client: fewer would let a broker try passwords cheaply."""
SCRAM_ITERATIONS_MAX = 1_000_000
"""Most iterations, a second of this process's time; Kafka's brokers store at most 16,384."""
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class TooFewIterations(ValueError):
    """Request by the broker for fewer iterations of SCRAM than protect a password."""

    def __init__(self) -> None:
        super().__init__(
            f"fewer than {SCRAM_ITERATIONS_MIN} SCRAM iterations, which protects no password"
        )


class Mechanism(Protocol):
    """Mechanism of one login. Bytes are sent and received in turns, until the login is complete."""

    is_complete: bool
    """True if nothing is to be sent any more and, for SCRAM, the broker has proved that it knows
    the password."""

    def next_bytes(self) -> bytes:
        """Return the bytes to send next."""

    def receive(self, data: bytes) -> None:
        """Take the broker's answer. Raises ValueError or LookupError for an invalid answer."""


class Plain:
    """PLAIN: name and password in one message."""

    def __init__(self, user: str, password: str) -> None:
        self.is_complete = False
        self._message = "\0".join((user, user, password)).encode()

    def next_bytes(self) -> bytes:
        """Return the only message."""
        return self._message

    def receive(self, data: bytes) -> None:
        """Take the empty answer of an accepted login. Raises ValueError for any other answer."""
        if data:
            raise ValueError("an answer to PLAIN is empty")
        self.is_complete = True


class OAuthBearer:
    """OAUTHBEARER with a token that was fetched before."""

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        self.is_complete = False
        pairs = "".join(f"\1{name}={value}" for name, value in extensions.items())
        self._message = f"n,,\1auth=Bearer {token}{pairs}\1\1".encode()

    def next_bytes(self) -> bytes:
        """Return the token; after a refusal the byte by which the broker ends the exchange."""
        return self._message

    def receive(self, data: bytes) -> None:
        """Take the broker's answer: empty if the login is accepted, else with the reason."""
        self.is_complete = not data
        self._message = b"\1"


class Scram:
    """SCRAM: proves that both sides know the password, without sending it."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        """`nonce` is new for each login, of printable characters without the comma.

        Raises KeyError for an unknown mechanism.
        """
        self.is_complete = False
        self._hash = _HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={name},r={nonce}"
        self._final: str | None = None
        self._signature = b""

    def next_bytes(self) -> bytes:
        """Return the first message, and then the proof."""
        return (f"n,,{self._first}" if self._final is None else self._final).encode()

    def receive(self, data: bytes) -> None:
        """Take the broker's salt, and then its signature.

        Raises TooFewIterations, ValueError or KeyError.
        """
        said = dict(pair.split("=", 1) for pair in data.decode().split(","))
        if self._final is None:
            self._prove_password(data.decode(), said)
        elif not hmac.compare_digest(self._signature, base64.b64decode(said["v"])):
            raise ValueError("the broker's signature is not made with this password")
        else:
            self.is_complete = True

    def _prove_password(self, text: str, said: Mapping[str, str]) -> None:
        if not said["r"].startswith(self._nonce):
            raise ValueError("the broker's nonce does not begin with the client's")
        iterations = int(said["i"])
        if iterations < SCRAM_ITERATIONS_MIN:
            raise TooFewIterations
        if iterations > SCRAM_ITERATIONS_MAX:
            raise ValueError(f"{iterations} iterations")
        salted = hashlib.pbkdf2_hmac(
            self._hash, self._password, base64.b64decode(said["s"]), iterations
        )
        unproved = f"c=biws,r={said['r']}"
        signed = ",".join((self._first, text, unproved)).encode()
        client_key = self._keyed(salted, b"Client Key")
        signature = self._keyed(hashlib.new(self._hash, client_key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = self._keyed(self._keyed(salted, b"Server Key"), signed)
        self._final = f"{unproved},p={base64.b64encode(proof).decode()}"

    def _keyed(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def password_mechanism(name: str, user: str, password: str, nonce: str) -> Mechanism:
    """Return PLAIN or SCRAM. Raises KeyError for another mechanism."""
    return Plain(user, password) if name == "PLAIN" else Scram(name, user, password, nonce)
