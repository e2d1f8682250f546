"""What client and broker say before the first request: ApiVersions, then a login by SASL.

A plain object: it gives the next request to send, takes its answer, and knows no socket or time.
ApiVersions is asked at our newest version; a broker that does not know it answers with version 0
and what it does know (KIP-511). A login is SaslHandshake with the name of the mechanism, then
SaslAuthenticate with the bytes of `wire.sasl`, until that is complete. The last
answer says for how long the login is good (KIP-368), and `log_in` may begin another one then.
"""

from __future__ import annotations

from dataclasses import dataclass

from txnlog_kafka.host.link import ConnectionFailed
from txnlog_kafka.host.login import Login, LoginRefused
from txnlog_kafka.operations.metadata import api_versions_request
from txnlog_kafka.wire.error_codes import ErrorCode, error_name
from txnlog_kafka.wire.messages import APIS, Api, ApiKey, Message

NOT_ASKED_FOR = (
    "the listener does not ask for SASL: set kafka.security.protocol to PLAINTEXT or SSL, or name "
    "another port in kafka.bootstrap.servers"
)


@dataclass(frozen=True, slots=True)
class HandshakeRequest:
    """One request of the handshake."""

    api: Api
    version: int
    message: Message


class Handshake:
    """The handshake of one connection to the broker that errors call `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.versions: dict[int, tuple[int, int]] = {}
        """What the broker supports: (lowest, highest) by api key, once it has said so."""
        self.session_lifetime_ms = 0
        """For how long the last login is good; 0 without a limit."""
        self._login: Login | None = None
        self._asked_again = False

    def ask_versions(self) -> HandshakeRequest:
        """The first request of all."""
        api = APIS[ApiKey.API_VERSIONS]
        return HandshakeRequest(api, api.version_max, api_versions_request())

    def on_versions(self, answer: Message) -> HandshakeRequest | None:
        """Remember what the broker supports; ask again if it asks for an older version.

        Raises ConnectionFailed.
        """
        self.versions = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys or ()}
        code = answer.error_code
        if code == ErrorCode.NONE:
            return None
        if code != ErrorCode.UNSUPPORTED_VERSION or self._asked_again:
            raise ConnectionFailed(f"{self._name} refused ApiVersions: {error_name(code)}")
        self._asked_again = True
        api = APIS[ApiKey.API_VERSIONS]
        newest = self.versions.get(api.key, (0, 0))[1]
        return HandshakeRequest(api, min(newest, api.version_max), api_versions_request())

    def log_in(self, login: Login) -> HandshakeRequest:
        """Begin a login. Raises ConnectionFailed."""
        self._login = login
        api = APIS[ApiKey.SASL_HANDSHAKE]
        return self._say(api, api.request(mechanism=login.mechanism_name))

    def on_login_answer(self, api: Api, version: int, answer: Message) -> HandshakeRequest | None:
        """The next request of the login; None when it is done. Raises ConnectionFailed."""
        login = self._login
        if login is None:
            raise ConnectionFailed(f"{self._name}: an answer to a login that was not begun")
        if api.key == ApiKey.SASL_HANDSHAKE:
            self._check_handshake(login, answer)
        else:
            self._check_authenticate(login, answer)
            if login.is_done:
                self.session_lifetime_ms = answer.session_lifetime_ms if version > 0 else 0
                self._login = None
                return None
        api = APIS[ApiKey.SASL_AUTHENTICATE]
        try:
            return self._say(api, api.request(auth_bytes=login.next_bytes()))
        except LoginRefused as error:
            raise self._refused(str(error)) from error

    def _check_handshake(self, login: Login, answer: Message) -> None:
        code = answer.error_code
        if code == ErrorCode.ILLEGAL_SASL_STATE:
            raise self._refused(NOT_ASKED_FOR)
        if code != ErrorCode.NONE:
            enabled = ", ".join(sorted(answer.mechanisms or ())) or "none"
            raise self._refused(
                f"kafka.sasl.mechanism={login.mechanism_name} is not enabled on this listener, "
                f"which has: {enabled} ({error_name(code)})"
            )

    def _check_authenticate(self, login: Login, answer: Message) -> None:
        if answer.error_code != ErrorCode.NONE:
            said = answer.error_message or error_name(answer.error_code)
            raise self._refused(login.refused(said))
        try:
            login.on_answer(answer.auth_bytes)
        except LoginRefused as error:
            raise self._refused(str(error)) from error

    def _say(self, api: Api, message: Message) -> HandshakeRequest:
        lowest, highest = self.versions.get(api.key, (0, -1))
        version = min(highest, api.version_max)
        if version < max(lowest, api.version_min):
            raise self._refused(
                f"it does not support {api.name} v{api.version_min}, which a login needs: look at "
                "kafka.security.protocol"
            )
        return HandshakeRequest(api, version, message)

    def _refused(self, why: str) -> ConnectionFailed:
        return ConnectionFailed(f"{self._name}: {why}", final=True, is_security=True)
