"""`SocketBroker` behind TLS and SASL: the server's side of each mechanism, in small.

SCRAM by RFC 5802, PLAIN by RFC 4616, OAUTHBEARER by RFC 7628, inside Kafka's SaslHandshake and
SaslAuthenticate. What a login is answered with can be replaced by `say`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import ssl
import struct
from collections.abc import Callable, Generator
from typing import Any

from support.scripted.socket_broker import SASL_APIS, VERSIONS, Reaction, SocketBroker

from txnlog_kafka.wire.decoder import decode_message
from txnlog_kafka.wire.encoder import encode_message
from txnlog_kafka.wire.messages import ApiKey

SASL_VERSIONS = VERSIONS | {k: (0, api.version_max) for k, api in SASL_APIS.items()}
SALT, ITERATIONS = b"salt", 4096
Exchange = Generator[bytes, bytes, bool]
"""Is sent what the client says, yields what it is answered, returns whether it is let in."""


class SecuredBroker(SocketBroker):
    """A broker whose users are `users`, name to password, and whose token is `token`."""

    def __init__(
        self,
        react: Callable[[Any, Any], Reaction],
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
        """What it says of every login, in place of letting it in."""
        self.log: list[str] = []
        """Names of what was asked, over all connections."""
        self._exchanges: dict[int, Exchange] = {}

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

    def _reaction(self, frame: bytes) -> Reaction:
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        self.log.append(ApiKey(key).name)
        api = SASL_APIS.get(ApiKey(key))
        if api is None or not self.mechanisms:
            return super()._reaction(frame) if api is None else self._not_here(api, correlation_id)
        (length,) = struct.unpack_from(">h", frame, 8)
        position = 10 + max(0, length) + bool(api.request.SCHEMA.is_flexible(version))
        body = memoryview(frame)[position:]
        message = decode_message(api.request, version, body, elements_max=100)
        answer = self._handshake(api, message) if version == 1 and key == 17 else None
        answer = answer or self._authenticate(api, message)
        return encode_sasl(api, version, correlation_id, answer)

    def _not_here(self, api: Any, correlation_id: int) -> bytes:
        """As a Kafka listener without SASL."""
        return encode_sasl(api, 1, correlation_id, api.response(error_code=34, mechanisms=[]))

    def _handshake(self, api: Any, message: Any) -> Any:
        if message.mechanism not in self.mechanisms:
            return api.response(error_code=33, mechanisms=list(self.mechanisms))
        exchange = {
            "PLAIN": self._plain,
            "OAUTHBEARER": self._bearer,
        }.get(message.mechanism, lambda: self._scram(message.mechanism))()
        next(exchange)
        self._exchanges[0] = exchange
        return api.response(error_code=0, mechanisms=list(self.mechanisms))

    def _authenticate(self, api: Any, message: Any) -> Any:
        try:
            said = self._exchanges[0].send(bytes(message.auth_bytes))
        except StopIteration as stop:
            if not stop.value or self.say is not None:
                why = self.say or "Authentication failed: Invalid username or password"
                return api.response(error_code=58, error_message=why, auth_bytes=b"")
            said = b"" if stop.value is True else stop.value
        return api.response(
            error_code=0, error_message=None, auth_bytes=said, session_lifetime_ms=self.lifetime_ms
        )

    def _plain(self) -> Exchange:
        said = yield b""
        _, user, password = said.decode().split("\0")
        return self.users.get(user) == password

    def _bearer(self) -> Exchange:
        said = yield b""
        if said.split(b"\x01")[1] == f"auth=Bearer {self.token}".encode():
            return True
        yield b'{"status":"invalid_token"}'
        return False

    def _scram(self, mechanism: str) -> Exchange:
        name = "sha256" if mechanism.endswith("256") else "sha512"
        first = (yield b"")[3:].decode()
        user, nonce = (part[2:] for part in first.split(","))
        password = self.users.get(user.replace("=2C", ",").replace("=3D", "="), "nobody's")
        salt = base64.b64encode(SALT).decode()
        second = f"r={nonce}server,s={salt},i={self.iterations}"
        final = (yield second.encode()).decode()
        plain, _, proof = final.rpartition(",p=")
        said = ",".join((first, second, plain)).encode()
        salted = hashlib.pbkdf2_hmac(name, password.encode(), SALT, self.iterations)
        key = hmac.digest(salted, b"Client Key", name)
        signature = hmac.digest(hashlib.new(name, key).digest(), said, name)
        wanted = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        if base64.b64decode(proof) != wanted:
            return False
        server = hmac.digest(hmac.digest(salted, b"Server Key", name), said, name)
        return b"v=" + base64.b64encode(server)


def encode_sasl(api: Any, version: int, correlation_id: int, message: Any) -> bytes:
    """The framed answer to a request of SASL_APIS."""
    flexible = api.response.SCHEMA.is_flexible(version)
    body = encode_message(message, version)
    head = struct.pack(">i", correlation_id) + (b"\0" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body
