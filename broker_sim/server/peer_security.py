"""Security of connections to other brokers of the cluster: TLS, and a SASL login as a client.

The broker uses the options of the inter-broker listener, as in Kafka. It shows the listener's key,
and checks the other broker by the listener's trusted certificates. It logs in as the user of the
listener's login module, by `sasl.mechanism.inter.broker.protocol`. The registry has no TLS and no
login.
"""

from __future__ import annotations

import secrets
import ssl
from dataclasses import dataclass

from broker_sim.core.config import BrokerConfig, ConfigError
from broker_sim.core.config.security import listener_option
from broker_sim.core.endpoint import Listener, inter_broker_listener, read_listeners
from broker_sim.core.security.logins import read_login_module
from broker_sim.server.tls import build_peer_context
from txnlog_kafka.wire.login import Login
from txnlog_kafka.wire.sasl import password_mechanism


@dataclass(frozen=True, slots=True)
class PeerUser:
    """User that a broker logs in as; the password is in no text."""

    mechanism: str
    name: str
    password: str

    def __repr__(self) -> str:
        return f"PeerUser({self.mechanism!r}, {self.name!r})"

    def new_login(self) -> Login:
        """Return the login of a connection, or its renewal."""
        mechanism = password_mechanism(
            self.mechanism, self.name, self.password, secrets.token_hex(16)
        )
        return Login(self.mechanism, mechanism, f"{self.name!r} by {self.mechanism}")


@dataclass(frozen=True, slots=True)
class PeerSecurity:
    """Security settings for the start of connections to other brokers."""

    context: ssl.SSLContext | None = None
    """TLS context; None: without TLS."""
    user: PeerUser | None = None
    """User to log in as; None: without a login."""


def read_peer_security(config: BrokerConfig) -> PeerSecurity:
    """Read the settings of the inter-broker listener; empty for a broker that is alone.

    Raises ConfigError.
    """
    if not config.text("registry.connect"):
        return PeerSecurity()
    name = inter_broker_listener(config)
    listener = next(each for each in read_listeners(config) if each.name == name)
    user = _read_user(listener, config) if listener.protocol.uses_sasl else None
    return PeerSecurity(build_peer_context(listener, config), user)


def _read_user(listener: Listener, config: BrokerConfig) -> PeerUser:
    mechanism = config.text("sasl.mechanism.inter.broker.protocol")
    options = read_login_module(config, listener.name, mechanism).options
    for name in ("username", "password"):
        if not options.get(name):
            raise ConfigError(
                f"{listener_option(listener.name, 'sasl.jaas.config', mechanism)} must have "
                f"{name}=..., by which brokers log in to each other"
            )
    return PeerUser(mechanism, options["username"], options["password"])
