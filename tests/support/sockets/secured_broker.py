"""`SocketBroker` behind TLS and SASL: with the exchanges of the broker's core, and OAUTHBEARER.

What a login is answered with can be replaced by `say`.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
from typing import Any

from support.sockets.socket_broker import (
    SASL_APIS,
    VERSIONS,
    React,
    Reaction,
    SocketBroker,
    answer_bytes,
)

from broker_sim.core.controller.credentials import ScramCredential, ScramMechanism
from broker_sim.core.security.mechanisms import (
    Exchange,
    LoginRefused,
    PlainExchange,
    ScramExchange,
)
from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.messages import APIS, ApiKey

SASL_VERSIONS = VERSIONS | {k: (0, api.version_max) for k, api in SASL_APIS.items()}
SALT, ITERATIONS = b"salt", 4096


class BearerExchange:
    """RFC 7628: a token that is not right is answered with why, and then refused."""

    def __init__(self, token: str) -> None:
        self.user: str | None = None
        self._token = token
        self._is_wrong = False

    def respond(self, data: bytes) -> bytes:
        """The answer to a client's bytes."""
        if self._is_wrong:
            raise LoginRefused("Authentication failed: the token is not valid")
        self._is_wrong = data.split(b"\x01")[1] != f"auth=Bearer {self._token}".encode()
        self.user = None if self._is_wrong else "bearer"
        return b'{"status":"invalid_token"}' if self._is_wrong else b""


class SecuredBroker(SocketBroker):
    """A broker whose users are `users`, name to password, and whose token is `token`."""

    def __init__(
        self,
        react: React | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        mechanisms: tuple[str, ...] = (),
        versions: dict | None = None,
    ) -> None:
        super().__init__(react, versions or (SASL_VERSIONS if mechanisms else VERSIONS))
        self.users = {"alice": "alice-secret"}
        self.token = "the-token"
        self.lifetime_ms = 0
        self.iterations = ITERATIONS
        self.tls = tls
        self.mechanisms = mechanisms
        self.say: str | None = None
        """Error message that the broker answers to every login, instead of letting it in."""
        self._is_logged_in = False
        self._exchange: Exchange = PlainExchange({})
        """Exchange of the login that began last."""

    @property
    def log(self) -> list[str]:
        """Names of what was asked, over all connections."""
        return [header.api_key.name for header in self.headers]

    def _serve(self, connection: socket.socket) -> None:
        if self.tls is None:
            super()._serve(connection)
            return
        try:
            # Bounded: a client that does not speak TLS is not waited for.
            connection.settimeout(20)
            sealed = self.tls.wrap_socket(connection, server_side=True)
        except OSError:
            connection.close()
            return
        self._sockets.append(sealed)
        super()._serve(sealed)

    def _is_misrouted(self, versions: Any) -> bool:
        is_compared = self._is_logged_in or not self.mechanisms
        return is_compared and super()._is_misrouted(versions)

    def _answer(self, header: Any, message: Any) -> Reaction:
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            return answer_bytes(header, self._handshake(message.mechanism))
        if header.api_key == ApiKey.SASL_AUTHENTICATE:
            return answer_bytes(header, self._authenticate(bytes(message.auth_bytes)))
        return super()._answer(header, message)

    def _handshake(self, mechanism: str) -> Any:
        response = APIS[ApiKey.SASL_HANDSHAKE].response
        self._is_logged_in = False
        if not self.mechanisms:  # as a Kafka listener without SASL
            return response(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
        code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        if mechanism in self.mechanisms:
            self._exchange, code = self._new_exchange(mechanism), ErrorCode.NONE
        return response(error_code=code, mechanisms=list(self.mechanisms))

    def _new_exchange(self, mechanism: str) -> Exchange:
        if mechanism == "PLAIN":
            return PlainExchange(self.users)
        if mechanism == "OAUTHBEARER":
            return BearerExchange(self.token)
        scram = ScramMechanism[mechanism.replace("-", "_")]
        return ScramExchange(scram, lambda user: self._credential(scram, user), "server")

    def _credential(self, scram: ScramMechanism, user: str) -> ScramCredential:
        password = self.users.get(user, "nobody's").encode()
        salted = hashlib.pbkdf2_hmac(scram.digest, password, SALT, self.iterations)
        return ScramCredential.of_salted_password(scram, salted, SALT, self.iterations)

    def _authenticate(self, data: bytes) -> Any:
        response = APIS[ApiKey.SASL_AUTHENTICATE].response
        try:
            said = self._exchange.respond(data)
            if self._exchange.user is not None and self.say is not None:
                raise LoginRefused(self.say)
        except LoginRefused as refused:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return response(error_code=code, error_message=self.say or str(refused))
        self._is_logged_in = self._exchange.user is not None
        return response(error_code=0, auth_bytes=said, session_lifetime_ms=self.lifetime_ms)
