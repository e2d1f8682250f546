"""A token endpoint of OAuth's client credentials, over HTTP on loopback."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.parse
from typing import Any

from support.sockets.http_server import Answering, HttpServer


def unsigned_token(subject: str, expires_s: float, issued_s: float) -> str:
    """A token as Kafka's broker takes it in development."""
    return unsigned({"sub": subject, "exp": expires_s, "iat": issued_s})


def unsigned(claims: dict[str, Any]) -> str:
    """A JSON web token with these claims and without a signature."""
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    return ".".join(base64.urlsafe_b64encode(p).decode().rstrip("=") for p in parts) + "."


class TokenEndpoint(HttpServer):
    """Gives `answer` to the client `client` with the secret `secret`, else invalid_client."""

    def __init__(self, answer: dict[str, Any], tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.client, self.secret = "spark", "endpoint-secret"
        self.status = 200
        self.location: str | None = None
        self.forms: list[dict[str, str]] = []
        endpoint = self

        class Handler(Answering):
            def do_GET(self) -> None:  # noqa: N802 - http.server's name
                endpoint.forms.append({})
                self._send(200, endpoint.answer)

            def do_POST(self) -> None:  # noqa: N802 - http.server's name
                endpoint.forms.append(dict(urllib.parse.parse_qsl(self.body().decode())))
                self._send(*endpoint.decide(self.headers["Authorization"]))

            def _send(self, status: int, answer: Any) -> None:
                where = {} if endpoint.location is None else {"Location": endpoint.location}
                self.reply(status, answer, **where)

        super().__init__(Handler, tls)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://{self.address}/token"

    def decide(self, authorization: str) -> tuple[int, Any]:
        """Status and answer for who asks."""
        who = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        if self.status != 200:
            return self.status, {"error": "server_error", "error_description": who}
        if who != f"{self.client}:{self.secret}":
            return 401, {"error": "invalid_client", "error_description": who}
        return 200, self.answer
