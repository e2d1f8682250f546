"""Listeners in Kafka's notation: `NAME://host:port`, and the security protocol of each name.

Source of the rules: Kafka's `SocketServerConfigs` and `KafkaConfig`.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from broker_sim.core.config import MECHANISMS, OAUTHBEARER, BrokerConfig, ConfigError
from broker_sim.core.config.security import listener_of

PORT_MAX = 65_535
_LISTENER = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z0-9_-]*)://"
    r"(?P<host>\[[0-9a-fA-F:]+\]|[^:/\[\]]*):(?P<port>\d+)"
)

_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[^:/\[\],\s]+):(?P<port>\d{1,5})")

_ALL_INTERFACES = frozenset({"", "0.0.0.0", "::"})


class SecurityProtocol(enum.Enum):
    """Protocol of a listener's clients: encryption and proof of identity."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def uses_tls(self) -> bool:
        """Everything is inside TLS."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        """Clients log in."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host, without brackets, and a port; port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listener:
    """Endpoint that accepts connections, and the address by which clients find it."""

    name: str
    protocol: SecurityProtocol
    bound: Endpoint
    advertised: Endpoint


def read_listeners(config: BrokerConfig) -> tuple[Listener, ...]:
    """Read all listeners, in the order they are named. Raises ConfigError."""
    bound = _endpoints(config, "listeners")
    _check_ports(bound)
    advertised = _endpoints(config, "advertised.listeners")
    if advertised and set(advertised) != set(bound):
        raise ConfigError(
            "advertised.listeners must have one address of each listener: "
            f"{', '.join(bound)}, not {', '.join(advertised)}"
        )
    protocols = _protocols(config)
    found = []
    for name, endpoint in bound.items():
        if name not in protocols:
            raise ConfigError(
                f"listener.security.protocol.map has no security protocol of the listener {name}"
            )
        address = advertised.get(name, endpoint)
        _check_reachable(address)
        found.append(Listener(name, protocols[name], endpoint, address))
    _check_inter_broker(config, bound)
    for option in config.names:
        if (listener_of(option) or next(iter(bound))) not in bound:
            raise ConfigError(f"{option}: there is no such listener; there is {', '.join(bound)}")
    for listener in found:
        if listener.protocol.uses_sasl:
            _check_mechanisms(listener, config)
    return tuple(found)


def inter_broker_listener(config: BrokerConfig) -> str:
    """The name of the listener by which the brokers of a cluster find each other."""
    name = config.text("inter.broker.listener.name").upper()
    return name or config.text("security.inter.broker.protocol")


def read_registry(config: BrokerConfig) -> Endpoint | None:
    """Read the endpoint of the cluster's registry; None when this broker is alone.

    Raises ConfigError, also for options that do not fit a cluster.
    """
    text = config.text("registry.connect")
    if not text:
        return None
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match["port"]) <= PORT_MAX:
        raise ConfigError(f"registry.connect must be host:port, not {text[:100]!r}")
    name = inter_broker_listener(config)
    protocols = {each.name: each.protocol for each in read_listeners(config)}
    if name not in protocols:
        raise ConfigError(
            f"registry.connect needs the listener {name}, by which brokers find each other; "
            f"there is {', '.join(protocols)}: set inter.broker.listener.name"
        )
    if protocols[name].uses_sasl:
        _check_peer_mechanism(name, config)
    _check_heartbeat(config)
    return Endpoint(match["host"].strip("[]"), int(match["port"]))


def _check_peer_mechanism(listener: str, config: BrokerConfig) -> None:
    mechanism = config.text("sasl.mechanism.inter.broker.protocol")
    enabled = [each for each in enabled_mechanisms(listener, config) if each != OAUTHBEARER]
    if mechanism not in enabled:
        # By a token brokers do not log in to each other.
        raise ConfigError(
            "sasl.mechanism.inter.broker.protocol must be one of the sasl.enabled.mechanisms of "
            f"the listener {listener}, {', '.join(enabled)}, and is {mechanism}"
        )


def _check_heartbeat(config: BrokerConfig) -> None:
    interval_ms = config.integer("registry.heartbeat.interval.ms")
    timeout_ms = config.integer("registry.session.timeout.ms")
    if interval_ms >= timeout_ms:
        raise ConfigError(
            f"registry.heartbeat.interval.ms ({interval_ms}) must be less than "
            f"registry.session.timeout.ms ({timeout_ms})"
        )


def format_listeners(endpoints: Mapping[str, Endpoint]) -> str:
    """The value of `listeners` or `advertised.listeners`."""
    return ",".join(f"{name}://{endpoint}" for name, endpoint in endpoints.items())


def enabled_mechanisms(listener: str, config: BrokerConfig) -> list[str]:
    """The SASL mechanisms that clients of the listener may choose from."""
    return str(config.of_listener(listener, "sasl.enabled.mechanisms")).split(",")


def _endpoints(config: BrokerConfig, option: str) -> dict[str, Endpoint]:
    text = config.text(option)
    if not text and option == "advertised.listeners":
        return {}
    found: dict[str, Endpoint] = {}
    for part in text.split(","):
        match = _LISTENER.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"{option} must be NAME://host:port, not {part!r}")
        port = int(match["port"])
        if port > PORT_MAX:
            raise ConfigError(f"{option}: port {port} is over {PORT_MAX}")
        name = match["name"].upper()
        if name in found:
            raise ConfigError(f"{option}: each listener has a name of its own, and {name} is twice")
        found[name] = Endpoint(match["host"].strip("[]"), port)
    return found


def _check_ports(bound: Mapping[str, Endpoint]) -> None:
    """Two listeners may share a port only as the IPv4 and the IPv6 address of one host."""
    by_port: dict[int, list[str]] = {}
    for endpoint in bound.values():
        if endpoint.port:
            by_port.setdefault(endpoint.port, []).append(endpoint.host)
    for port, hosts in by_port.items():
        if len(hosts) > 1 and sorted(map(_ip_version, hosts)) != [4, 6]:
            raise ConfigError(
                f"listeners: each listener has a port of its own, and {port} is twice"
            )


def _ip_version(host: str) -> int:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0


def _check_reachable(address: Endpoint) -> None:
    if address.host in _ALL_INTERFACES:
        raise ConfigError(
            "clients cannot connect to all interfaces: set advertised.listeners to an address of "
            "this machine that they can reach"
        )


def _protocols(config: BrokerConfig) -> dict[str, SecurityProtocol]:
    option = "listener.security.protocol.map"
    found = {}
    for part in config.text(option).split(","):
        name, _, protocol = (piece.strip() for piece in part.partition(":"))
        try:
            found[name.upper()] = SecurityProtocol(protocol)
        except ValueError as error:
            raise ConfigError(
                f"{option} must be NAME:PROTOCOL with PROTOCOL one of "
                f"{', '.join(p.value for p in SecurityProtocol)}, not {part!r}"
            ) from error
    return found


def _check_inter_broker(config: BrokerConfig, bound: Mapping[str, Endpoint]) -> None:
    name = config.text("inter.broker.listener.name").upper()
    if not name:
        return
    if config.is_set("security.inter.broker.protocol"):
        raise ConfigError(
            "only one of inter.broker.listener.name and security.inter.broker.protocol can be set"
        )
    if name not in bound:
        raise ConfigError(
            f"inter.broker.listener.name={name} is not one of the listeners {', '.join(bound)}"
        )


def _check_mechanisms(listener: Listener, config: BrokerConfig) -> None:
    enabled = enabled_mechanisms(listener.name, config)
    unknown = [mechanism for mechanism in enabled if mechanism not in MECHANISMS]
    if unknown:
        raise ConfigError(
            f"sasl.enabled.mechanisms of the listener {listener.name} must be of "
            f"{', '.join(MECHANISMS)}, not {', '.join(unknown)}"
        )
