"""Input and output of the core, and the duties of its host.

This file has frozen values and one collector only. The core is `Broker.step`, or the registry's. It
has no clock, file, socket or thread, so you, the host, have these duties:

1. Call `step` with one input at a time, in the order in which the inputs came: `Start` first,
   `Stop` last. Pass the wall clock and the monotonic clock with each input. The core has no other
   time.
2. Carry out `Step.storage` in its order, before you call `step` again: the core reads its own
   writes through `Storage`. A `Flush` makes its files durable before the next operation. It may
   wait for other flushes as long as `FlushOrder` allows it, at the latest until the round ends.
3. Let `sends` and `responses` leave only when all storage operations and all flushes of their step
   are done. Keep the order of the requests to one peer on one kind of connection.
4. If a step truncates, deletes or renames files, first flush, and deliver the answers of the steps
   before it: these answers may refer to bytes in the files.
5. Submit `TimerFired(key)` when the deadline of a `SetTimer` has passed by the monotonic clock. If
   another step sets or cancels the key before the core gets the input, drop the input.
6. Give the core one request of a connection at a time. The next one follows the `Respond` or
   `NoResponse` to it, `throttle_ms` later. Submit `Disconnected` when a connection is gone. If
   `Broker.times_requests` is true after a request, submit its `RequestTime`.
7. Submit a `PeerAnswer` for each answer of a peer. If a peer is lost that owes answers, submit one
   `PeerLost`.
8. Submit `StorageSpace` each time that the free space falls under the reserve, or is back.
9. If a write finds no free space, deliver no answer of this round and close the connections that
   wait for one. Discard the core, because its memory is ahead of the files, and start a new core
   from the files. If a flush or any other operation fails, remove `machine.boot` and end the
   process. Never repeat a failed flush. An exception of the core ends the process, too.

You may die between any two storage operations, and between any two deliveries, and lose everything
that was not flushed. The core is written so that every such prefix recovers to a correct state.

The driving loop. Inputs that are ready together are one round and share their flushes:

    while running:                                    # the first round is `Start`
        inputs, answers = take_all_that_are_ready(), []
        for item in inputs:
            if isinstance(item, TimerFired) and was_taken_back(item.key):
                continue
            step = core.step(item, wall_ms(), monotonic_ms())
            if answers and changes_files(step):       # Truncate, Delete or Rename: duty 4
                disk.flush_what_waits()
                deliver(answers)
                answers = []
            disk.perform(step.storage)                # through FlushOrder
            timers.change(step.timers)
            log(step.traces)
            answers += [*step.sends, *step.responses]
        disk.flush_what_waits()                       # the last moment: nothing has been sent
        deliver(answers)

`broker_sim/server/broker_server.py` is this loop on sockets and files, for a broker and for the
registry. `simulation/hosts/sim_broker.py` is this loop on virtual time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker_sim.apis import AnyApiKey
from txnlog_kafka.wire.messages import Message

ConnectionId = int
TimerKey = tuple[str, ...]
"""Key of a timer, such as ("transaction-timeout",). Setting a key again moves its deadline."""


# --------------------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class Start:
    """The host is up: recover from storage, load coordinators, set timers.

    `machine_boot_id` names the machine's present boot, "" if the host does not know it. If the boot
    differs from the boot of the last start, data that was not flushed may be gone. If it is the
    same, a killed process lost nothing, because its writes were in the machine's memory.
    """

    machine_boot_id: str = ""


@dataclass(frozen=True, slots=True)
class ControlledShutdown:
    """The host is about to stop: let other brokers lead the partitions that this broker leads."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A clean stop: flush, write snapshots and the clean-shutdown marker."""


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request. Its answer carries the same connection and correlation id.

    Kafka's rule: answers on a connection keep the order of its requests. The core may answer out of
    order (long polls), so the host hands over the next request of a connection after the answer.
    """

    connection_id: ConnectionId
    correlation_id: int
    api_key: AnyApiKey
    api_version: int
    client_id: str | None
    client_host: str
    message: Message
    listener: str = "PLAINTEXT"
    """The name of the listener that the connection came by."""
    principal: str = "User:ANONYMOUS"
    """Name of the client: from its certificate, until a login gives another one."""
    size_bytes: int = 0
    """Size of its frame, which counts for the client's quota."""


@dataclass(frozen=True, slots=True)
class RequestTime:
    """Time that the host took for the step of a connection's request, with its storage operations.

    It counts for the quota `request_percentage`; without this input that quota has no effect.
    """

    connection_id: ConnectionId
    nanoseconds: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A connection is gone: forget its delayed requests."""

    connection_id: ConnectionId


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer's deadline has passed."""

    key: TimerKey


@dataclass(frozen=True, slots=True)
class StorageSpace:
    """Free space fell under the reserve (`log.dir.reserved.bytes`), or is back above it."""

    is_low: bool


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """Answer of another broker to a `Send`."""

    peer: int
    correlation_id: int
    message: Message


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The connection to another broker is gone.

    The peer may have carried out the requests without an answer, or not. The host connects again at
    the next `Send`.
    """

    peer: int


Input = (
    Start
    | ControlledShutdown
    | Stop
    | Request
    | RequestTime
    | Disconnected
    | TimerFired
    | StorageSpace
    | PeerAnswer
    | PeerLost
)


# --------------------------------------------------------------------------- storage effects
# Paths are relative to the data directory, with "/" between parts, such as
# "orders-0/00000000000000000000.log".


@dataclass(frozen=True, slots=True)
class Append:
    """Write `data` at `position`, which is the file's size; create file and folder if absent."""

    path: str
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Flush:
    """fsync these files (and their folders when new) before the next operation."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Replace the whole file atomically: temporary file, fsync, rename."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the file to `size_bytes`."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a file, or a folder with its content. An absent path is fine."""

    path: str


@dataclass(frozen=True, slots=True)
class Rename:
    """Rename a file or folder, atomically."""

    path: str
    new_path: str


StorageOperation = Append | Flush | WriteFile | Truncate | Delete | Rename


@dataclass(frozen=True, slots=True)
class Volume:
    """Path of the data directory, with the total and usable bytes of its file system."""

    path: str
    total_bytes: int
    usable_bytes: int


class Storage(Protocol):
    """The core's read-only view of the disk, with all operations of earlier steps carried out."""

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer at the end of the file, b"" for an absent file."""

    def size_bytes(self, path: str) -> int | None:
        """Return the size of the file; None for an absent file."""

    def list(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a folder; () for an absent one. "" is the data directory."""

    def volume(self) -> Volume | None:
        """Return the volume of the data directory; None when the file system does not report it."""


# --------------------------------------------------------------------------- other effects


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Log bytes by reference: the host reads the bytes, or sends them from the file."""

    path: str
    position: int
    length: int


@dataclass(frozen=True, slots=True)
class Send:
    """A request to another broker; `peer` is its id.

    Requests of one `ConnectionKind` to one peer keep their order. Fetches go by themselves: a
    fetch may wait at the leader, and no other request should wait behind it.
    """

    peer: int
    correlation_id: int
    api_version: int
    message: Message


@dataclass(frozen=True, slots=True)
class RecordsField:
    """Set `target.records` to the concatenated bytes of `slices` before encoding the message."""

    target: Message
    slices: tuple[FileSlice, ...]


@dataclass(frozen=True, slots=True)
class Respond:
    """The answer to one request."""

    connection_id: ConnectionId
    correlation_id: int
    api_key: AnyApiKey
    api_version: int
    message: Message
    records: tuple[RecordsField, ...] = ()
    logged_in: bool = False
    """True if this answer ends the client's login: its requests may be large from here on."""
    for_replica: bool = False
    """True if the records are for a follower."""
    throttle_ms: int = 0
    """Time after this answer in which the host takes no request of the connection."""


@dataclass(frozen=True, slots=True)
class NoResponse:
    """The request (Produce with acks=0) has no answer: unblock the connection's queue."""

    connection_id: ConnectionId
    correlation_id: int
    throttle_ms: int = 0
    """See `Respond`."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection, after the responses before it."""

    connection_id: ConnectionId
    reason: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire `key` at `deadline_ms` of the host's monotonic clock."""

    key: TimerKey
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget `key`; a key that is not set is fine."""

    key: TimerKey


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Trace of an event, for the simulator's trace and the host's debug log."""

    kind: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """Work of the host: `storage`, then `sends`, then `responses` (duties 2 to 4 of the module).

    `timers` and `traces` depend on nothing else: the host sees to them when it likes.
    """

    storage: tuple[StorageOperation, ...] = ()
    sends: tuple[Send, ...] = ()
    responses: tuple[Respond | NoResponse | Close, ...] = ()
    timers: tuple[SetTimer | CancelTimer, ...] = ()
    traces: tuple[TraceEvent, ...] = ()


@dataclass(slots=True)
class Effects:
    """Collector of the effects of one step; passed down to each part that may cause one.

    `now_ms` is the host's wall clock in ms since the epoch, for timestamps and persisted times;
    `monotonic_ms` never goes back, for deadlines inside this process.
    """

    now_ms: int
    monotonic_ms: int
    storage: list[StorageOperation] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    responses: list[Respond | NoResponse | Close] = field(default_factory=list)
    timers: list[SetTimer | CancelTimer] = field(default_factory=list)
    traces: list[TraceEvent] = field(default_factory=list)
    uses_reserve: bool = False
    """True if the appends of this step may use the reserved space."""
    keyed_records: int = 0
    """Records of compacted topics whose keys this step has read; a limit applies."""
    decompressed_bytes: int = 0
    """Bytes of compacted topics that this step has decompressed; a limit applies."""

    def trace(self, kind: str, /, **fields: Any) -> None:
        """Add one line to the trace."""
        self.traces.append(TraceEvent(kind, fields))

    def set_timer(self, *parts: str, after_ms: int) -> None:
        """Fire the key `after_ms` from now."""
        self.timers.append(SetTimer(parts, self.monotonic_ms + after_ms))

    def freeze(self) -> Step:
        """Return the effects as a `Step`."""
        return Step(
            tuple(self.storage),
            tuple(self.sends),
            tuple(self.responses),
            tuple(self.timers),
            tuple(self.traces),
        )
