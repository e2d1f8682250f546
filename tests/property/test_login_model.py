"""Random requests at a listener with SASL: nothing but a login is answered before a login."""

from __future__ import annotations

import random

import pytest
from support.clients.sasl_client import SASL_CONFIG, USERS
from support.core.broker_build import BrokerOnDisk, request

from txnlog_kafka.wire.messages import ApiKey

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "")
TOKENS = (
    b"",
    b"\0bob\0wrong",
    f"\0bob\0{USERS['bob']}".encode(),
    f"\0admin\0{USERS['admin']}".encode(),
    b"n,,n=bob,r=abc",
    b"c=biws,r=abc,p=AAAA",
    b"\xff" * 40,
)
RIGHT = {TOKENS[2]: "bob", TOKENS[3]: "admin"}


class Model:
    """Model of a connection's login: which requests may come next, by the rules alone."""

    def __init__(self) -> None:
        self.user: str | None = None
        self.mechanism: str | None = None
        self.by: str | None = None
        self.in_login = False
        self.versions = False

    def handshake(self, mechanism: str) -> bool:
        """Return True if the connection stays open."""
        if self.in_login or mechanism not in MECHANISMS[:3]:
            return False
        self.in_login, self.mechanism = True, mechanism
        return True

    def authenticate(self, token: bytes) -> bool:
        """Return True if the connection stays open; only a PLAIN token can be right here."""
        if not self.in_login:
            return self.user is not None
        user = RIGHT.get(token) if self.mechanism == "PLAIN" else None
        if user is None or self.user not in (None, user) or self.by not in (None, "PLAIN"):
            return False
        self.user, self.by, self.in_login = user, self.mechanism, False
        return True

    def ask_versions(self) -> bool:
        """Once before a login, and always after it."""
        if self.in_login or (self.user is None and self.versions):
            return False
        self.versions = True
        return True


@pytest.mark.parametrize("seed", range(150))
def test_a_random_client_gets_what_the_rules_say(seed: int) -> None:
    rng = random.Random(seed)
    broker = BrokerOnDisk(SASL_CONFIG | {"connections.max.reauth.ms": 3_600_000})
    broker.listener = "SASL_PLAINTEXT"
    model = Model()
    for _ in range(12):
        kind = rng.choice(("handshake", "handshake", "token", "token", "versions", "metadata"))
        broker.advance(2000)  # renewals come a second apart
        if kind == "handshake":
            mechanism = rng.choice(MECHANISMS[:1] * 4 + MECHANISMS)
            message, version = request(ApiKey.SASL_HANDSHAKE, mechanism=mechanism), 1
            stays = model.handshake(mechanism)
        elif kind == "token":
            token = rng.choice(TOKENS[2:3] * 4 + TOKENS)
            message, version = request(ApiKey.SASL_AUTHENTICATE, auth_bytes=token), 2
            stays = model.authenticate(token)
        elif kind == "versions":
            names = {"client_software_name": "a", "client_software_version": "1"}
            message, version = request(ApiKey.API_VERSIONS, **names), 3
            stays = model.ask_versions()
        else:
            message, version = request(ApiKey.METADATA, topics=[]), 12
            stays = model.user is not None and not model.in_login
        key = broker.send(message, version)
        broker.advance(200)
        assert (1 not in broker.asked.closed) == stays, (kind, broker.asked.closed)
        if not stays:
            assert kind != "metadata" or key not in broker.asked.answers
            return
        assert key in broker.asked.answers
        login = broker.broker.parts.logins._logins[1]
        assert login.principal == ("" if model.user is None else f"User:{model.user}")
