"""Tokens of OAUTHBEARER: unsecured ones for tests, and ones that a key of a JWKS file has signed.

As in Kafka, a listener takes unsecured tokens unless `sasl.server.callback.handler.class` names
OAuthBearerValidatorCallbackHandler. The files are read once, at the start. PyJWT knows the
signatures; the times are checked here, because the broker's clock is not PyJWT's.
"""

from __future__ import annotations

import functools
import importlib
import json
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from broker_sim.core.config import OAUTHBEARER, BrokerConfig, ConfigError
from broker_sim.core.config.security import listener_option
from broker_sim.core.endpoint import Listener, enabled_mechanisms
from broker_sim.core.security.bearer import Bearer, TokenCheck, TokenRefused
from broker_sim.core.security.logins import read_login_module
from txnlog_kafka.wire.invariants import present

ALGORITHMS: Mapping[str, Sequence[str]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""Signatures by the type of key. A shared secret (`oct`) has no place in a file of public keys."""
_VALIDATOR = "unsecuredValidator"
_SUBJECT = f"{_VALIDATOR}PrincipalClaimName"
_SKEW = f"{_VALIDATOR}AllowableClockSkewMs"
_VALIDATES = (_SUBJECT, _SKEW)
"""Options of the login module for unsecured tokens; scopes are not looked at."""
Claims = Mapping[str, Any]
_UNCHECKED = dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_aud"), False)


@functools.cache
def _jwt() -> Any:
    """Return PyJWT, which takes time to load and is an extra. Raises ConfigError."""
    try:
        return importlib.import_module("jwt")
    except ImportError as error:
        text = "OAUTHBEARER needs PyJWT: pip install 'txnlog_spark[oauth]'"
        raise ConfigError(text) from error


@dataclass(frozen=True, slots=True)
class _Check:
    """Check of tokens, by the claims that `claims_of` reads and believes."""

    claims_of: Callable[[str], Claims]
    subject: str
    """Claim with the user's name."""
    skew_ms: int
    begins: str
    """Claim with the time before which a token is not valid."""
    needed: tuple[str, ...] = ("exp",)

    def __call__(self, token: str, now_ms: int) -> Bearer:
        """Return the owner of a token. Raises TokenRefused."""
        try:
            claims = self.claims_of(token)
        except (_jwt().PyJWTError, ValueError) as error:
            raise TokenRefused(str(error)) from error
        user, times = claims.get(self.subject), {n: _ms(claims, n) for n in ("exp", "iat", "nbf")}
        missing = [name for name in self.needed if times[name] is None]
        if missing or not isinstance(user, str) or not user.strip():
            raise TokenRefused(f"the token needs {', '.join(self.needed)} and {self.subject}")
        expires_ms = present(times["exp"], "exp is needed")
        if now_ms - self.skew_ms >= expires_ms:
            raise TokenRefused("the token has expired")
        if (times[self.begins] or 0) > now_ms + self.skew_ms:
            raise TokenRefused("the token is not valid yet")
        if (times["iat"] or 0) >= expires_ms:
            raise TokenRefused("the token expires before it is issued")
        return Bearer(user.strip(), expires_ms)


def token_checks(config: BrokerConfig, listeners: Sequence[Listener]) -> dict[str, TokenCheck]:
    """Return the check of each listener with OAUTHBEARER. Raises ConfigError."""
    return {
        each.name: _check_of(config, each.name)
        for each in listeners
        if each.protocol.uses_sasl and OAUTHBEARER in enabled_mechanisms(each.name, config)
    }


def _check_of(config: BrokerConfig, listener: str) -> TokenCheck:
    _jwt()  # an extra that is missing is an error of the start
    handler = config.of_listener(listener, "sasl.server.callback.handler.class", OAUTHBEARER)
    return _signed(config, listener) if handler else _unsecured(config, listener)


def _unsecured(config: BrokerConfig, listener: str) -> TokenCheck:
    """By the options of the login module, as in Kafka."""
    options = read_login_module(config, listener, OAUTHBEARER).options
    unknown = sorted(n for n in options if n.startswith(_VALIDATOR) and n not in _VALIDATES)
    skew = options.get(_SKEW, "0")
    if unknown or not skew.isdecimal():
        option = listener_option(listener, "sasl.jaas.config", OAUTHBEARER)
        raise ConfigError(f"{option}: {unknown[0] if unknown else _SKEW} cannot be used")
    return _Check(_unverified, options.get(_SUBJECT, "sub"), int(skew), "iat")


def _signed(config: BrokerConfig, listener: str) -> TokenCheck:
    def value(name: str) -> Any:
        return config.of_listener(listener, f"sasl.oauthbearer.{name}", OAUTHBEARER)

    def option(name: str) -> str:
        return listener_option(listener, f"sasl.oauthbearer.{name}", OAUTHBEARER)

    audiences = [each for each in str(value("expected.audience")).split(",") if each]
    issuer = str(value("expected.issuer"))
    for claim, expected in (("audience", audiences), ("issuer", issuer)):
        if not expected and not value(f"allow.unverified.{claim}"):
            raise ConfigError(f"{option(f'expected.{claim}')} must name the {claim} of the tokens")
    keys = _read_keys(option("jwks.endpoint.url"), str(value("jwks.endpoint.url")))
    claims_of = partial(_verified, keys, audiences=audiences, issuer=issuer)
    skew_ms = int(value("clock.skew.seconds")) * 1000
    return _Check(claims_of, str(value("sub.claim.name")), skew_ms, "nbf", ("exp", "iat"))


def _read_keys(option: str, url: str) -> Sequence[Any]:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "file":
        raise ConfigError(f"{option} must be the file:// URL of a JWKS file, not {url!r}")
    path = Path(urllib.parse.unquote(parts.path))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("a JSON object is needed")
        keys = _jwt().PyJWKSet.from_dict(content).keys
    except (OSError, ValueError, _jwt().PyJWTError) as error:
        raise ConfigError(f"{option}: {path} cannot be read as a JWKS file: {error}") from error
    return [key for key in keys if key.key_type in ALGORITHMS]


def _ms(claims: Claims, name: str) -> int | None:
    seconds = claims.get(name)
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TokenRefused(f"{name} is not a number")
    return round(seconds * 1000)


def _unverified(token: str) -> Claims:
    found = _jwt().decode_complete(token, options={"verify_signature": False} | _UNCHECKED)
    if found["header"].get("alg") != "none" or found["signature"]:
        raise TokenRefused("only unsecured tokens are taken")
    claims: Claims = found["payload"]
    return claims


def _verified(keys: Sequence[Any], token: str, *, audiences: Sequence[str], issuer: str) -> Claims:
    header = _jwt().get_unverified_header(token)
    key_id, algorithm = header.get("kid"), header.get("alg")
    for key in keys:
        if key_id not in (None, key.key_id) or algorithm not in ALGORITHMS[key.key_type]:
            continue
        try:
            claims: Claims = _jwt().decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=audiences or None,
                issuer=issuer or None,
                options=_UNCHECKED | {"verify_aud": bool(audiences), "verify_iss": bool(issuer)},
            )
        except _jwt().InvalidSignatureError:
            # A token need not name its key, so another key of the file may have signed it.
            continue
        return claims
    raise TokenRefused("no key of the file has signed the token")
