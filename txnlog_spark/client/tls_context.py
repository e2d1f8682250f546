"""Python's `ssl.SSLContext` of Kafka's `ssl.*` options."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path

from txnlog_spark.client.stores import PREFIX, KeyStore, load_key, load_trusted
from txnlog_spark.errors import OptionError

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
"""What Kafka's clients have, too: older ones are broken."""
ENDPOINT = "ssl.endpoint.identification.algorithm"


def build_tls_context(options: Mapping[str, str]) -> ssl.SSLContext:
    """Of options with Kafka's names, without `kafka.`; files are read now. Raises OptionError.

    Without a truststore the CAs of the machine are trusted. A certificate in the truststore is
    trusted by itself, whoever signed it, as in Java.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    algorithm = options.get(ENDPOINT, "https").lower()
    if algorithm not in ("", "https"):
        raise OptionError(PREFIX + ENDPOINT, algorithm, "https, or empty to accept any host name")
    context.check_hostname = algorithm == "https"
    _limit_versions(context, options.get("ssl.enabled.protocols"))
    trusted = load_trusted(options)
    if trusted is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cadata=trusted)
        except ssl.SSLError as error:
            raise OptionError(
                PREFIX + "ssl.truststore.location", None, "its certificates cannot be read"
            ) from error
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    key = load_key(options)
    if key is not None:
        _load_key(context, key)
    return context


def _limit_versions(context: ssl.SSLContext, text: str | None) -> None:
    names = ["TLSv1.2", "TLSv1.3"] if text is None else [n.strip() for n in text.split(",")]
    if not names or not set(names) <= set(VERSIONS):
        raise OptionError(PREFIX + "ssl.enabled.protocols", text, "TLSv1.2, TLSv1.3 or both")
    versions = sorted(VERSIONS[name] for name in names)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


def _load_key(context: ssl.SSLContext, key: KeyStore) -> None:
    """`ssl` takes a key from a file only: it is there for this call, for this user alone."""

    def password() -> str:
        if key.key_password is None:
            raise OptionError(PREFIX + "ssl.key.password", None, "set it: the key is encrypted")
        return key.key_password

    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write(key.key + key.chain)
    try:
        context.load_cert_chain(file.name, password=password)
    except (ssl.SSLError, ValueError) as error:
        raise OptionError(
            PREFIX + "ssl.keystore.location", None,
            "the key cannot be used: look at kafka.ssl.key.password, and whether the key and the "
            "certificate belong together",
        ) from error  # fmt: skip
    finally:
        Path(file.name).unlink()
