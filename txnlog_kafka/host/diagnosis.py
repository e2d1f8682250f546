"""Listeners that speak another protocol than the client, recognised by their answers.

The first request on a connection is ApiVersions. If it is sent in plain text, a TLS listener
answers with an alert or a reset, a web server with a line of text, and a SASL listener closes the
connection at the request that follows. Without a word on that a user sees a timeout and looks for a
network fault.
"""

from __future__ import annotations

from txnlog_kafka.host.security import Security
from txnlog_kafka.wire.error_codes import ErrorCode, error_name

_NOT_A_BROKER = "may not be a Kafka broker"
CLOSED_AT_ONCE = (
    " before it answered the first request: the listener may require TLS (set "
    f"kafka.security.protocol to SSL or SASL_SSL), or {_NOT_A_BROKER}"
)
CLOSED_AT_ONCE_IN_TLS = (
    " before it answered the first request: the listener may require a certificate of the client "
    f"(look at kafka.ssl.keystore.location), or {_NOT_A_BROKER}"
)
CLOSED_AFTER_VERSIONS = (
    " at the first request after ApiVersions: the listener may require SASL (set "
    "kafka.security.protocol to SASL_PLAINTEXT or SASL_SSL)"
)
CLOSED_IN_LOGIN = (
    " within the login: look at kafka.sasl.mechanism and at the user's name and password in "
    "kafka.sasl.jaas.config"
)
SILENT = f": it {_NOT_A_BROKER}, or may require TLS (look at kafka.security.protocol)"
SILENT_IN_TLS = (
    f" within the TLS handshake: it {_NOT_A_BROKER}, or not a listener with TLS (look at "
    "kafka.security.protocol)"
)
REQUIRES_TLS = "the listener requires TLS: set kafka.security.protocol to SSL or SASL_SSL"
WEB_SERVER = "this is a web server, not a Kafka broker: correct the address"

_TLS_RECORDS = (0x14, 0x15, 0x16, 0x17)


def describe_answer(first_bytes: bytes) -> str | None:
    """Return a diagnosis if these cannot be the first bytes of a broker's answer; else None."""
    if len(first_bytes) >= 2 and first_bytes[0] in _TLS_RECORDS and first_bytes[1] == 3:
        return REQUIRES_TLS
    if first_bytes.startswith(b"HTTP/"):
        return WEB_SERVER
    return None


def describe_closed(answers: int, security: Security, *, logs_in: bool) -> str:
    """Return the likely reason why the peer closed while a request was open, after so many answers.

    The text continues the sentence that reports the close; it is empty if the close is nothing
    special.
    """
    if logs_in:
        return CLOSED_IN_LOGIN
    if not answers:
        return CLOSED_AT_ONCE_IN_TLS if security.has_tls else CLOSED_AT_ONCE
    return CLOSED_AFTER_VERSIONS if answers == 1 and not security.has_login else ""


def describe_refusal(code: int, broker: tuple[str, int] | None) -> str:
    """Return what a refusal of ApiVersions says about the peer, for the cluster id and the node id
    that are meant; the text continues the address."""
    if code == ErrorCode.REBOOTSTRAP_REQUIRED and broker is not None:
        cluster_id, node = broker
        return f" is not broker {node} of cluster {cluster_id} any more"
    return f" refused ApiVersions: {error_name(code)}"
