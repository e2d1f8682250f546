"""Addresses in Kafka's notation: `PLAINTEXT://host:port`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from broker_sim.core.config import BrokerConfig, ConfigError

_LISTENER = re.compile(
    r"(?P<protocol>[A-Z_]+)://(?P<host>\[[0-9a-fA-F:]+\]|[^:/\[\]]*):(?P<port>\d+)"
)

_ALL_INTERFACES = frozenset({"", "0.0.0.0", "::"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host, without brackets, and a port; port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_endpoint(option: str, text: str) -> Endpoint:
    """The address that `option` holds. Raises ConfigError, also for what is not supported yet."""
    match = _LISTENER.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{option} must be PLAINTEXT://host:port, not {text!r}")
    if match["protocol"] != "PLAINTEXT":
        raise ConfigError(f"{option}: {match['protocol']} is not supported yet, only PLAINTEXT is")
    port = int(match["port"])
    if port > 65535:
        raise ConfigError(f"{option}: port {port} is over 65535")
    return Endpoint(match["host"].strip("[]"), port)


def listener(config: BrokerConfig) -> Endpoint:
    """Where to listen. An empty host means all interfaces, as in Kafka."""
    return parse_endpoint("listeners", config.text("listeners"))


def advertised_endpoint(config: BrokerConfig) -> Endpoint:
    """The address for clients: `advertised.listeners`, else the listener. Raises ConfigError."""
    text = config.text("advertised.listeners")
    endpoint = parse_endpoint("advertised.listeners", text) if text else listener(config)
    if endpoint.host in _ALL_INTERFACES:
        raise ConfigError(
            "clients cannot connect to all interfaces: set advertised.listeners to an address of "
            "this machine that they can reach"
        )
    return endpoint
