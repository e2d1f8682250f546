"""Options of `kafka.security.*`, `kafka.ssl.*` and `kafka.sasl.*` that are obeyed.

These are rows of `options.OPTIONS`, where they are read. `host/security.py` checks which options
belong together, and `options/kafka_configs.py` decides about all other names of these families.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

_SSL, _SASL = "ssl.", "sasl."
TIMEOUT_MS_MAX = 2**31 - 1


def text(text: str) -> str:
    """Read a string that is not empty."""
    if not text.strip():
        raise ValueError("a non-empty string")
    return text.strip()


def any_text(text: str) -> str:
    """Read a string that may be empty."""
    return text.strip()


def one_of(*allowed: str) -> Callable[[str], str]:
    """Return a reader for one of these words, in any case."""

    def read(text: str) -> str:
        value = {each.lower(): each for each in allowed}.get(text.strip().lower())
        if value is None:
            raise ValueError(" or ".join(allowed))
        return value

    return read


def _milliseconds(text: str) -> str:
    plain = text.strip()
    if not plain.isascii() or not plain.isdigit() or not 0 < int(plain) <= TIMEOUT_MS_MAX:
        raise ValueError(f"an integer of at least 1 and at most {TIMEOUT_MS_MAX}")
    return plain


@dataclass(frozen=True, slots=True)
class SecurityOption:
    """Security option, by Kafka's name without `kafka.`; `read` is as in `options.Option`."""

    name: str
    doc: str
    read: Callable[[str], str] = text
    default: str | None = None


_STORE = one_of("JKS", "PKCS12", "PEM")

SECURITY_OPTIONS: tuple[SecurityOption, ...] = (
    SecurityOption(
        "security.protocol", "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), "PLAINTEXT",
    ),
    SecurityOption("ssl.truststore.type", "JKS (the default), PKCS12 or PEM.", _STORE),
    SecurityOption(
        "ssl.truststore.location",
        "File of the CAs to trust, on the driver and the executors. Default: the machine's CAs.",
    ),
    SecurityOption("ssl.truststore.password", "Password of a JKS or PKCS12 truststore.", any_text),
    SecurityOption("ssl.truststore.certificates", "CAs to trust, as PEM text."),
    SecurityOption("ssl.keystore.type", "JKS (the default), PKCS12 or PEM.", _STORE),
    SecurityOption(
        "ssl.keystore.location",
        "File of the client's key and certificate, on the driver and the executors.",
    ),
    SecurityOption("ssl.keystore.password", "Password of a JKS or PKCS12 keystore.", any_text),
    SecurityOption("ssl.keystore.key", "Private key of the client, as PEM text."),
    SecurityOption(
        "ssl.keystore.certificate.chain", "Certificates of the client's key, as PEM text."
    ),
    SecurityOption("ssl.key.password", "Password of the private key itself.", any_text),
    SecurityOption(
        "ssl.endpoint.identification.algorithm",
        "Check that the certificate is for the broker's host: https, or empty to accept any host.",
        any_text, "https",
    ),
    SecurityOption(
        "ssl.enabled.protocols", "TLSv1.2, TLSv1.3, or both separated by a comma. Default: both."
    ),
    SecurityOption(
        "sasl.mechanism", "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM.",
        lambda given: text(given).upper(),
    ),
    SecurityOption(
        "sasl.jaas.config",
        "Login module with the user's name and password, as for Kafka's Java clients.",
    ),
    SecurityOption(
        "sasl.login.callback.handler.class",
        "Handler for OAUTHBEARER: Kafka's OAuthBearerLoginCallbackHandler, or `module:function`, a "
        "Python function that returns a token.",
    ),
    SecurityOption("sasl.oauthbearer.token.endpoint.url", "Address of an OIDC token endpoint."),
    SecurityOption("sasl.oauthbearer.client.credentials.client.id", "Client id at that endpoint."),
    SecurityOption(
        "sasl.oauthbearer.client.credentials.client.secret", "Client secret at that endpoint."
    ),
    SecurityOption("sasl.oauthbearer.scope", "Scope of the token."),
    SecurityOption(
        "sasl.oauthbearer.header.urlencode",
        "URL-encode client id and secret, as RFC 6749 says: true or false.",
        one_of("true", "false"), "false",
    ),
    SecurityOption(
        "sasl.login.connect.timeout.ms", "Timeout of connecting to the token endpoint, in ms.",
        _milliseconds,
    ),
    SecurityOption(
        "sasl.login.read.timeout.ms", "Timeout of reading from the token endpoint, in ms.",
        _milliseconds,
    ),
)  # fmt: skip


def without_effect(names: Iterable[str], protocol: str) -> dict[str, str]:
    """Return the names that have no effect under a security protocol, and why."""
    unused = [(_SASL, "SASL")] if not protocol.startswith("SASL") else []
    unused += [(_SSL, "SSL")] if not protocol.endswith("SSL") else []
    return {
        name: f"kafka.security.protocol={protocol} has no {what}"
        for name in names
        for family, what in unused
        if name.startswith(f"kafka.{family}")
    }
