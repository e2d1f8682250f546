"""Builder of a client's TLS and logins, made once from a `Security`; errors name the options."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from txnlog_kafka.errors import HIDDEN
from txnlog_kafka.host.security import Security
from txnlog_kafka.wire.error_codes import ErrorCode, error_name
from txnlog_kafka.wire.jaas import OPTION as JAAS_OPTION
from txnlog_kafka.wire.login import Login
from txnlog_kafka.wire.messages import Message
from txnlog_kafka.wire.sasl import Mechanism, OAuthBearer, TooFewIterations, password_mechanism

if TYPE_CHECKING:
    from txnlog_kafka.host.tls import Tls
    from txnlog_kafka.host.tokens import Tokens

NO_TOKEN_IN_TIME = (
    "the token for the login did not come in time: look at "
    "kafka.sasl.oauthbearer.token.endpoint.url or kafka.sasl.login.callback.handler.class"
)
NOT_ASKED_FOR = (
    "the listener does not ask for SASL: set kafka.security.protocol to PLAINTEXT or SSL, or name "
    "another port in kafka.bootstrap.servers"
)


class UserLogin(Login):
    """Login by the options of security."""

    def __init__(
        self,
        mechanism_name: str,
        mechanism: Mechanism,
        *,
        who: str,
        look_at: str,
        secrets: Iterable[str] = (),
    ) -> None:
        """`who` logs in, `look_at` names the options; no text of ours has any of `secrets`."""
        super().__init__(mechanism_name, mechanism, who)
        self._look_at = look_at
        self._secrets = tuple(secret for secret in secrets if secret)

    def _refusal(self, answer: Message) -> str:
        name = error_name(answer.error_code)
        if self._in_handshake:
            if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
                return NOT_ASKED_FOR
            enabled = ", ".join(sorted(answer.mechanisms or ())) or "none"
            return (
                f"kafka.sasl.mechanism={self._mechanism_name} is not enabled on this listener, "
                f"which has: {enabled} ({name})"
            )
        said = answer.error_message or name
        for secret in self._secrets:
            said = said.replace(secret, HIDDEN)
        said = " ".join(said.split())
        return f"the broker refused the login of {self._who}: {said}; look at {self._look_at}"

    def _misfit(self, error: Exception) -> str:
        if isinstance(error, TooFewIterations):
            return f"the broker asks for {error}"
        return (
            f"the broker's answer to {self._who} is not one of {self._mechanism_name} "
            f"({type(error).__name__}): it may not know the password, look at {self._look_at}"
        )


class ChannelBuilder:
    """Makes the TLS and the login of each connection of a client."""

    def __init__(self, security: Security) -> None:
        """Read certificates and keys. Raises OptionError."""
        self.security = security
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
    def login_blocks(self) -> bool:
        """True if `new_login` may block: then it must be called in a thread."""
        return self.security.has_login and self.security.mechanism in ("OAUTHBEARER", "AWS_MSK_IAM")

    def new_tls(self, host: str) -> Tls | None:
        """Return the TLS of one connection; None without TLS. Raises TlsFailed."""
        return None if self._new_tls is None else self._new_tls(host)

    def new_login(self, host: str) -> UserLogin:
        """Return a login. Raises LoginRefused if it gets no token."""
        mechanism = self.security.mechanism
        if self._tokens is not None:
            tokens = self._tokens(host)
            made = OAuthBearer(tokens.token, tokens.extensions)
            return UserLogin(
                "OAUTHBEARER", made, who=tokens.who, look_at=tokens.look_at, secrets=[tokens.token]
            )
        options = self.security.login_module.options
        user, password = options["username"], options["password"]
        return UserLogin(
            mechanism,
            password_mechanism(mechanism, user, password, secrets.token_hex(16)),
            who=f"user {user!r} by {mechanism}",
            look_at=f"the user's name and password in {JAAS_OPTION}, and at kafka.sasl.mechanism",
            secrets=[password],
        )
