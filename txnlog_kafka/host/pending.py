"""One request on its way: what was asked, and what was encoded for one connection."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from txnlog_kafka.host.link import ConnectionFailed
from txnlog_kafka.operations.effects import Call, Reply, Unanswered
from txnlog_kafka.wire.messages import Api


@dataclass(slots=True, eq=False)
class Pending:
    """One request on its way. `outcome` is None until it is known."""

    call: Call
    deadline_s: float
    addresses: deque[tuple[str, int]] = field(default_factory=deque)
    """Where else it may be taken, if it was not sent to the first."""
    failures: list[ConnectionFailed] = field(default_factory=list)
    """Why it could not be sent so far."""
    sent: bool = False
    outcome: Reply | Unanswered | None = None

    def fail(self, reason: str, *, retriable: bool = True) -> None:
        """There will be no answer."""
        if self.outcome is None:
            self.outcome = Unanswered(reason, self.sent, retriable)


@dataclass(slots=True)
class Asked:
    """What was encoded. `pending` is None for a request of the handshake."""

    api: Api
    version: int
    correlation_id: int
    deadline_s: float
    pending: Pending | None
    sent: bool = False

    def mark_sent(self) -> None:
        """Some of its bytes went out."""
        self.sent = True
        if self.pending is not None:
            self.pending.sent = True
