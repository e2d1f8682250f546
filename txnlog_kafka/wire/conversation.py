"""Requests of one connection to a broker, and the answers that come in the same order.

Theory of operation: a host asks for the versions that the broker supports and hands the answer to
`on_versions`; from then on `negotiate` knows the version of a request. `ask` numbers and frames a
request, and queues its `Asked`, to which each host adds its own notes. A frame that arrives answers
the `oldest` request. The host decodes it by `Asked.decode` and then removes the request, so a
request whose answer cannot be decoded is still unanswered. A login (`login`) is asked as any other
request. No socket, clock or thread here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from txnlog_kafka.wire.framing import (
    DecodeBody,
    Frame,
    MalformedFrame,
    decode_body,
    decode_response,
    request_pieces,
    response_correlation_id,
)
from txnlog_kafka.wire.messages import Api, Message, api_of

CORRELATION_ID_MAX = 2**31 - 1


@dataclass(slots=True, eq=False)
class Asked:
    """Request on a connection. The conversation fills in both fields."""

    correlation_id: int = field(init=False)
    decode: Callable[[Frame], Message] = field(init=False)
    """Function from the answer's frame to its message; raises MalformedFrame."""


A = TypeVar("A", bound=Asked)


class Conversation(Generic[A]):
    """Requests of one connection that wait for their answers."""

    def __init__(self, client_id: str, decode: DecodeBody = decode_body) -> None:
        self.versions: dict[int, tuple[int, int]] = {}
        """Versions that the broker supports: (lowest, highest) by api key, once it has answered."""
        self.unanswered: deque[A] = deque()
        self._client_id = client_id
        self._decode = decode
        self._last_id = 0

    def on_versions(self, answer: Message) -> None:
        """Remember the versions of an ApiVersions answer."""
        self.versions = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys or ()}

    def negotiate(self, api: Api, version_max: int | None = None) -> int | None:
        """Return the newest version that both sides know; None if there is no common version."""
        lowest, highest = self.versions.get(api.key, (0, -1))
        version = min(highest, api.version_max)
        if version_max is not None:
            version = min(version, version_max)
        return version if version >= max(lowest, api.version_min) else None

    def ask(self, message: Message, version: int, asked: A) -> list[bytes | bytearray | memoryview]:
        """Queue a request with the next number; return its frame, in pieces to be sent."""
        self._last_id = (self._last_id + 1) & CORRELATION_ID_MAX
        pieces = request_pieces(message, version, self._last_id, self._client_id)
        decode = partial(decode_response, api_of(message), version, decode=self._decode)
        self.expect(asked, self._last_id, decode)
        return pieces

    def expect(self, asked: A, correlation_id: int, decode: Callable[[Frame], Message]) -> None:
        """Queue a request that the host has numbered and framed itself."""
        asked.correlation_id, asked.decode = correlation_id, decode
        self.unanswered.append(asked)

    def oldest(self, frame: Frame) -> A:
        """Return the request that this frame answers. Raises MalformedFrame unless it is the
        oldest."""
        correlation_id = response_correlation_id(frame)
        if not self.unanswered or self.unanswered[0].correlation_id != correlation_id:
            raise MalformedFrame(f"an answer to request {correlation_id}, which was not asked")
        return self.unanswered[0]
