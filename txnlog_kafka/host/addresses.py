"""Bootstrap addresses, as text from a person."""

from __future__ import annotations

import re
from ipaddress import IPv6Address

from txnlog_kafka.errors import OptionError

BOOTSTRAP_OPTION = "kafka.bootstrap.servers"
_ADDRESS = re.compile(r"(?:[0-9A-Za-z%._-]*://)?(\[)?([0-9A-Za-z%._:-]+)(?(1)\]):([0-9]+)")
"""Address with the characters that Kafka's client allows; a path and separators have others."""


def parse_bootstrap_servers(text: str) -> tuple[tuple[str, int], ...]:
    """Return (host, port) pairs of "host:port,[ipv6]:port". Raises OptionError."""
    addresses = tuple(
        _parse_address(part.strip(), text) for part in text.split(",") if part.strip()
    )
    if not addresses:
        raise OptionError(BOOTSTRAP_OPTION, text, "expected host:port, several with commas")
    return addresses


def _parse_address(part: str, text: str) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(part)
    if found is None or not 0 < int(found[3]) < 65536:
        raise OptionError(
            BOOTSTRAP_OPTION,
            text,
            f"{part!r} is not host:port with a valid port, which is from 1 to 65535; separate "
            "several with commas",
        )
    host = found[2]
    try:
        if ":" in host:
            IPv6Address(host)
        host.encode("idna")
    except ValueError as error:
        raise OptionError(BOOTSTRAP_OPTION, text, f"{host!r} is not a valid host name") from error
    return host, int(found[3])
