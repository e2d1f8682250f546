"""Security of connections to other brokers of the cluster: TLS, and a SASL login as a client.

The broker uses the options of the inter-broker listener, as in Kafka. It shows the listener's key,
and checks the other broker by the listener's trusted certificates. It logs in as the user of the
listener's login module, by `sasl.mechanism.inter.broker.protocol`. The registry has no TLS and no
login.
"""

from __future__ import annotations

import enum
import secrets
import ssl
from dataclasses import dataclass

from broker_sim.core.config import BrokerConfig, ConfigError
from broker_sim.core.config.security import listener_option
from broker_sim.core.endpoint import Listener, inter_broker_listener, read_listeners
from broker_sim.core.security.logins import read_login_module
from broker_sim.server.tls import build_peer_context
from txnlog_kafka.wire import framing
from txnlog_kafka.wire.error_codes import error_name
from txnlog_kafka.wire.framing import Frame, MalformedFrame
from txnlog_kafka.wire.invariants import present
from txnlog_kafka.wire.messages import APIS, ApiKey, Message
from txnlog_kafka.wire.sasl import Mechanism, TooFewIterations, password_mechanism

HANDSHAKE_VERSION = 1
AUTHENTICATE_VERSION = 2


class LoginFailed(Exception):
    """The other broker does not let this one in, or is not who it must be; one line without any
    secret."""


class LoginStep(enum.Enum):
    """State of a login. A complete login may begin once more (KIP-368)."""

    NEW = "new"
    """Nothing was sent; -> HANDSHAKE."""
    HANDSHAKE = "handshake"
    """SaslHandshake is to be answered; -> AUTHENTICATE."""
    AUTHENTICATE = "authenticate"
    """SaslAuthenticate is to be answered; -> AUTHENTICATE, COMPLETE."""
    COMPLETE = "complete"
    """Requests may be sent; -> HANDSHAKE."""


@dataclass(frozen=True, slots=True)
class PeerUser:
    """The user that a broker logs in as; the password is in no text."""

    mechanism: str
    name: str
    password: str

    def __repr__(self) -> str:
        return f"PeerUser({self.mechanism!r}, {self.name!r})"


class PeerLogin:
    """The login of one connection: frames to send, for frames that come. Sans-IO."""

    def __init__(self, user: PeerUser, client_id: str) -> None:
        self.step = LoginStep.NEW
        self.lifetime_ms = 0
        """Milliseconds that the login lasts; 0 is for ever."""
        self._user = user
        self._client_id = client_id
        self._correlation_id = 0
        self._mechanism: Mechanism | None = None

    def begin(self) -> bytes:
        """The first frame, of a new login or of its renewal."""
        self.step = LoginStep.HANDSHAKE
        user = self._user
        self._mechanism = password_mechanism(
            user.mechanism, user.name, user.password, secrets.token_hex(16)
        )
        request = APIS[ApiKey.SASL_HANDSHAKE].request(mechanism=user.mechanism)
        return self._framed(request, HANDSHAKE_VERSION)

    def on_frame(self, frame: Frame) -> bytes | None:
        """The next frame to send; None when the login is complete. Raises LoginFailed, and
        MalformedFrame for what is not the answer."""
        if framing.response_correlation_id(frame) != self._correlation_id:
            raise MalformedFrame("an answer to no request of the login")
        if self.step is LoginStep.HANDSHAKE:
            answer = self._answer(ApiKey.SASL_HANDSHAKE, HANDSHAKE_VERSION, frame)
            self.step = LoginStep.AUTHENTICATE
            return self._authenticate()
        answer = self._answer(ApiKey.SASL_AUTHENTICATE, AUTHENTICATE_VERSION, frame)
        if not self._receive(answer.auth_bytes):
            return self._authenticate()
        self.step = LoginStep.COMPLETE
        self._mechanism = None
        self.lifetime_ms = answer.session_lifetime_ms
        return None

    def _authenticate(self) -> bytes:
        token = present(self._mechanism, "a login has begun").next_bytes()
        request = APIS[ApiKey.SASL_AUTHENTICATE].request(auth_bytes=token)
        return self._framed(request, AUTHENTICATE_VERSION)

    def _receive(self, token: bytes) -> bool:
        """Take the other side's bytes; whether the login is complete."""
        mechanism = present(self._mechanism, "a login has begun")
        try:
            mechanism.receive(token)
        except TooFewIterations as error:
            raise LoginFailed(f"it asks for {error}") from None
        except (ValueError, LookupError) as error:
            # Without `from`: what the code of a mechanism says may have been made of secrets.
            raise LoginFailed(
                f"its answer is not one of {self._user.mechanism} ({type(error).__name__})"
            ) from None
        return mechanism.is_complete

    def _answer(self, key: ApiKey, version: int, frame: Frame) -> Message:
        answer = framing.decode_response(APIS[key], version, frame)
        if answer.error_code:
            user = self._user
            raise LoginFailed(
                f"it refuses the login of {user.name!r} by {user.mechanism}: "
                f"{error_name(answer.error_code)}"
            )
        return answer

    def _framed(self, request: Message, version: int) -> bytes:
        self._correlation_id += 1
        return framing.encode_request(request, version, self._correlation_id, self._client_id)


@dataclass(frozen=True, slots=True)
class PeerSecurity:
    """Security settings for the start of connections to other brokers."""

    context: ssl.SSLContext | None = None
    """TLS context; None: without TLS."""
    user: PeerUser | None = None
    """User to log in as; None: without a login."""


def read_peer_security(config: BrokerConfig) -> PeerSecurity:
    """Read the settings of the inter-broker listener; empty for a broker that is alone.

    Raises ConfigError.
    """
    if not config.text("registry.connect"):
        return PeerSecurity()
    name = inter_broker_listener(config)
    listener = next(each for each in read_listeners(config) if each.name == name)
    user = _read_user(listener, config) if listener.protocol.uses_sasl else None
    return PeerSecurity(build_peer_context(listener, config), user)


def _read_user(listener: Listener, config: BrokerConfig) -> PeerUser:
    mechanism = config.text("sasl.mechanism.inter.broker.protocol")
    options = read_login_module(config, listener.name, mechanism).options
    for name in ("username", "password"):
        if not options.get(name):
            raise ConfigError(
                f"{listener_option(listener.name, 'sasl.jaas.config', mechanism)} must have "
                f"{name}=..., by which brokers log in to each other"
            )
    return PeerUser(mechanism, options["username"], options["password"])
