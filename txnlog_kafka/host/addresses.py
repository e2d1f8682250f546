"""Bootstrap addresses, as text from a person."""

from __future__ import annotations

import re

from txnlog_kafka.errors import OptionError

BOOTSTRAP_OPTION = "kafka.bootstrap.servers"
_HOST = re.compile(r"[0-9A-Za-z._%:-]+")
"""As Kafka's Java client has it (`org.apache.kafka.common.utils.Utils.HOST_PORT_PATTERN`)."""


def parse_bootstrap_servers(text: str) -> tuple[tuple[str, int], ...]:
    """(host, port) pairs of "host:port,[ipv6]:port". Raises OptionError."""
    addresses = tuple(
        _parse_address(part.strip(), text) for part in text.split(",") if part.strip()
    )
    if not addresses:
        raise OptionError(BOOTSTRAP_OPTION, text, "expected host:port, several with commas")
    return addresses


def _parse_address(part: str, text: str) -> tuple[str, int]:
    _, _, address = part.rpartition("://")
    host, separator, port = address.rpartition(":")
    is_number = port.isascii() and port.isdigit()
    if not separator or not host or not is_number or not 0 < int(port) < 65536:
        raise OptionError(
            BOOTSTRAP_OPTION,
            text,
            f"{part!r} is not host:port with a valid port, which is from 1 to 65535",
        )
    host = host.strip("[]")
    try:
        known = _HOST.fullmatch(host.encode("idna").decode())
    except UnicodeError as error:
        raise OptionError(BOOTSTRAP_OPTION, text, f"{host!r} is not a valid host name") from error
    if known is None:
        problem = f"{host!r} is not a host name; several addresses are separated by commas"
        raise OptionError(BOOTSTRAP_OPTION, text, problem)
    return host, int(port)
