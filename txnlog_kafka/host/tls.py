"""Client's side of TLS on one connection: bytes in, bytes out, no socket.

The protocol is Python's `ssl`, which runs here between two buffers. `start` makes the first bytes
for the peer, `receive` decrypts bytes of the peer, `seal` encrypts bytes for it, and `take` returns
the bytes to send. A failure becomes one line that names the option to look at.
"""

from __future__ import annotations

import ssl

from txnlog_kafka.host.failures import TlsFailed

READ_BYTES = 256 * 1024

ENDED_EARLY = (
    " within the TLS handshake: the listener may be one without TLS (look at "
    "kafka.security.protocol), or may not be a Kafka broker"
)
NO_TLS = (
    "what the listener sent is not TLS: it may be one without TLS, look at "
    "kafka.security.protocol and the port in kafka.bootstrap.servers"
)
EXPIRED = (
    "a certificate of the broker has expired: renew it on the broker, or correct "
    "kafka.ssl.truststore.* if it is the CA's that has"
)
NOT_YET_VALID = "a certificate of the broker is not valid yet: compare the clocks"
NOT_TRUSTED = (
    "the broker's certificate is not signed by a CA that is trusted here: look at "
    "kafka.ssl.truststore.location or kafka.ssl.truststore.certificates"
)
OTHER_NAME = (
    "the broker's certificate is for another host: use a name that is in it (look at the "
    "broker's advertised.listeners and at kafka.bootstrap.servers), or accept any with an empty "
    "kafka.ssl.endpoint.identification.algorithm"
)
CLIENT_CERTIFICATE_MISSING = (
    "the broker asks for a certificate of the client: look at kafka.ssl.keystore.location or "
    "kafka.ssl.keystore.certificate.chain"
)
CLIENT_CERTIFICATE_REFUSED = (
    "the broker does not accept the certificate of the client: look at "
    "kafka.ssl.keystore.location or kafka.ssl.keystore.certificate.chain"
)
NOTHING_IN_COMMON = (
    "broker and client have no TLS version or cipher in common: look at kafka.ssl.enabled.protocols"
)

_BY_VERIFY_CODE = {
    9: NOT_YET_VALID,
    10: EXPIRED,
    18: NOT_TRUSTED,
    19: NOT_TRUSTED,
    20: NOT_TRUSTED,
    21: NOT_TRUSTED,
    62: OTHER_NAME,
    64: OTHER_NAME,
}
"""Texts by OpenSSL's X509_V_ERR_* numbers."""

_BY_REASON = (
    ("WRONG_VERSION_NUMBER", NO_TLS),
    ("HTTP_REQUEST", NO_TLS),
    ("PACKET_LENGTH_TOO_LONG", NO_TLS),
    ("RECORD_LAYER_FAILURE", NO_TLS),
    ("ALERT_CERTIFICATE_REQUIRED", CLIENT_CERTIFICATE_MISSING),
    ("ALERT_BAD_CERTIFICATE", CLIENT_CERTIFICATE_MISSING),
    ("CERTIFICATE_UNKNOWN", CLIENT_CERTIFICATE_REFUSED),
    ("ALERT_CERTIFICATE", CLIENT_CERTIFICATE_REFUSED),
    ("ALERT_UNKNOWN_CA", CLIENT_CERTIFICATE_REFUSED),
    ("ALERT_UNSUPPORTED_CERTIFICATE", CLIENT_CERTIFICATE_REFUSED),
    ("PROTOCOL_VERSION", NOTHING_IN_COMMON),
    ("UNSUPPORTED_PROTOCOL", NOTHING_IN_COMMON),
    ("NO_SHARED_CIPHER", NOTHING_IN_COMMON),
    ("HANDSHAKE_FAILURE", f"{NOTHING_IN_COMMON}; or {CLIENT_CERTIFICATE_MISSING}"),
)
"""Texts by a part of OpenSSL's reason, the more special first; alerts are the peer's words."""


class Tls:
    """TLS of one connection, to a peer that calls itself `host`."""

    ended_early = ENDED_EARLY

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        """Prepare TLS. Raises TlsFailed if `host` cannot be the name of a host."""
        self.is_open = False
        self.has_ended = False
        """True if the peer has announced that it sends no more."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        try:
            self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        except ValueError as error:
            raise TlsFailed(f"{host!r} is not the name of a host: {error}", final=False) from error

    def start(self) -> None:
        """Begin the handshake."""
        self._shake_hands()

    def _shake_hands(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            # The peer has to answer first: `receive` goes on with the handshake.
            return
        except ssl.SSLError as error:
            raise _failed(error) from error
        self.is_open = True

    def receive(self, data: bytes) -> bytes:
        """Go on with bytes that arrived; return the decrypted bytes in them. Raises TlsFailed."""
        self._incoming.write(data)
        if not self.is_open:
            self._shake_hands()
        received: list[bytes] = []
        try:
            while self.is_open and not self.has_ended:
                part = self._object.read(READ_BYTES)
                received.append(part)
                self.has_ended = not part
        except ssl.SSLWantReadError:
            # The rest of the next TLS record has not arrived yet: the next call goes on.
            pass
        except ssl.SSLError as error:
            raise _failed(error) from error
        return b"".join(received)

    def seal(self, data: memoryview) -> None:
        """Encrypt these bytes for the peer. Raises TlsFailed."""
        try:
            while data:
                data = data[self._object.write(data) :]
        except ssl.SSLError as error:
            raise _failed(error) from error

    def take(self) -> bytes:
        """Return the bytes to send to the peer now."""
        return self._outgoing.read()


def _failed(error: ssl.SSLError) -> TlsFailed:
    """Return the failure in one line. `final` only if its cause is known."""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = _BY_VERIFY_CODE.get(error.verify_code, "the broker's certificate is not accepted")
        return TlsFailed(f"{text} ({error.verify_message})", final=True)
    reason = str(error.reason or "")
    for part, text in _BY_REASON:
        if part in reason:
            return TlsFailed(f"{text} ({reason})", final=True)
    return TlsFailed(f"the TLS connection failed: {reason or error}", final=False)
