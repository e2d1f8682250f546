"""OAUTHBEARER on the broker's side (RFC 7628), as Kafka has it: the messages, not the tokens.

The host gives a `TokenCheck` for each listener: it alone knows keys and signatures. A token that is
refused is answered with the reason; the client acknowledges that, and then its login has failed. As
in Kafka a client may send another token instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker_sim.core.security.mechanisms import LoginRefused, check_authorization_id

_ACKNOWLEDGED = b"\x01"
_INITIAL = re.compile(
    r"n,(?:a=(?P<authorization>(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +(?P<token>[-_.a-zA-Z0-9]+)")


class TokenRefused(Exception):
    """The token lets nobody in. The text says why, for the broker's own log."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """The owner of a token, and the end of the token's life."""

    user: str
    expires_ms: int


TokenCheck = Callable[[str, int], Bearer]
"""Check of a token at a time in ms. Raises TokenRefused."""
TokenChecks = Mapping[str, TokenCheck]
"""By listener."""
NO_TOKEN_CHECKS: TokenChecks = {}


class BearerExchange:
    """Exchange of one message, with a token."""

    def __init__(self, check: TokenCheck, now_ms: int) -> None:
        self.user: str | None = None
        self.expires_ms: int | None = None
        self._check = check
        self._now_ms = now_ms
        self._answered = ""
        """Refusal that the client has to acknowledge."""

    def respond(self, token: bytes) -> bytes:
        """Nothing for a good token, else the reason of its refusal."""
        if token == _ACKNOWLEDGED and self._answered:
            raise LoginRefused(self._answered)
        match = _INITIAL.fullmatch(token.decode("utf-8", "replace"))
        pairs = [] if match is None else match["pairs"].split("\x01")[:-1]
        values = dict(pair.split("=", 1) for pair in pairs)
        sent = _AUTH.fullmatch(values.get("auth", ""))
        if match is None or sent is None:
            raise LoginRefused("Authentication failed: the message is not of OAUTHBEARER")
        try:
            bearer = self._check(sent["token"], self._now_ms)
        except TokenRefused:
            self._answered = json.dumps({"status": "invalid_token"}, separators=(",", ":"))
            return self._answered.encode()
        check_authorization_id(match["authorization"] or "", bearer.user)
        self.user, self.expires_ms = bearer.user, bearer.expires_ms
        return b""
