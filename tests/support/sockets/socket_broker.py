"""A tiny broker on a real socket, in a thread, that does to each request what the test says."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.framing import FrameDecoder, decode_request, encode_response
from txnlog_kafka.wire.messages import APIS, ApiKey

Reaction = bytes | str | None
"""Bytes to send, "close" to close, None to stay silent."""
React = Callable[[Any, Any], Reaction]
"""Reaction to a request, from its header and message."""
SASL_APIS = {key: APIS[key] for key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)}
VERSIONS = {
    key: (api.version_min, api.version_max) for key, api in APIS.items() if key not in SASL_APIS
}


def versions_answer(versions: dict[ApiKey, tuple[int, int]]) -> Any:
    response = APIS[ApiKey.API_VERSIONS].response
    return response(
        api_keys=[
            response.ApiVersion(api_key=k, min_version=low, max_version=high)
            for k, (low, high) in versions.items()
        ]
    )


class SocketBroker:
    """Answers ApiVersions by itself, and everything else by `react`, which is `serve` at first."""

    def __init__(self, react: React | None = None, versions: dict | None = None) -> None:
        self.react = react or self.serve
        self.versions = VERSIONS if versions is None else versions
        self.cluster_id, self.node_id = "c", 1
        self.headers: list[Any] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> SocketBroker:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.close()
        self.close_connections()

    def close_connections(self) -> None:
        """Close what is open, as a broker does with idle connections."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._sockets.clear()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._sockets.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        frames = FrameDecoder()
        try:
            while data := connection.recv(65536):
                for frame in frames.feed(data):
                    reaction = self._reaction(frame)
                    if reaction == "close":
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                    if reaction is not None:
                        connection.sendall(reaction)
        except OSError:
            return

    def _reaction(self, frame: bytes) -> Reaction:
        key, version = struct.unpack_from(">hh", frame)
        low, high = self.versions.get(ApiKey.API_VERSIONS, (0, 5))
        if key == ApiKey.API_VERSIONS and not low <= version <= high:
            (correlation_id,) = struct.unpack_from(">i", frame, 4)
            answer = versions_answer(self.versions)
            answer.error_code = 35
            return encode_response(ApiKey.API_VERSIONS, 0, correlation_id, answer)
        header, message = decode_request(frame)
        self.headers.append(header)
        if header.api_key == ApiKey.API_VERSIONS:
            answer = versions_answer(self.versions)
            if self._is_misrouted(message):
                answer.error_code = ErrorCode.REBOOTSTRAP_REQUIRED
            return answer_bytes(header, answer)
        return self._answer(header, message)

    def _is_misrouted(self, versions: Any) -> bool:
        """True if an ApiVersions request means another broker (KIP-1242)."""
        meant = (versions.cluster_id, versions.node_id)
        return meant not in ((None, -1), (self.cluster_id, self.node_id))

    def _answer(self, header: Any, message: Any) -> Reaction:
        return self.react(header, message)

    def serve(self, header: Any, _message: Any) -> bytes:
        """Metadata of a cluster of this one broker."""
        return answer_bytes(header, metadata_answer(self))


def answer_bytes(header: Any, message: Any) -> bytes:
    return encode_response(header.api_key, header.api_version, header.correlation_id, message)


def metadata_answer(broker: SocketBroker) -> Any:
    response = APIS[ApiKey.METADATA].response
    own = broker.node_id
    node = response.MetadataResponseBroker(node_id=own, host="127.0.0.1", port=broker.port)
    return response(brokers=[node], cluster_id=broker.cluster_id, controller_id=own)
