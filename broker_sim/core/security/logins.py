"""Logins of connections, on listeners with SASL (source: Kafka's `SaslServerAuthenticator`).

Theory of operation: a connection begins by ApiVersions, if it likes, then SaslHandshake names the
mechanism, and SaslAuthenticate carries its messages. Nothing else is answered before that. When the
login is over after `connections.max.reauth.ms`, only another SaslHandshake is taken: the connection
goes on with a new login of the same user by the same mechanism (KIP-368). A login that is refused
is answered after `connection.failed.authentication.delay.ms`, and then its connection is closed: so
guessing takes time.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker_sim.apis import AnyApiKey, BrokerApiKey
from broker_sim.core.config import OAUTHBEARER, BrokerConfig, ConfigError
from broker_sim.core.config.security import listener_option
from broker_sim.core.controller import ClusterImage
from broker_sim.core.controller.credentials import ScramMechanism
from broker_sim.core.effects import CancelTimer, Close, ConnectionId, Effects, Request, Respond
from broker_sim.core.endpoint import Listener, enabled_mechanisms
from broker_sim.core.replies import answer_to
from broker_sim.core.security.bearer import BearerExchange, TokenChecks
from broker_sim.core.security.mechanisms import (
    Exchange,
    LoginRefused,
    PlainExchange,
    ScramExchange,
)
from broker_sim.core.security.principals import principal_of
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.jaas import MODULES, PLAIN_MODULE, JaasError, LoginModule, parse_jaas
from txnlog_kafka.wire.messages import ApiKey, Message

if TYPE_CHECKING:
    from random import Random

LOGIN_TIMER = "login-refused"
REAUTHENTICATION_PAUSE_MS = 1000
"""Between the beginnings of two renewals; an earlier one is answered ILLEGAL_SASL_STATE."""
_USER_PREFIX = "user_"
_NONCE_BITS = 192


class LoginState(enum.Enum):
    """State of a connection's login."""

    INITIAL = "initial"
    """Takes ApiVersions, once, and SaslHandshake; -> HANDSHAKE, AUTHENTICATE, FAILED."""
    HANDSHAKE = "handshake"
    """Takes SaslHandshake; -> AUTHENTICATE, FAILED."""
    AUTHENTICATE = "authenticate"
    """Takes SaslAuthenticate; -> COMPLETE, FAILED."""
    COMPLETE = "complete"
    """Takes every request while the login lasts; SaslHandshake renews one that ends;
    -> AUTHENTICATE, FAILED."""
    FAILED = "failed"
    """Takes nothing: the connection closes soon."""


VALID_PREVIOUS: Mapping[LoginState, frozenset[LoginState]] = {
    LoginState.INITIAL: frozenset(),
    LoginState.HANDSHAKE: frozenset({LoginState.INITIAL}),
    LoginState.AUTHENTICATE: frozenset(
        {LoginState.INITIAL, LoginState.HANDSHAKE, LoginState.COMPLETE}
    ),
    LoginState.COMPLETE: frozenset({LoginState.AUTHENTICATE}),
    LoginState.FAILED: frozenset(
        {LoginState.INITIAL, LoginState.HANDSHAKE, LoginState.AUTHENTICATE, LoginState.COMPLETE}
    ),
}
TAKES: Mapping[LoginState, frozenset[AnyApiKey]] = {
    LoginState.INITIAL: frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}),
    LoginState.HANDSHAKE: frozenset({ApiKey.SASL_HANDSHAKE}),
    LoginState.AUTHENTICATE: frozenset({ApiKey.SASL_AUTHENTICATE}),
    LoginState.COMPLETE: frozenset({*ApiKey, *BrokerApiKey}),
    LoginState.FAILED: frozenset(),
}


@dataclass(slots=True)
class Login:
    """Login of a connection."""

    state: LoginState = LoginState.INITIAL
    mechanism: str = ""
    exchange: Exchange | None = None
    """Message exchange; None in AUTHENTICATE: a renewal by another mechanism, which fails."""
    principal: str = ""
    ends_ms: int | None = None
    """Monotonic; None for a login that does not end."""
    renewed_ms: int | None = None
    """When the last renewal began; monotonic."""

    def move(self, state: LoginState) -> None:
        """To the next state."""
        check(self.state in VALID_PREVIOUS[state], "illegal transition of a login",
              current=self.state, target=state)  # fmt: skip
        self.state = state


@dataclass(frozen=True, slots=True)
class Handshake:
    """Answer to SaslHandshake; `refused` means that the connection ends."""

    error: ErrorCode
    mechanisms: tuple[str, ...] = ()
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Authenticated:
    """Answer to SaslAuthenticate; `refused` means that the connection ends."""

    error: ErrorCode
    message: str | None = None
    data: bytes = b""
    lifetime_ms: int = 0
    complete: bool = False
    refused: bool = False


class Logins:
    """Logins of the broker, by connection."""

    def __init__(
        self,
        config: BrokerConfig,
        listeners: Mapping[str, Listener],
        image: ClusterImage,
        rng: Random,
        token_checks: TokenChecks,
    ) -> None:
        """Raises ConfigError for a login module that cannot be used."""
        self._config = config
        self._image = image
        self._rng = rng
        self._token_checks = token_checks
        self._mechanisms = {
            name: tuple(enabled_mechanisms(name, config))
            for name, listener in listeners.items()
            if listener.protocol.uses_sasl
        }
        self._users = {
            (name, mechanism): _users(read_login_module(config, name, mechanism))
            for name, mechanisms in self._mechanisms.items()
            for mechanism in mechanisms
        }
        self._logins: dict[ConnectionId, Login] = {}
        self._refused: dict[ConnectionId, tuple[Respond | Close, ...]] = {}

    def admit(self, request: Request, effects: Effects) -> str | None:
        """The principal that asks; None when it may not ask this now, and the connection closes."""
        if request.listener not in self._mechanisms:
            return request.principal
        login = self._logins.setdefault(request.connection_id, Login())
        if request.api_key not in TAKES[login.state]:
            reason = f"{request.api_key.name} in the state {login.state.value} of the login"
        elif (
            login.ends_ms is not None
            and effects.monotonic_ms > login.ends_ms
            and login.state is LoginState.COMPLETE
            and request.api_key is not ApiKey.SASL_HANDSHAKE
        ):
            reason = "the login is over, and was not renewed"
        else:
            return login.principal or request.principal
        effects.responses.append(Close(request.connection_id, reason))
        return None

    def has_ended(self, request: Request) -> bool:
        """True if the client has logged in, or its listener wants no login."""
        login = self._logins.get(request.connection_id)
        return login is None or login.state is LoginState.COMPLETE

    def on_versions(self, request: Request) -> None:
        """ApiVersions was answered."""
        login = self._logins.get(request.connection_id)
        if login is not None and login.state is LoginState.INITIAL:
            login.move(LoginState.HANDSHAKE)

    def handshake(self, request: Request, effects: Effects) -> Handshake:
        """The client has chosen a mechanism."""
        login = self._logins.get(request.connection_id)
        now_ms = effects.monotonic_ms
        if login is None:
            return Handshake(ErrorCode.ILLEGAL_SASL_STATE)  # a listener without SASL
        renews = login.state is LoginState.COMPLETE
        if renews:
            early = login.renewed_ms is not None and (
                now_ms - login.renewed_ms < REAUTHENTICATION_PAUSE_MS
            )
            if login.ends_ms is None or early:
                return Handshake(ErrorCode.ILLEGAL_SASL_STATE)
            login.renewed_ms = now_ms
        mechanism = request.message.mechanism
        enabled = self._mechanisms[request.listener]
        if mechanism not in enabled:
            login.move(LoginState.FAILED)
            return Handshake(ErrorCode.UNSUPPORTED_SASL_MECHANISM, enabled, refused=True)
        login.move(LoginState.AUTHENTICATE)
        login.exchange = None
        if not renews or mechanism == login.mechanism:
            login.mechanism = mechanism
            login.exchange = self._exchange(request.listener, mechanism, effects.now_ms)
        return Handshake(ErrorCode.NONE, enabled)

    def authenticate(self, request: Request, effects: Effects) -> Authenticated:
        """The client's next message of its mechanism."""
        login = self._logins.get(request.connection_id)
        if login is None or login.state is not LoginState.AUTHENTICATE:
            text = "there is no login to go on with"
            return Authenticated(ErrorCode.ILLEGAL_SASL_STATE, text)
        if login.exchange is None:  # a renewal by another mechanism, which Kafka does not answer
            login.move(LoginState.FAILED)
            return Authenticated(ErrorCode.SASL_AUTHENTICATION_FAILED, None, refused=True)
        try:
            data = login.exchange.respond(bytes(request.message.auth_bytes))
            user = login.exchange.user
            if user is None:
                return Authenticated(ErrorCode.NONE, data=data)
            if login.principal not in ("", principal_of(user)):
                raise LoginRefused("re-authentication has another user than the connection")
        except LoginRefused as refused:
            login.exchange = None
            login.move(LoginState.FAILED)
            effects.trace("login-refused", mechanism=login.mechanism, host=request.client_host)
            error = ErrorCode.SASL_AUTHENTICATION_FAILED
            return Authenticated(error, str(refused), refused=True)
        login.move(LoginState.COMPLETE)
        lifetime_ms = self._lifetime_ms(request.listener, login.mechanism)
        if login.exchange.expires_ms is not None:
            left_ms = max(0, login.exchange.expires_ms - effects.now_ms)
            lifetime_ms = min(lifetime_ms, left_ms) if lifetime_ms else left_ms
        login.exchange = None
        login.principal = principal_of(user)
        login.ends_ms = effects.monotonic_ms + lifetime_ms if lifetime_ms else None
        return Authenticated(ErrorCode.NONE, data=data, lifetime_ms=lifetime_ms, complete=True)

    def refuse(self, request: Request, message: Message | None, effects: Effects) -> None:
        """Answer later, unless there is no message, then close the connection."""
        close = Close(request.connection_id, "its login was refused")
        self._refused[request.connection_id] = (close,)
        if message is not None:
            self._refused[request.connection_id] = (answer_to(request, message), close)
        effects.set_timer(
            LOGIN_TIMER,
            str(request.connection_id),
            after_ms=self._config.integer("connection.failed.authentication.delay.ms"),
        )

    def on_timer(self, key: tuple[str, ...], effects: Effects) -> None:
        """A client has waited long enough for its refusal."""
        effects.responses += self._refused.pop(int(key[1]), ())

    def forget(self, connection_id: ConnectionId, effects: Effects) -> None:
        """The connection is gone."""
        self._logins.pop(connection_id, None)
        if self._refused.pop(connection_id, None) is not None:
            effects.timers.append(CancelTimer((LOGIN_TIMER, str(connection_id))))

    def _lifetime_ms(self, listener: str, mechanism: str) -> int:
        return int(self._config.of_listener(listener, "connections.max.reauth.ms", mechanism))

    def _exchange(self, listener: str, mechanism: str, now_ms: int) -> Exchange:
        if mechanism == "PLAIN":
            return PlainExchange(self._users[listener, mechanism])
        if mechanism == OAUTHBEARER:
            return BearerExchange(self._token_checks[listener], now_ms)
        scram = ScramMechanism[mechanism.replace("-", "_")]
        credentials = self._image.scram_credentials
        nonce = f"{self._rng.getrandbits(_NONCE_BITS):048x}"
        return ScramExchange(scram, lambda user: credentials.get((user, scram)), nonce)


def read_login_module(config: BrokerConfig, listener: str, mechanism: str) -> LoginModule:
    """Read the login module of a mechanism on a listener. Raises ConfigError.

    As in Kafka, each mechanism needs a login module.
    """
    option = listener_option(listener, "sasl.jaas.config", mechanism)
    text = str(config.of_listener(listener, "sasl.jaas.config", mechanism))
    if not text:
        raise ConfigError(f"{option} must have the login module of {mechanism}")
    try:
        module = parse_jaas(text)
    except JaasError as error:
        raise ConfigError(f"{option} must be: {error}") from error
    if mechanism not in MODULES.get(module.name, ()):
        modules = [name for name, mechanisms in MODULES.items() if mechanism in mechanisms]
        raise ConfigError(f"{option} must have a {modules[0]} for {mechanism}")
    return module


def _users(module: LoginModule) -> dict[str, str]:
    if module.name != PLAIN_MODULE:
        return {}
    return {
        name.removeprefix(_USER_PREFIX): password
        for name, password in module.options.items()
        if name.startswith(_USER_PREFIX)
    }
