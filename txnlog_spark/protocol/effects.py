"""What an operation asks of its host, and what it gets back.

An operation is a generator: it yields one `Ask` (calls to brokers, a sleep, a failpoint) and is
resumed with the outcome. Blocking code's readability without blocking: `txnlog_spark.client`
performs asks on sockets, the simulator performs them on virtual time. The code that commits in
production is the code that is simulated.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

from txnlog_spark.wire.messages import Message

ANY_NODE = -1
"""Any live broker: the last one that answered, else a bootstrap server."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to one broker. `version_max` caps the negotiated version."""

    node: int
    message: Message
    timeout_ms: int
    version_max: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The broker's answer and the version that was negotiated for it."""

    message: Message
    version: int


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No answer: refused connection, disconnect, timeout, malformed answer, unsupported version.

    `sent` is False only when it is certain that the broker never saw the request; otherwise the
    outcome is unknown, and for EndTxn that is `CommitStateUnknown`, never "failed". `retriable` is
    False when asking again cannot help: no common version, bytes that are not an answer.
    """

    reason: str
    sent: bool
    retriable: bool = True


@dataclass(frozen=True, slots=True)
class Calls:
    """Several calls at once; resumed with a tuple of Reply | Unanswered in the same order.

    Calls to one node are sent in their order on one connection without waiting in between (the
    caller keeps at most 5 Produce in flight), so a broker handles them in order.
    """

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Resume after `duration_ms`; resumed with None."""

    duration_ms: int


@dataclass(frozen=True, slots=True)
class Reached:
    """A failpoint: step S0 .. S15 of the commit protocol; resumed with None, or never."""

    step: str
    when: str
    """"before" or "after"."""
    batch_id: int


Ask = Calls | Sleep | Reached
Outcome = tuple[Reply | Unanswered, ...] | None
T = TypeVar("T")
Operation = Generator[Ask, Outcome, T]
"""`result = yield from some_operation(...)` composes; the host runs the outermost one."""
