"""Listeners that do not speak Kafka's protocol in plain text, recognised by how they answer.

The first request on a connection is ApiVersions. A TLS listener answers it with an alert or a
reset, a web server with a line of text, a SASL listener closes the connection at the request that
follows. Without a word on that a user sees a timeout and looks for a network fault.
"""

from __future__ import annotations

NOT_SUPPORTED = "kafka.security.protocol=SSL, SASL_SSL and SASL_PLAINTEXT are not supported yet"
CLOSED_AT_ONCE = (
    f" before it answered the first request: the listener may require TLS ({NOT_SUPPORTED}), or "
    "may not be a Kafka broker"
)
CLOSED_AFTER_VERSIONS = (
    f" at the first request after ApiVersions: the listener may require SASL ({NOT_SUPPORTED})"
)
SILENT = ": it may not be a Kafka broker, or may require TLS"

_TLS_RECORDS = (0x14, 0x15, 0x16, 0x17)


def describe_stranger(first_bytes: bytes) -> str | None:
    """What the listener is, if these cannot be the first bytes of an answer; else None."""
    if len(first_bytes) >= 2 and first_bytes[0] in _TLS_RECORDS and first_bytes[1] == 3:
        return f"the listener requires TLS, and {NOT_SUPPORTED}: set a PLAINTEXT listener's address"
    if first_bytes.startswith(b"HTTP/"):
        return "this is a web server, not a Kafka broker: correct the address"
    return None
