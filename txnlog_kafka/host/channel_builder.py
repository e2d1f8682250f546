"""Builder of a client's TLS and logins, made once from a `Security`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from txnlog_kafka.host.login import UserLogin
from txnlog_kafka.host.security import Security
from txnlog_kafka.wire.jaas import OPTION as JAAS_OPTION
from txnlog_kafka.wire.sasl import OAuthBearer, password_mechanism

if TYPE_CHECKING:
    from txnlog_kafka.host.tls import Tls
    from txnlog_kafka.host.tokens import Tokens


class ChannelBuilder:
    """Makes the TLS and the login of each connection of a client."""

    def __init__(self, security: Security) -> None:
        """Read certificates and keys. Raises OptionError."""
        self._security = security
        self._new_tls: Callable[[str], Tls] | None = None
        self._tokens: Callable[[str], Tokens] | None = None
        # Not imported without need: TLS is 5 ms of a first commit's 80 in a new process, and an
        # HTTP client 8.
        if security.has_tls:
            from txnlog_kafka.host.tls import Tls
            from txnlog_kafka.stores import build_tls_context

            self._new_tls = partial(Tls, build_tls_context(dict(security.options)))
        if self.login_blocks:
            from txnlog_kafka.host.tokens import token_source

            self._tokens = token_source(security)

    @property
    def has_tls(self) -> bool:
        """True if bytes are encrypted."""
        return self._security.has_tls

    @property
    def has_login(self) -> bool:
        """True if a connection begins with a login."""
        return self._security.has_login

    @property
    def login_blocks(self) -> bool:
        """True if `new_login` may block: then it must be called in a thread."""
        return self.has_login and self._security.mechanism in ("OAUTHBEARER", "AWS_MSK_IAM")

    def new_tls(self, host: str) -> Tls | None:
        """Return the TLS of one connection; None without TLS. Raises TlsFailed."""
        return None if self._new_tls is None else self._new_tls(host)

    def new_login(self, host: str) -> UserLogin:
        """Return a login. Raises LoginRefused if it gets no token."""
        mechanism = self._security.mechanism
        if self._tokens is not None:
            tokens = self._tokens(host)
            made = OAuthBearer(tokens.token, tokens.extensions)
            return UserLogin(
                "OAUTHBEARER", made, who=tokens.who, look_at=tokens.look_at, secrets=[tokens.token]
            )
        options = self._security.login_module.options
        user, password = options["username"], options["password"]
        return UserLogin(
            mechanism,
            password_mechanism(mechanism, user, password, secrets.token_hex(16)),
            who=f"user {user!r} by {mechanism}",
            look_at=f"the user's name and password in {JAAS_OPTION}, and at kafka.sasl.mechanism",
            secrets=[password],
        )
