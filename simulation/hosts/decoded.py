"""Messages that were decoded, by their bytes: in a run most come more than once.

Clients that wait and brokers that poll send the same again and again, and are answered the same. So
several may hold one message, and nobody may change it: `check` says at the end of a run whether
somebody did.
"""

from __future__ import annotations

from typing import Any

from txnlog_kafka.wire.encoder import encode_message
from txnlog_kafka.wire.framing import decode_body
from txnlog_kafka.wire.invariants import check
from txnlog_kafka.wire.messages import Message


class DecodedMessages:
    """Those of one run; called as `decode_body` is."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, int, int, bytes], Message] = {}

    def __call__(
        self, message_class: Any, version: int, body: memoryview, elements_max: int
    ) -> Message:
        """The message of these bytes, the same object each time. Raises as `decode_body`."""
        key = message_class, version, elements_max, bytes(body)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = decode_body(message_class, version, body, elements_max)
        return known

    def check(self) -> None:
        """Raises InvariantViolation when a message has not the bytes any more that it came of."""
        for (_, version, _, body), message in self._known.items():
            check(encode_message(message, version) == body, "a decoded message was changed",
                  message=message, version=version)  # fmt: skip
