"""Requests on their way: the call, and its encoding for one connection."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from txnlog_kafka.host.failures import ConnectionFailed
from txnlog_kafka.operations.effects import Call, Reply, Unanswered
from txnlog_kafka.wire.conversation import Asked
from txnlog_kafka.wire.messages import ApiKey


@dataclass(slots=True, eq=False)
class Pending:
    """Request on its way. `outcome` is None until it is known."""

    call: Call
    deadline_s: float
    addresses: deque[tuple[str, int]] = field(default_factory=deque)
    """Other addresses to try, if it was not sent to the first."""
    failures: list[ConnectionFailed] = field(default_factory=list)
    """Failures to send it so far."""
    sent: bool = False
    outcome: Reply | Unanswered | None = None

    def fail(self, reason: str, *, retriable: bool = True) -> None:
        """End the request without an answer."""
        if self.outcome is None:
            self.outcome = Unanswered(reason, self.sent, retriable)


@dataclass(slots=True, eq=False)
class EncodedRequest(Asked):
    """Encoded request. `pending` is None for a request of the handshake."""

    api_key: ApiKey
    version: int
    deadline_s: float
    pending: Pending | None
    sent: bool = False

    def mark_sent(self) -> None:
        """Note that some of its bytes went out."""
        self.sent = True
        if self.pending is not None:
            self.pending.sent = True
