"""TLS on the broker's side: contexts of listeners, handshakes, principals of certificates.

Handshakes are counted as connections from the first moment. asyncio's own server does not allow
that, so a TLS listener accepts its sockets here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence

from broker_sim.core.config import BrokerConfig, ConfigError
from broker_sim.core.config.security import listener_option
from broker_sim.core.endpoint import Listener, SecurityProtocol
from broker_sim.core.security.principals import ANONYMOUS, distinguished_name, principal_of
from txnlog_kafka.errors import OptionError
from txnlog_kafka.stores import (
    PREFIX,
    limit_versions,
    load_key,
    load_trusted,
    use_key,
    use_trusted,
)

HANDSHAKE_SECONDS = 30.0
"""Time limit of a client's handshake."""

ACCEPT_PAUSE_SECONDS = 1.0
"""Pause after an error of `accept`, such as a lack of descriptors; as in asyncio."""

_log = logging.getLogger(__name__)

_OPTIONS = (
    "ssl.enabled.protocols",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
)
_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def build_tls_context(listener: Listener, config: BrokerConfig) -> ssl.SSLContext | None:
    """Build the context of a listener's options; None if it has no TLS. Raises ConfigError."""
    if not listener.protocol.uses_tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = _CLIENT_AUTH[_client_auth(listener, config)]
    _load_certificates(context, listener, config, ssl.Purpose.CLIENT_AUTH)
    return context


def build_peer_context(listener: Listener, config: BrokerConfig) -> ssl.SSLContext | None:
    """Build the context of a broker that connects to this listener of another broker.

    Both have the same options: the broker shows the listener's key, and trusts the certificates
    that the listener trusts. None if there is no TLS. Raises ConfigError.
    """
    if not listener.protocol.uses_tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    algorithm = config.of_listener(listener.name, "ssl.endpoint.identification.algorithm")
    context.check_hostname = bool(algorithm)
    _load_certificates(context, listener, config, ssl.Purpose.SERVER_AUTH)
    return context


def _load_certificates(
    context: ssl.SSLContext, listener: Listener, config: BrokerConfig, purpose: ssl.Purpose
) -> None:
    """Load the listener's key, and the certificates that it trusts. Raises ConfigError."""
    values = {name: str(config.of_listener(listener.name, name)) for name in _OPTIONS}
    options = {name: value for name, value in values.items() if value}
    for store, text in (("keystore", "key"), ("truststore", "certificates")):
        if f"ssl.{store}.{text}" in options and not _is_set(listener, f"ssl.{store}.type", config):
            del options[f"ssl.{store}.type"]  # its default means a file
    try:
        limit_versions(context, options["ssl.enabled.protocols"])
        key = load_key(options)
        if key is None:
            raise OptionError(f"{PREFIX}ssl.keystore.location", None, "set it: TLS needs a key")
        use_key(context, key)
        trusted = load_trusted(options)
        if trusted is not None:
            use_trusted(context, trusted)
        elif context.verify_mode is not ssl.CERT_NONE:
            context.load_default_certs(purpose)
    except OptionError as error:
        # The connector's names of these options have a prefix, a broker's have none.
        what = f"{error.name}: {error.allowed}".replace(f"{PREFIX}ssl", "ssl")
        raise ConfigError(f"listener {listener.name}: {what}") from error


def _is_set(listener: Listener, option: str, config: BrokerConfig) -> bool:
    return config.is_set(option) or config.is_set(listener_option(listener.name, option))


def _client_auth(listener: Listener, config: BrokerConfig) -> str:
    """Return the client authentication of a listener.

    As in Kafka, a SASL_SSL listener needs it only when it is set for the listener itself: clients
    log in anyway.
    """
    option = "ssl.client.auth"
    own = config.is_set(listener_option(listener.name, option))
    if listener.protocol is SecurityProtocol.SASL_SSL and not own:
        return "none"
    return str(config.of_listener(listener.name, option))


def certified_principal(certificate: dict[str, object] | None) -> str:
    """Return the principal of a verified certificate, in the form of `ssl`; User:ANONYMOUS without
    one."""
    if not certificate:
        return ANONYMOUS
    subject = certificate.get("subject", ())
    if not isinstance(subject, Sequence):
        return ANONYMOUS
    return principal_of(distinguished_name(subject))


class TlsServer:
    """Server that accepts the connections of one listener, inside a running event loop."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        accept: Callable[[], asyncio.Protocol],
    ) -> None:
        """`accept` makes a connection's protocol, or raises ConnectionRefusedError."""
        self._listening = listening
        self._context = context
        self._accept = accept
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept_all())

    def close(self) -> None:
        """Accept no more connections; end the handshakes that are under way."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()

    async def _accept_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                _log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            task = loop.create_task(self._shake_hands(sock))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, sock: socket.socket) -> None:
        try:
            connection = self._accept()
        except ConnectionRefusedError as error:
            _log.warning("closing a connection: %s", error)
            sock.close()
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except OSError as error:
            _log.info("a TLS handshake failed: %s", error)
            connection.connection_lost(error)
