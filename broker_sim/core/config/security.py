"""The options of secured listeners and of the authorizer, by Kafka's names.

An option of a listener may be set for one listener alone, as `listener.name.<name>.<option>`, with
the name in lower case; what belongs to a SASL mechanism as `listener.name.<name>.<mechanism>.`
`<option>`. Passwords, keys and logins are of the kind PASSWORD: nothing shows their values.
"""

from __future__ import annotations

import re
from dataclasses import replace

from broker_sim.core.config.key import ConfigKey, ConfigKind, flag, int32, int64, text, texts

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
"""SASL mechanisms that this broker supports."""


def _secret(name: str, doc: str) -> ConfigKey:
    return ConfigKey(name, ConfigKind.PASSWORD, "", doc)


_OF_LISTENERS = (
    text(
        "ssl.client.auth",
        "none",
        "Whether clients show a certificate; of a SASL_SSL listener only when set for it.",
        ("none", "requested", "required"),
    ),
    texts("ssl.enabled.protocols", "TLSv1.2,TLSv1.3", "TLSv1.2, TLSv1.3 or both."),
    text(
        "ssl.endpoint.identification.algorithm",
        "https",
        "Whether a broker of a cluster checks that others' certificates name the host that it "
        "connects to; empty: it does not.",
        ("https", "HTTPS", ""),
    ),
    _secret("ssl.key.password", "Of an encrypted key, or of a key in a JKS store."),
    _secret("ssl.keystore.certificate.chain", "PEM certificates, in place of a file."),
    _secret("ssl.keystore.key", "A PEM private key, in place of a file."),
    text("ssl.keystore.location", "", "The file with the broker's key and certificates."),
    _secret("ssl.keystore.password", "Of a JKS or PKCS12 store."),
    text("ssl.keystore.type", "JKS", "JKS, PKCS12 or PEM."),
    text(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "How a certificate becomes a principal: User: and its subject.",
        ("DEFAULT",),
    ),
    _secret("ssl.truststore.certificates", "PEM certificates, in place of a file."),
    text("ssl.truststore.location", "", "The file with the certificates that are trusted."),
    _secret("ssl.truststore.password", "Of a JKS or PKCS12 store."),
    text("ssl.truststore.type", "JKS", "JKS, PKCS12 or PEM."),
    texts("sasl.enabled.mechanisms", "GSSAPI", f"Of {', '.join(MECHANISMS)}."),
)

_REAUTHENTICATION = int64(
    "connections.max.reauth.ms",
    0,
    "A login is over after this, unless the client renews it (KIP-368); 0 never.",
    0,
)
_JAAS = _secret("sasl.jaas.config", "The login module of a mechanism; PLAIN's has the users.")

_SIGNED_TOKENS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
_TOKENS = (
    text(
        "sasl.server.callback.handler.class",
        "",
        "What OAUTHBEARER takes: tokens signed by a key of the JWKS file; empty: unsecured tokens.",
        ("", _SIGNED_TOKENS),
    ),
    text("sasl.oauthbearer.jwks.endpoint.url", "", "The file: URL of the keys; read once."),
    texts("sasl.oauthbearer.expected.audience", "", "A token must have one of these audiences."),
    text("sasl.oauthbearer.expected.issuer", "", "The issuer that a token must have."),
    *(
        flag(
            f"sasl.oauthbearer.allow.unverified.{claim}",
            False,
            f"Whether tokens of any {claim} are taken.",
        )
        for claim in ("audience", "issuer")
    ),
    int32("sasl.oauthbearer.clock.skew.seconds", 30, "How far the clock of the issuer may be off."),
    text("sasl.oauthbearer.scope.claim.name", "scope", "No effect here: no scope is asked for."),
    text("sasl.oauthbearer.sub.claim.name", "sub", "The claim with the user's name."),
)

SECURITY = (
    text(
        "listener.security.protocol.map",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "The security protocol of each listener name.",
    ),
    text(
        "inter.broker.listener.name",
        "",
        "The listener by which the brokers of a cluster find each other; empty: the one that is "
        "named like security.inter.broker.protocol.",
    ),
    text(
        "security.inter.broker.protocol",
        "PLAINTEXT",
        "How brokers of a cluster speak to each other; inter.broker.listener.name replaces it.",
        ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    text(
        "sasl.mechanism.inter.broker.protocol",
        "GSSAPI",
        "How brokers of a cluster log in to each other: one of the sasl.enabled.mechanisms of that "
        "listener, whose sasl.jaas.config has a username and a password for it.",
    ),
    *_OF_LISTENERS,
    *_TOKENS,
    _REAUTHENTICATION,
    int32(
        "connection.failed.authentication.delay.ms",
        100,
        "How long a client waits for the answer to a login that is refused.",
        0,
    ),
    int32(
        "sasl.server.max.receive.size", 524_288, "Maximum size of a request before the login.", 1
    ),
    text("authorizer.class.name", "", "Empty: everybody may do everything.", ("", AUTHORIZER)),
    text("super.users", "", "Principals that may do everything: User:name;User:name."),
    flag(
        "allow.everyone.if.no.acl.found",
        False,
        "Whether a resource without any ACL is open to everybody.",
    ),
)

_BY_NAME = {key.name: key for key in (*_OF_LISTENERS, *_TOKENS, _REAUTHENTICATION)}
_OF_MECHANISMS = {key.name: key for key in (*_TOKENS, _JAAS, _REAUTHENTICATION)}
_PREFIXED = re.compile(r"listener\.name\.(?P<listener>[^.]+)\.(?P<rest>.+)")
_PREFIX = "listener.name."


def listener_option(listener: str, option: str, mechanism: str = "") -> str:
    """The name of an option that is set for this listener alone, or for a mechanism on it."""
    of = f"{_PREFIX}{listener.lower()}."
    return f"{of}{mechanism.lower()}.{option}" if mechanism else of + option


def listener_of(name: str) -> str | None:
    """Return the listener, in upper case, that the option is for; None if it names no listener."""
    match = _PREFIXED.fullmatch(name)
    return None if match is None else match["listener"].upper()


def listener_key(name: str) -> ConfigKey | None:
    """Return the key of an option for a single listener; None when no such option exists."""
    match = _PREFIXED.fullmatch(name)
    if match is None or match["listener"] != match["listener"].lower():
        return None
    key = _BY_NAME.get(match["rest"])
    for mechanism in MECHANISMS:
        own, _, option = match["rest"].partition(f"{mechanism.lower()}.")
        if not own and option:
            key = _OF_MECHANISMS.get(option)
    return None if key is None else replace(key, name=name)
