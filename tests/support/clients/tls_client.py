"""Send one request after another on a plain or a TLS socket."""

from __future__ import annotations

import socket
import ssl
from typing import Any

from support.brokers.probe import exchange

from txnlog_kafka.wire.framing import decode_response, encode_request
from txnlog_kafka.wire.messages import APIS, ApiKey, api_of


def asked(sock: socket.socket, key: ApiKey, version: int, **fields: Any) -> Any:
    return answer_to(sock, APIS[key].request(**fields), version)


def answer_to(sock: socket.socket, message: Any, version: int) -> Any:
    framed = encode_request(message, version, 1, "c")
    try:
        answer = exchange(sock, framed[4:])
    except EOFError as closed:
        raise ConnectionError(str(closed)) from None
    return decode_response(api_of(message), version, answer)


def port_in(port: int, context: ssl.SSLContext | None = None) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=20)
    return sock if context is None else context.wrap_socket(sock, server_hostname="127.0.0.1")
