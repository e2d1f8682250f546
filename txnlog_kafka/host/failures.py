"""Ends of a connection, as its link, its TLS and its login report them."""

from __future__ import annotations


class ConnectionFailed(Exception):
    """Failure of a connection: it cannot be used any more; the text says why.

    `final`: another attempt would end in the same way. `is_security`: the cause is a certificate, a
    login or the security protocol.
    """

    def __init__(self, reason: str, *, final: bool = False, is_security: bool = False) -> None:
        super().__init__(reason)
        self.final = final
        self.is_security = is_security


class LinkBroken(Exception):
    """Close by the peer, or a broken network; the text continues the peer's name."""


class TlsFailed(Exception):
    """Failure of TLS; the text says which option to look at.

    `final`: another attempt would end in the same way.
    """

    def __init__(self, reason: str, *, final: bool) -> None:
        super().__init__(reason)
        self.final = final
