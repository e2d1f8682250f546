"""Both brokers with a listener of each security protocol, and certificates made for them.

`security.address(listener)` is the address of one of LISTENERS. PLAINTEXT is for the tests' own
helpers, which are not under test. USER may log in by PLAIN and, from the start on, by SCRAM.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import rsa
from support.brokers.apache_kafka import ApacheKafka
from support.brokers.certificates import LOCAL, Authority
from support.brokers.probe import free_ports
from support.brokers.sim_broker import SimBroker

LISTENERS = {
    "SSL": "SSL",
    "MUTUAL": "SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
    "SASL_SSL": "SASL_SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SHORT": "SASL_PLAINTEXT",
    "SIGNED": "SASL_PLAINTEXT",
}
"""The security protocol of each listener besides PLAINTEXT."""
SESSION_MS = 2_000
"""Lifetime of a login at the listener SHORT, in ms."""
USER, PASSWORD = "alice", "alice-secret"
TOKEN_USER = "carol"
TIMEOUT_S = 600.0
_MODULES = "org.apache.kafka.common.security"
_MECHANISMS = {
    "plain": f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
    "scram-sha-256": f"{_MODULES}.scram.ScramLoginModule required;",
    "scram-sha-512": f"{_MODULES}.scram.ScramLoginModule required;",
    "oauthbearer": (
        f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";'
    ),
}
AUDIENCE, ISSUER, KEY_ID = "kafka", "https://issuer.example", "key-1"
"""Claims of the tokens that the listener SIGNED takes, and the id of the key that signs them."""


class Listeners:
    """Ports, files and settings of them; `ca` signed the certificates."""

    def __init__(self, folder: Path) -> None:
        self.ca = Authority()
        self.ports = dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True))
        self._has_users = False
        folder.mkdir(parents=True, exist_ok=True)
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        """Key that signs tokens for the listener SIGNED."""
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        jwks = folder / "keys.json"
        jwks.write_text(json.dumps({"keys": [public | {"kid": KEY_ID}]}))
        self.jwks_url = jwks.absolute().as_uri()
        self.ca_file = folder / "ca.pem"
        self.ca_file.write_text(self.ca.pem)
        self._key_files = {
            "SSL": self.ca.sign(*LOCAL).write_pem(folder / "local.pem"),
            "EXPIRED": self.ca.sign(*LOCAL, days=-1).write_pem(folder / "expired.pem"),
            "ELSEWHERE": self.ca.sign("elsewhere.example").write_pem(folder / "elsewhere.pem"),
        }

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def settings(
        self, more: dict[str, str], logins: dict[str, str] | None = None
    ) -> dict[str, str]:
        """Return the settings of the listeners, with those of `more`, and the login modules of
        `logins`, or of every mechanism. SIGNED is there with OAUTHBEARER alone."""
        logins = _MECHANISMS if logins is None else logins
        listeners = dict(LISTENERS)
        if "oauthbearer" not in logins:
            del listeners["SIGNED"]
        own = ",".join(f"{name}://{self.address(name)}" for name in listeners)
        protocols = ",".join(f"{name}:{protocol}" for name, protocol in listeners.items())
        settings = {
            "listeners": f"{more['listeners']},{own}",
            "advertised.listeners": f"{more['advertised.listeners']},{own}",
            "listener.security.protocol.map": (
                f"{more['listener.security.protocol.map']},{protocols}"
            ),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca_file),
            "sasl.enabled.mechanisms": ",".join(logins).upper(),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.short.sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "listener.name.short.connections.max.reauth.ms": str(SESSION_MS),
        }
        if "SIGNED" in listeners:
            settings |= self._signed()
        for name, protocol in listeners.items():
            of = f"listener.name.{name.lower()}"
            if protocol.endswith("SSL"):
                file = self._key_files.get(name, self._key_files["SSL"])
                settings |= {f"{of}.ssl.keystore.type": "PEM"}
                settings |= {f"{of}.ssl.keystore.location": str(file)}
            if protocol.startswith("SASL"):
                settings |= {
                    f"{of}.{mechanism}.sasl.jaas.config": jaas for mechanism, jaas in logins.items()
                }
        return settings

    def _signed(self) -> dict[str, str]:
        of = "listener.name.signed."
        handler = f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        return {
            f"{of}sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{of}oauthbearer.sasl.server.callback.handler.class": handler,
            f"{of}oauthbearer.sasl.oauthbearer.jwks.endpoint.url": self.jwks_url,
            f"{of}oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
            f"{of}oauthbearer.sasl.oauthbearer.expected.issuer": ISSUER,
        }

    def signed_token(self, key: Any = None, key_id: str = KEY_ID, **claims: Any) -> str:
        """Return a token of these claims; None leaves one out that a token usually has."""
        now_s = int(time.time())
        usual = {"sub": TOKEN_USER, "iat": now_s, "exp": now_s + 3600}
        usual |= {"aud": AUDIENCE, "iss": ISSUER}
        given = {name: each for name, each in (usual | claims).items() if each is not None}
        return jwt.encode(given, key or self.key, "RS256", {"kid": key_id})

    def opened(self, bootstrap_servers: str) -> None:
        """The broker runs: USER is added, the first time."""
        if self._has_users:
            return
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            add_user(bootstrap_servers, USER, PASSWORD, mechanism)
        self._has_users = True


def add_user(bootstrap_servers: str, user: str, password: str, mechanism: ScramMechanism) -> None:
    credential = ScramCredentialInfo(mechanism, 4096)
    change = UserScramCredentialUpsertion(user, credential, password.encode())
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.alter_user_scram_credentials([change])[user].result(TIMEOUT_S)


def tls_kafka(folder: Path, config: dict[str, str] | None = None) -> ApacheKafka:
    listeners = Listeners(folder)
    # It reads keys from no other URL.
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={listeners.jwks_url}"
    return ApacheKafka(folder, config, security=listeners, java_option=allowed)


def tls_sim(folder: Path, config: dict[str, str] | None = None) -> SimBroker:
    return SimBroker(folder, config, security=Listeners(folder))


TLS_BROKERS = {"broker_sim": tls_sim, "apache_kafka": tls_kafka}
