"""Bootstrap addresses and security options, as text from a person."""

from __future__ import annotations

from collections.abc import Mapping

from txnlog_spark.errors import OptionError
from txnlog_spark.kafka_configs import NO_SECURITY, PREFIX

BOOTSTRAP_OPTION = "kafka.bootstrap.servers"
SECURITY_PREFIXES = ("security.", "sasl.", "ssl.")


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
        host.encode("idna")
    except UnicodeError as error:
        raise OptionError(BOOTSTRAP_OPTION, text, f"{host!r} is not a valid host name") from error
    return host, int(port)


def refuse_security(options: Mapping[str, str]) -> None:
    """Raise OptionError for any security option but security.protocol=PLAINTEXT."""
    for name, value in sorted(options.items()):
        if not name.startswith(SECURITY_PREFIXES):
            continue
        if name == "security.protocol" and value.upper() == "PLAINTEXT":
            continue
        raise OptionError(PREFIX + name, value, NO_SECURITY)
