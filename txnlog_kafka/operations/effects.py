"""What an operation asks of its host, and what it gets back.

An operation is a generator: it yields one `Ask` (a request to a broker, an answer, a sleep, a
failpoint, a file of the checkpoint) and is resumed with the outcome. Blocking code's readability
without blocking: `txnlog_kafka.host` performs asks on sockets, `sink.checkpoint_host` on the disk,
the simulator performs all of them on virtual time. The code that commits in production is the code
that is simulated. `operation_group.py` carries several operations on side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, NewType, TypeVar

from txnlog_kafka.errors import TxnLogError
from txnlog_kafka.operations.producer import StagedPiece
from txnlog_kafka.wire.messages import Message

ANY_NODE = -1
"""Any live broker: the last one that answered, else a bootstrap server."""
ANOTHER_NODE = -2
"""Any live broker, each in its turn: what the last one answered did not help."""


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
    False when asking again cannot help: no common version, bytes that are not an answer, or, with
    `is_security`, a login or a certificate that was refused.
    """

    reason: str
    sent: bool
    retriable: bool = True
    is_security: bool = False


Ticket = NewType("Ticket", int)
"""A request that was sent, by the operation that sent it; later ones have higher numbers."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send one request without waiting for its answer; resumed at once with its Ticket.

    Requests to one node are sent in their order on one connection, and answered in that order. One
    that cannot be sent is sent all the same as far as the operation can tell: its outcome says so.
    """

    call: Call


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for the outcome of any of `tickets`; resumed with (ticket, Reply | Unanswered).

    Each outcome is received once. Of several that are there it is the one that was sent first. When
    none is there after `within_ms`, resumed with None.

    A request that is not received before its operation ends is abandoned: the host closes the
    connection that still owes its answer, so that no later request waits behind it, and nobody
    learns its outcome, which may be that the broker carries it out after later requests. So an
    operation receives whatever must not happen later, also when it fails.
    """

    tickets: frozenset[Ticket]
    within_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Calls:
    """Send several requests and receive all; resumed with their outcomes in the same order."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Resume after `duration_ms`; resumed with None."""

    duration_ms: int


@dataclass(frozen=True, slots=True)
class Milestone:
    """A failpoint: a step of the commit protocol; resumed with None, or never."""

    step: str
    when: str
    """"before" or "after"."""
    batch_id: int


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file of the query's checkpoint; resumed with its bytes, None without it, or FileFailed."""

    path: str


@dataclass(frozen=True, slots=True)
class ListFolder:
    """The names of the files in a folder of the checkpoint, in order; or of the folders in it.

    Resumed with a tuple, () without such a folder, or FileFailed. A file whose durable write was
    done before is among them.
    """

    path: str
    folders: bool = False


@dataclass(frozen=True, slots=True)
class FlushFile:
    """Make a file of the checkpoint durable that Spark has written.

    Resumed with None or FileFailed. A local disk flushes the file, its checksum file and their
    folder, whose entries are then durable too. A store keeps safely what can be read from it. A
    file that is not there needs no flush.
    """

    path: str


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Replace a file of the checkpoint; resumed with None when it is done, or FileFailed.

    After a crash of the process the file holds the old bytes or the new ones. With `durable` that
    holds after a crash of the machine as well, and the new bytes stay once this is done; without
    it the file may then hold anything.
    """

    path: str
    data: bytes
    durable: bool = True


@dataclass(frozen=True, slots=True)
class RemoveOtherRuns:
    """The query run begins its first batch, and all runs before it are fenced.

    The host removes what they staged; resumed with None.
    """


@dataclass(frozen=True, slots=True)
class ReadStaged:
    """What a task staged; resumed with the piece's bytes, or FileFailed. A bytearray is the
    operation's own from then on, and is changed."""

    piece: StagedPiece


@dataclass(frozen=True, slots=True)
class FileFailed:
    """A file could not be read or written; whether a write took place is not known."""

    reason: str


FileAsk = ReadFile | ListFolder | WriteFile | FlushFile | RemoveOtherRuns | ReadStaged
FileOutcome = bytes | bytearray | memoryview | tuple[str, ...] | FileFailed | None
"""What a `FileAsk` is resumed with; each says which."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Give(Generic[T]):
    """Hand an item to the consumer; resumed with None when it wants the next one.

    Only a `Stream` does this. Time that passes at the consumer is not taken from any request's.
    """

    item: T


Ask = Send | Receive | Calls | Sleep | Milestone | FileAsk
Outcome = Any
"""What an operation is resumed with: each ask says it."""
Operation = Generator[Ask, Outcome, T]
"""`result = yield from some_operation(...)` composes; the host runs the outermost one."""
Stream = Generator[Ask | Give[T], Outcome, None]
"""An operation that gives items while it goes on."""


def relayed(operation: Operation[T], answer: Callable[[Ask], Operation[Outcome]]) -> Operation[T]:
    """`operation` with each of its asks answered by the operation that `answer` makes of it.

    That one yields what it leaves to the host, and its TxnLogErrors are raised in `operation`.
    """
    try:
        ask = next(operation)
        while True:
            try:
                outcome = yield from answer(ask)
            except TxnLogError as error:
                ask = operation.throw(error)
            else:
                ask = operation.send(outcome)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        operation.close()
