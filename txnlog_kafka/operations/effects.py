"""Requests of an operation to its host, the outcomes, and the duties of the host.

An operation is a generator: it yields one `Ask` and is resumed with the outcome. So its code reads
as if it blocked, and has no clock, file, socket or thread. You, the host, have these duties:

1. Perform one ask at a time, and resume the operation with the outcome that the ask names. Decide
   nothing: retries, routing and the meaning of an outcome are the operation's.
2. Resume a `Send` at once with a `Ticket`. Write the requests to one node in their order on one
   connection, without waiting for an answer in between. If a request cannot be sent, its ticket is
   `Unanswered`.
3. Report `sent=False` only if the broker certainly never saw the request. In doubt report
   `sent=True`: the operation then treats the outcome as unknown.
4. If a request has no answer after its `timeout_ms`, close its connection. All requests on the
   connection are then `Unanswered`. You may send a request whose bytes never left to another
   address of its node.
5. Resume a `Receive` with the oldest of its tickets that has an outcome, or with None after
   `within_ms`. Hand out each outcome once.
6. Resume a `FlushFile` or a durable `WriteFile` only when the bytes would survive a loss of power.
   The operation sends its next request after that: the order of its asks is the order of disk and
   network. If you do not know whether the write took place, resume with `FileFailed`.
7. Supply the time: `Session` gets your monotonic clock, and operations compare their deadlines with
   this clock alone. Let `Sleep`, `within_ms` and `timeout_ms` go by it, too.
8. Resume a `Failpoint` with None. A test may kill the process there.
9. If you run a `Stream`, hand the item of a `Give` to the consumer. Add the time that the consumer
   takes to the deadlines of the requests.
10. When the operation ends, by a result or an error, close each connection that still owes it an
    answer. A later request must not wait behind an answer that no operation reads.

The driving loop:

    requests = Requests()                            # tickets whose outcome is not received yet
    try:
        outcome = None
        while True:                                  # StopIteration carries the result
            match ask := operation.send(outcome):
                case Send(call):
                    outcome = requests.write(call)   # a Ticket
                case Receive(tickets, within_ms):
                    outcome = requests.first_outcome(tickets, within_ms)
                case Calls(calls):
                    outcome = requests.all_outcomes([requests.write(call) for call in calls])
                case Sleep(duration_ms):
                    outcome = sleep(duration_ms)
                case Give(item):
                    outcome = hand_over(item)        # None, when the consumer wants the next
                case Failpoint():
                    outcome = None
                case _:                              # a FileAsk
                    outcome = checkpoint.perform(ask)
    finally:
        operation.close()
        close_connections_that_owe(requests)

Two hosts do this. `txnlog_kafka/host/client.py` performs requests on sockets, and
`txnlog_spark/sink/commit_host.py` serves the files in front of it. `simulation/hosts/client.py`
performs all asks on virtual time. So the code that commits in production is the code that is
simulated. `operation_group.py` carries several operations on side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, NewType, TypeVar

from txnlog_kafka.errors import TxnLogError
from txnlog_kafka.operations.producer import StagedChunk
from txnlog_kafka.wire.messages import Message

ANY_NODE = -1
"""Any live broker: the broker that answered last, else a bootstrap server."""
ANOTHER_NODE = -2
"""Any live broker, in turn: ask another one after an answer that did not help."""


@dataclass(frozen=True, slots=True)
class Call:
    """Request to a single broker. `version_max` caps the negotiated version."""

    node: int
    message: Message
    timeout_ms: int
    version_max: int | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The broker's answer, and the negotiated version."""

    message: Message
    version: int


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No answer: refused connection, disconnect, timeout, malformed answer, unsupported version.

    `sent` is False only if the broker certainly never saw the request. Otherwise the outcome is
    unknown; for EndTxn that is `CommitStateUnknown`, never "failed". `retriable` is False if
    another try cannot help: no common version, bytes that are not an answer, or, with
    `is_security`, a refused login or certificate.
    """

    reason: str
    sent: bool
    retriable: bool = True
    is_security: bool = False


Ticket = NewType("Ticket", int)
"""Number of a request, for the operation that sent it; later requests have higher numbers."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send one request without waiting for its answer; resumed at once with its Ticket.

    Requests to one node are sent in their order on one connection, and answered in that order. If a
    request cannot be sent, the operation gets a ticket all the same, and its outcome says so.
    """

    call: Call


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for the outcome of any of `tickets`; resumed with (ticket, Reply | Unanswered).

    Each outcome is received once. If several outcomes have arrived, the operation gets the one of
    the oldest request. If no outcome arrives within `within_ms`, it is resumed with None.

    If an operation ends before it receives a request's outcome, the host abandons the request. The
    host closes the connection that still owes the answer, so that no later request waits behind
    it. The broker may still carry the request out, even after later requests, and the operation
    does not learn of it. So an operation must receive every request that must not happen later,
    also when it fails.
    """

    tickets: frozenset[Ticket]
    within_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Calls:
    """Send several requests and receive all outcomes; resumed with them in the same order."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Resume after `duration_ms`; resumed with None."""

    duration_ms: int


@dataclass(frozen=True, slots=True)
class Failpoint:
    """Step of the commit protocol at which a test may interfere; resumed with None, or never."""

    step: str
    when: str
    """"before" or "after"."""
    batch_id: int


@dataclass(frozen=True, slots=True)
class ReadFile:
    """Read a checkpoint's file; resumed with its bytes, None if it is absent, or FileFailed."""

    path: str


@dataclass(frozen=True, slots=True)
class ListFolder:
    """List the names of files in a folder of the checkpoint, sorted; with `folders`, of folders.

    Resumed with a tuple, () for an absent folder, or FileFailed. The list has every file whose
    durable write was done before.
    """

    path: str
    folders: bool = False


@dataclass(frozen=True, slots=True)
class FlushFile:
    """Make a file of the checkpoint durable that Spark has written.

    Resumed with None or FileFailed. On a local disk the host flushes the file, its checksum file
    and their folder, whose entries are then durable, too. In a store, a file that can be read is
    durable. An absent file needs no flush.
    """

    path: str


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Replace a file of the checkpoint; resumed with None when it is done, or FileFailed.

    After a crash of the process the file holds the old bytes or the new bytes. With `durable` this
    is also true after a crash of the machine, and the new bytes stay once the write is done.
    Without `durable` the file may hold anything after a crash of the machine.
    """

    path: str
    data: bytes
    durable: bool = True


@dataclass(frozen=True, slots=True)
class RemoveOtherRuns:
    """Remove the staged rows of all runs before this one; resumed with None.

    The operation asks this when the run begins its first batch and has fenced the former runs.
    """


@dataclass(frozen=True, slots=True)
class ReadStaged:
    """Read a piece that a task staged; resumed with its bytes, or FileFailed.

    A bytearray then belongs to the operation, which changes it.
    """

    piece: StagedChunk


@dataclass(frozen=True, slots=True)
class FileFailed:
    """A file could not be read or written. A write may have taken place."""

    reason: str


FileAsk = ReadFile | ListFolder | WriteFile | FlushFile | RemoveOtherRuns | ReadStaged
FileOutcome = bytes | bytearray | memoryview | tuple[str, ...] | FileFailed | None
"""Outcome of a `FileAsk`; each ask names its own."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Give(Generic[T]):
    """Hand an item to the consumer; resumed with None when the consumer wants the next item.

    Only a `Stream` does this. The time that the consumer takes does not count for any request's
    timeout.
    """

    item: T


Ask = Send | Receive | Calls | Sleep | Failpoint | FileAsk
Outcome = Any
"""Outcome of an ask; each ask names its own."""
Operation = Generator[Ask, Outcome, T]
"""Generator that asks, and returns a result.

`result = yield from some_operation(...)` composes operations; the host runs the outermost
operation.
"""
Stream = Generator[Ask | Give[T], Outcome, None]
"""Operation that gives items while it goes on."""


def relayed(operation: Operation[T], answer: Callable[[Ask], Operation[Outcome]]) -> Operation[T]:
    """Return `operation` with each ask answered by another operation, which `answer` makes.

    The answering operation yields the asks that it leaves to the host. Its TxnLogErrors are raised
    in `operation`.
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
