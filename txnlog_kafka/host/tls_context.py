"""Python's `ssl.SSLContext` of Kafka's `ssl.*` options."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from txnlog_kafka.errors import OptionError
from txnlog_kafka.stores import PREFIX, limit_versions, load_key, load_trusted, use_key, use_trusted

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
    limit_versions(context, options.get("ssl.enabled.protocols"))
    trusted = load_trusted(options)
    if trusted is None:
        context.load_default_certs()
    else:
        use_trusted(context, trusted)
    key = load_key(options)
    if key is not None:
        use_key(context, key)
    return context
