"""Checks of tokens by their claims and keys, and options that the start refuses.

`conformance/test_tokens.py` has the claims that Apache Kafka takes.
"""

from __future__ import annotations

import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from broker_sim.core.config import BrokerConfig, ConfigError
from broker_sim.core.endpoint import read_listeners
from broker_sim.core.security.bearer import Bearer, TokenCheck, TokenRefused
from broker_sim.server.tokens import token_checks

OF = "listener.name.sasl_plaintext.oauthbearer."
MODULE = "org.apache.kafka.common.security.oauthbearer."
HANDLER = f"{MODULE}OAuthBearerValidatorCallbackHandler"
NOW_MS = 1_700_000_000_000
CLAIMS = {"sub": "carol", "iat": NOW_MS // 1000, "exp": NOW_MS // 1000 + 60}
UNVERIFIED = {
    f"{OF}sasl.oauthbearer.allow.unverified.{claim}": "true" for claim in ("audience", "issuer")
}
KEYS: dict[str, tuple[Any, str]] = {
    "rsa": (rsa.generate_private_key(public_exponent=65537, key_size=2048), "PS384"),
    "ec": (ec.generate_private_key(ec.SECP256R1()), "ES256"),
    "ed": (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
}


def check_of(options: dict[str, str], jaas: str = "") -> TokenCheck:
    """Return the check of a listener with these options."""
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{OF}sasl.jaas.config": f"{MODULE}OAuthBearerLoginModule required {jaas};",
    }
    made = BrokerConfig(config | options)
    return token_checks(made, read_listeners(made))["SASL_PLAINTEXT"]


def public_key(name: str) -> dict[str, Any]:
    """Return the entry of a JWKS file for a key."""
    key, algorithm = KEYS[name]
    made = jwt.get_algorithm_by_name(algorithm)
    return {**made.to_jwk(key.public_key(), as_dict=True), "kid": name}


@pytest.fixture
def signed(tmp_path: Path) -> TokenCheck:
    """Check against a file with all keys, and with a secret that signs nothing."""
    file = tmp_path / "my keys.json"
    secret = {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA", "kid": "secret"}
    file.write_text(json.dumps({"keys": [*map(public_key, KEYS), secret]}))
    url = {f"{OF}sasl.oauthbearer.jwks.endpoint.url": file.as_uri()}
    return check_of(UNVERIFIED | url | {f"{OF}sasl.server.callback.handler.class": HANDLER})


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("headers", [{"kid": True}, {}])
def test_a_token_is_checked_by_the_key_that_has_signed_it(signed, name, headers) -> None:
    key, algorithm = KEYS[name]
    named = {"kid": name} if headers else {}
    token = jwt.encode(CLAIMS, key, algorithm, named)
    assert signed(token, NOW_MS) == Bearer("carol", CLAIMS["exp"] * 1000)
    with pytest.raises(TokenRefused):
        signed(jwt.encode(CLAIMS, key, algorithm, {"kid": "gone"}), NOW_MS)


def test_a_public_key_is_no_secret_and_a_secret_of_the_file_signs_nothing(signed) -> None:
    for secret, key_id in (
        (json.dumps(public_key("rsa")), "rsa"),
        ("secret-secret-secret-secret-secret", "secret"),
    ):
        header = {"alg": "HS256", "typ": "JWT", "kid": key_id}
        parts = [jwt.utils.base64url_encode(json.dumps(p).encode()) for p in (header, CLAIMS)]
        signature = hmac.digest(secret.encode(), b".".join(parts), "sha256")
        token = b".".join([*parts, jwt.utils.base64url_encode(signature)]).decode()
        with pytest.raises(TokenRefused, match="no key of the file"):
            signed(token, NOW_MS)


@pytest.mark.parametrize("text", ["", "x", "a.b.c", "..", "e30.e30.", "bnVsbA.bnVsbA."])
def test_a_text_that_is_no_token_is_refused(signed, text) -> None:
    for check in (signed, check_of({})):
        with pytest.raises(TokenRefused):
            check(text, NOW_MS)


@pytest.mark.parametrize(("late_s", "is_taken"), [(29, True), (30, False)])
def test_the_clock_of_the_issuer_may_be_off_by_the_skew(signed, late_s, is_taken) -> None:
    key, algorithm = KEYS["rsa"]
    token, at_ms = jwt.encode(CLAIMS, key, algorithm), (CLAIMS["exp"] + late_s) * 1000
    if is_taken:
        assert signed(token, at_ms).user == "carol"
    else:
        with pytest.raises(TokenRefused, match="expired"):
            signed(token, at_ms)


def test_the_login_module_says_how_unsecured_tokens_are_read() -> None:
    token = jwt.encode(CLAIMS | {"email": "c@example.org"}, None, "none")
    check = check_of({}, 'unsecuredValidatorPrincipalClaimName="email" '
                         'unsecuredValidatorAllowableClockSkewMs="500"')  # fmt: skip
    assert check(token, CLAIMS["exp"] * 1000 + 499).user == "c@example.org"
    with pytest.raises(TokenRefused, match="expired"):
        check(token, CLAIMS["exp"] * 1000 + 500)


@pytest.mark.parametrize(
    ("options", "jaas", "text"),
    [
        ({}, 'unsecuredValidatorRequiredScope="a"', "unsecuredValidatorRequiredScope cannot be"),
        ({}, 'unsecuredValidatorAllowableClockSkewMs="x"', "ClockSkewMs cannot be used"),
        ({"handler": HANDLER}, "", "expected.audience must name the audience"),
        (
            {"handler": HANDLER, "expected.audience": "a"},
            "",
            "expected.issuer must name the issuer",
        ),
        ({"handler": HANDLER, **UNVERIFIED}, "", "must be the file:// URL of a JWKS file"),
        ({"handler": HANDLER, "jwks.endpoint.url": "https://x/keys", **UNVERIFIED}, "", "'https:"),
        (
            {"handler": HANDLER, "jwks.endpoint.url": "file:///no", **UNVERIFIED},
            "",
            "/no cannot be",
        ),
        ({"handler": "com.example.Handler"}, "", "sasl.server.callback.handler.class"),
    ],
)
def test_options_that_cannot_be_used_are_an_error_of_the_start(options, jaas, text) -> None:
    names = {"handler": f"{OF}sasl.server.callback.handler.class"}
    given = {
        names.get(name, name if name.startswith(OF) else f"{OF}sasl.oauthbearer.{name}"): value
        for name, value in options.items()
    }
    with pytest.raises(ConfigError, match=text):
        check_of(given, jaas)


@pytest.mark.parametrize("content", ["", "[]", '{"keys": []}', '{"keys": [{"kty": "RSA"}]}'])
def test_a_file_without_keys_is_an_error_of_the_start(tmp_path, content) -> None:
    file = tmp_path / "keys.json"
    file.write_text(content)
    url = {f"{OF}sasl.oauthbearer.jwks.endpoint.url": file.as_uri()}
    with pytest.raises(ConfigError, match=r"keys\.json cannot be read as a JWKS file"):
        check_of(UNVERIFIED | url | {f"{OF}sasl.server.callback.handler.class": HANDLER})
