"""SASL on the broker's side: PLAIN by RFC 4616, SCRAM by RFC 5802, as Kafka has them.

Rules for this file: an exchange takes a client's bytes and gives the answer's, and knows no request
and no connection. What it was given stays in it: no text that it raises or prints has any of it.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Protocol

from broker_sim.core.controller.credentials import ScramCredential, ScramMechanism
from txnlog_kafka.wire.invariants import check, present


class LoginRefused(Exception):
    """The client is not let in; the text is for the client, and says nothing of users."""


class Exchange(Protocol):
    """A single login by a mechanism, from its first bytes to its end."""

    @property
    def user(self) -> str | None:
        """The user that has logged in; None before that."""

    @property
    def expires_ms(self) -> int | None:
        """End of what the client has shown, in ms; None if it does not end."""

    def respond(self, token: bytes) -> bytes:
        """The answer to a client's bytes. Raises LoginRefused, after which it is over."""


class PlainExchange:
    """Exchange of a single message, with a user's name and password."""

    expires_ms: int | None = None

    def __init__(self, users: Mapping[str, str]) -> None:
        """`users` are passwords by name."""
        self._users = users
        self.user: str | None = None

    def respond(self, token: bytes) -> bytes:
        """Nothing, when the password is right."""
        parts = token.decode("utf-8", "replace").split("\0")
        if len(parts) != 3:
            raise LoginRefused(f"a PLAIN message has 3 parts, not {len(parts)}")
        authorization_id, user, password = parts
        if not user or not password:
            raise LoginRefused("Authentication failed: a user's name and password are needed")
        known = self._users.get(user)
        # As long for a user that does not exist.
        same = hmac.compare_digest((known or "").encode(), password.encode())
        if known is None or not same:
            raise LoginRefused("Authentication failed: Invalid username or password")
        check_authorization_id(authorization_id, user)
        self.user = user
        return b""


class ScramState(enum.Enum):
    """State of a SCRAM exchange."""

    CLIENT_FIRST = "client-first"
    """Expects the user and the client's nonce, answers with both nonces and the salt;
    -> CLIENT_FINAL, FAILED."""
    CLIENT_FINAL = "client-final"
    """Expects the proof, answers with the server's signature; -> COMPLETE, FAILED."""
    COMPLETE = "complete"
    """Expects nothing; -> FAILED."""
    FAILED = "failed"


VALID_PREVIOUS: Mapping[ScramState, frozenset[ScramState]] = {
    ScramState.CLIENT_FIRST: frozenset(),
    ScramState.CLIENT_FINAL: frozenset({ScramState.CLIENT_FIRST}),
    ScramState.COMPLETE: frozenset({ScramState.CLIENT_FINAL}),
    ScramState.FAILED: frozenset(
        {ScramState.CLIENT_FIRST, ScramState.CLIENT_FINAL, ScramState.COMPLETE}
    ),
}

_VALUE = r"[\x01-\x2b\x2d-\x7f]+"
_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_NONCE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = rf"(?:,[A-Za-z]+={_VALUE})*"
_CLIENT_FIRST = re.compile(
    rf"(?P<header>n,(?:a=(?P<authorization>{_NAME}))?,)"
    rf"(?P<bare>(?:m={_VALUE},)?n=(?P<user>{_NAME}),r=(?P<nonce>{_NONCE})"
    rf"(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<unproved>c=(?P<channel>[A-Za-z0-9+/=]*),r=(?P<nonce>{_NONCE}){_EXTENSIONS})"
    r",p=(?P<proof>[A-Za-z0-9+/=]*)"
)
_TOKEN_EXTENSION = ",tokenauth=true"


class ScramExchange:
    """Two messages; the second proves that the client has the password."""

    expires_ms: int | None = None

    def __init__(
        self,
        mechanism: ScramMechanism,
        credential_of: Callable[[str], ScramCredential | None],
        nonce: str,
    ) -> None:
        """`nonce` is the server's, which nobody can foresee and is never used twice."""
        self.user: str | None = None
        self._mechanism = mechanism
        self._credential_of = credential_of
        self._nonce = nonce
        self._state = ScramState.CLIENT_FIRST
        self._credential: ScramCredential | None = None
        self._claimed = ""
        self._first = ""
        """Both first messages, as they are signed."""
        self._header = ""
        """Header that the client repeats at the end, because it asks for no channel binding."""

    @property
    def state(self) -> ScramState:
        """State of the exchange."""
        return self._state

    def respond(self, token: bytes) -> bytes:
        """The server's message. Every failure reads the same, whatever was wrong."""
        try:
            match self._state:
                case ScramState.CLIENT_FIRST:
                    return self._on_first(_text(token))
                case ScramState.CLIENT_FINAL:
                    return self._on_final(_text(token))
            raise self._refusal()
        except LoginRefused:
            self._move(ScramState.FAILED)
            self._credential = None
            raise

    def _on_first(self, text: str) -> bytes:
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None or _TOKEN_EXTENSION in match["extensions"].lower():
            raise self._refusal()  # delegation tokens are not here
        user = match["user"].replace("=2C", ",").replace("=3D", "=")
        credential = self._credential_of(user)
        if credential is None:
            raise self._refusal()
        check_authorization_id(match["authorization"] or "", user)
        self._nonce = match["nonce"] + self._nonce
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._credential, self._claimed = credential, user
        self._first = f"{match['bare']},{answer}"
        self._header = match["header"]
        self._move(ScramState.CLIENT_FINAL)
        return answer.encode()

    def _on_final(self, text: str) -> bytes:
        match = _CLIENT_FINAL.fullmatch(text)
        if match is None or not hmac.compare_digest(match["nonce"], self._nonce):
            raise self._refusal()
        proof, header = _decoded(match["proof"]), _decoded(match["channel"])
        if proof is None or header != self._header.encode():
            raise self._refusal()
        credential = present(self._credential, "a proof without a credential")
        digest = self._mechanism.digest
        signed = f"{self._first},{match['unproved']}".encode()
        signature = hmac.digest(credential.stored_key, signed, digest)
        if len(proof) != len(signature):
            raise self._refusal()
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.new(digest, client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key):
            raise self._refusal()
        self._credential = None
        self._move(ScramState.COMPLETE)
        self.user = self._claimed
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, signed, digest))

    def _move(self, state: ScramState) -> None:
        if state is self._state:
            return
        check(self._state in VALID_PREVIOUS[state], "illegal transition of a SCRAM exchange",
              current=self._state, target=state)  # fmt: skip
        self._state = state

    def _refusal(self) -> LoginRefused:
        return LoginRefused(
            f"Authentication failed: {self._mechanism.mechanism} was not successful"
        )


def check_authorization_id(authorization_id: str, user: str) -> None:
    """Raise LoginRefused if the client wants to act as another user."""
    if authorization_id not in ("", user):
        raise LoginRefused("Authentication failed: the authorization id is not the user's name")


def _text(token: bytes) -> str:
    return token.decode("utf-8", "replace")


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
