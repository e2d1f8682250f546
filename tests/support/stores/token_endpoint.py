"""A token endpoint of OAuth's client credentials, over HTTP on loopback."""

from __future__ import annotations

import base64
import http.server
import json
import ssl
import threading
import urllib.parse
from typing import Any


def unsigned_token(subject: str, expires_s: float, issued_s: float) -> str:
    """A JSON web token without a signature, as Kafka's broker takes it in development."""
    claims = {"sub": subject, "exp": expires_s, "iat": issued_s}
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    return ".".join(base64.urlsafe_b64encode(p).decode().rstrip("=") for p in parts) + "."


class TokenEndpoint:
    """Gives `answer` to the client `client` with the secret `secret`, else invalid_client."""

    def __init__(self, answer: dict[str, Any], tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.client, self.secret = "spark", "endpoint-secret"
        self.status = 200
        self.location: str | None = None
        self.forms: list[dict[str, str]] = []
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.forms.append({})
                self._send(200, endpoint.answer)

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                form = urllib.parse.parse_qsl(self.rfile.read(length).decode())
                endpoint.forms.append(dict(form))
                self._send(*endpoint.decide(self.headers["Authorization"]))

            def _send(self, status: int, answer: Any) -> None:
                body = json.dumps(answer).encode()
                self.send_response(status)
                if endpoint.location is not None:
                    self.send_header("Location", endpoint.location)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing to the terminal."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}/token"

    def decide(self, authorization: str) -> tuple[int, Any]:
        """Status and answer for who asks."""
        who = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        if self.status != 200:
            return self.status, {"error": "server_error", "error_description": who}
        if who != f"{self.client}:{self.secret}":
            return 401, {"error": "invalid_client", "error_description": who}
        return 200, self.answer

    def __enter__(self) -> TokenEndpoint:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
