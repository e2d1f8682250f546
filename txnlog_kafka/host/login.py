"""Login of the client's user, with errors that name the options."""

from __future__ import annotations

from collections.abc import Iterable

from txnlog_kafka.errors import HIDDEN
from txnlog_kafka.wire.error_codes import ErrorCode, error_name
from txnlog_kafka.wire.login import Login
from txnlog_kafka.wire.messages import Message
from txnlog_kafka.wire.sasl import Mechanism, TooFewIterations

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
