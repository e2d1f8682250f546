"""Login by SASL on one connection: requests to send, for the answers that come.

A login is SaslHandshake with the name of the mechanism, then SaslAuthenticate with the bytes of
`sasl`, until the login is complete. The last answer has the time for which the login is good
(KIP-368): before its end the connection begins another login. No socket or clock here.
"""

from __future__ import annotations

import math

from txnlog_kafka.wire.error_codes import ErrorCode, error_name
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.sasl import Mechanism, TooFewIterations

RENEWED_AFTER = 0.85
"""Part of a login's time after which the next request waits for a new login; Kafka's client takes
85 to 95 %."""


class LoginRefused(Exception):
    """Refusal of a login by the broker, or of the broker by the client; one line for a person.

    `final`: another attempt would end in the same way.
    """

    is_security = True

    def __init__(self, reason: str, *, final: bool = True) -> None:
        super().__init__(reason)
        self.final = final


class Login:
    """Login of one connection. A subclass words the failures for its own reader."""

    def __init__(self, mechanism_name: str, mechanism: Mechanism, who: str) -> None:
        """`who` logs in, for errors."""
        self.renewed_after_s = math.inf
        """Seconds after which to log in again, once this login is complete."""
        self._mechanism_name = mechanism_name
        self._mechanism = mechanism
        self._who = who
        self._in_handshake = True
        """True until SaslHandshake is answered."""

    def __repr__(self) -> str:
        return f"Login({self._mechanism_name!r}, {self._who!r})"

    def begin(self) -> Message:
        """Return the first request."""
        return APIS[ApiKey.SASL_HANDSHAKE].request(mechanism=self._mechanism_name)

    def on_answer(self, answer: Message) -> Message | None:
        """Return the next request; None when the login is complete. Raises LoginRefused."""
        if answer.error_code != ErrorCode.NONE:
            raise LoginRefused(self._refusal(answer))
        if self._in_handshake:
            self._in_handshake = False
        elif self._receive(answer.auth_bytes):
            lifetime_s = answer.session_lifetime_ms / 1000
            self.renewed_after_s = lifetime_s * RENEWED_AFTER if lifetime_s > 0 else math.inf
            return None
        return APIS[ApiKey.SASL_AUTHENTICATE].request(auth_bytes=self._mechanism.next_bytes())

    def _receive(self, auth_bytes: bytes) -> bool:
        """Go on with the broker's bytes; return True if the login is complete."""
        try:
            self._mechanism.receive(auth_bytes)
        except (ValueError, LookupError) as error:
            # Without `from`: what the code of a mechanism says may have been made of secrets.
            raise LoginRefused(self._misfit(error)) from None
        return self._mechanism.is_complete

    def _refusal(self, answer: Message) -> str:
        """Return one line about an answer with an error."""
        return f"it refuses the login of {self._who}: {error_name(answer.error_code)}"

    def _misfit(self, error: Exception) -> str:
        """Return one line about bytes that the mechanism does not accept."""
        if isinstance(error, TooFewIterations):
            return f"it asks for {error}"
        return f"its answer is not one of {self._mechanism_name} ({type(error).__name__})"
