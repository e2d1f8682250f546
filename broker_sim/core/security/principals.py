"""Principals: `User:` and a name, which of a certificate is its subject as RFC 2253 writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence

ANONYMOUS = "User:ANONYMOUS"
"""A client that has not shown who it is."""
A_BROKER = "Broker:itself"
"""Principal of a broker that asks its own controller, or another's in an Envelope.

It may do everything. No connection has it: the principals of all logins begin with "User:".
"""

Subject = Sequence[Sequence[tuple[str, str]]]
"""Relative distinguished names in the certificate's order, each of (attribute, value) pairs."""

_KEYWORDS = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_OIDS = {
    "emailAddress": "1.2.840.113549.1.9.1",
    "serialNumber": "2.5.4.5",
    "surname": "2.5.4.4",
    "givenName": "2.5.4.42",
    "title": "2.5.4.12",
}
"""Attributes without a keyword in RFC 2253, by number; their values are encoded bytes."""
_IA5_STRING, _PRINTABLE_STRING, _UTF8_STRING = 0x16, 0x13, 0x0C
_SPECIAL = re.compile(r'([,+"\\<>;])')


def principal_of(name: str) -> str:
    """The principal of a user of this name."""
    return f"User:{name}"


def distinguished_name(subject: Subject) -> str:
    """The subject as Java's `X500Principal.getName()` has it: the last part of it comes first."""
    return ",".join(
        "+".join(_attribute(kind, value) for kind, value in part) for part in reversed(subject)
    )


def _attribute(kind: str, value: str) -> str:
    if kind in _KEYWORDS:
        return f"{_KEYWORDS[kind]}={_escaped(value)}"
    if kind in _OIDS:
        tag = {"emailAddress": _IA5_STRING, "serialNumber": _PRINTABLE_STRING}
        data = value.encode()
        if len(data) < 128:
            encoded = bytes((tag.get(kind, _UTF8_STRING), len(data))) + data
            return f"{_OIDS[kind]}=#{encoded.hex()}"
    return f"{kind}={_escaped(value)}"


def _escaped(value: str) -> str:
    text = _SPECIAL.sub(r"\\\1", value)
    if text.startswith(("#", " ")):
        text = "\\" + text
    if len(text) > 1 and text.endswith(" "):
        text = text[:-1] + "\\ "
    return text
