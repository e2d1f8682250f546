"""One login by SASL, and what an error means to a person."""

from __future__ import annotations

from collections.abc import Iterable

from txnlog_kafka.errors import HIDDEN
from txnlog_kafka.wire.sasl import Mechanism, TooFewIterations

NO_TOKEN_IN_TIME = (
    "the token for the login did not come in time: look at "
    "kafka.sasl.oauthbearer.token.endpoint.url or kafka.sasl.login.callback.handler.class"
)


class LoginRefused(Exception):
    """The broker does not accept the login, or is not who it must be; one line for a person.

    `final` says that another attempt would end in the same way.
    """

    def __init__(self, reason: str, *, final: bool = True) -> None:
        super().__init__(reason)
        self.final = final


class Login:
    """One exchange of bytes."""

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
        self.mechanism_name = mechanism_name
        self._mechanism = mechanism
        self._who = who
        self._look_at = look_at
        self._secrets = tuple(secret for secret in secrets if secret)

    def __repr__(self) -> str:
        return f"Login({self.mechanism_name!r}, {self._who!r})"

    @property
    def is_done(self) -> bool:
        """Whether nothing is to be sent any more."""
        return self._mechanism.is_complete

    def next_bytes(self) -> bytes:
        """What to send next."""
        return self._mechanism.next_bytes()

    def on_answer(self, auth_bytes: bytes) -> None:
        """Go on with the broker's bytes. Raises LoginRefused."""
        try:
            self._mechanism.receive(auth_bytes)
        except TooFewIterations as error:
            raise LoginRefused(f"the broker asks for {error}") from None
        except (ValueError, LookupError) as error:
            # Without `from`: what the code of a mechanism says may have been made of secrets.
            raise LoginRefused(
                f"the broker's answer to {self._who} is not one of {self.mechanism_name} "
                f"({type(error).__name__}): it may not know the password, look at {self._look_at}"
            ) from None

    def refused(self, said: str) -> str:
        """One line about a login that the broker refused with these words."""
        for secret in self._secrets:
            said = said.replace(secret, HIDDEN)
        said = " ".join(said.split())
        return f"the broker refused the login of {self._who}: {said}; look at {self._look_at}"
