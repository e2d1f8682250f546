"""Input and output of the core: inputs, effects, and the order of effects.

Rules for this file: only frozen values and one collector. A `Step` is the work of the host, in the
order of its fields. Storage operations are carried out one after another, in their order. `Flush`
is an operation, so its position says what is durable before the next operation.

A host may coalesce the steps of several inputs, if it keeps the order of storage operations. A
request to a peer or a response leaves only after all storage operations of its step are done.

A crash may happen between any two storage operations, and may lose everything not flushed. The core
is written so that every such prefix recovers to a correct state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker_sim.apis import AnyApiKey
from txnlog_kafka.wire.messages import Message

ConnectionId = int
TimerKey = tuple[str, ...]
"""Such as ("transaction-timeout",). Setting a key again moves its deadline."""


# --------------------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class Start:
    """The host is up: recover from storage, load coordinators, set timers.

    `machine_boot_id` names the machine's present boot, "" when the host cannot tell. Another one
    than at the last start means that what was not flushed may be gone; the same one means that a
    killed process lost nothing, since its writes were in the machine's memory.
    """

    machine_boot_id: str = ""


@dataclass(frozen=True, slots=True)
class ControlledShutdown:
    """The host is about to stop: others of the cluster are to lead what this broker leads."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A clean stop: flush, write snapshots and the clean-shutdown marker."""


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request. Answers carry the same connection and correlation id.

    Answers on a connection keep the order of its requests (Kafka's rule): the core may answer out
    of order (long polls), so the host hands over a connection's next request after the answer.
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
    """The client that asks: what the host knows of a certificate, and then what a login says."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A connection is gone: forget the requests of it that are delayed."""

    connection_id: ConnectionId


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer's deadline has passed."""

    key: TimerKey


@dataclass(frozen=True, slots=True)
class StorageSpace:
    """Free space is under the reserve (`log.dir.reserved.bytes`), or no longer; on each change."""

    is_low: bool


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """Another broker has answered a `Send`."""

    peer: int
    correlation_id: int
    message: Message


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The connection to another broker is gone: what it has not answered it may have done or not.

    The host connects again at the next `Send`.
    """

    peer: int


Input = (
    Start
    | ControlledShutdown
    | Stop
    | Request
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
    """Remove a file, or a folder with all in it. Absent is fine."""

    path: str


@dataclass(frozen=True, slots=True)
class Rename:
    """Rename a file or folder, atomically."""

    path: str
    new_path: str


StorageOperation = Append | Flush | WriteFile | Truncate | Delete | Rename


@dataclass(frozen=True, slots=True)
class Volume:
    """Path of the data directory, and the space of its file system, total and usable."""

    path: str
    total_bytes: int
    usable_bytes: int


class Storage(Protocol):
    """The core's read-only view of the disk: what all operations of earlier steps left there."""

    def read(self, path: str, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file; b"" for an absent file."""

    def size_bytes(self, path: str) -> int | None:
        """The file's size, None when absent."""

    def list(self, path: str) -> tuple[str, ...]:
        """Sorted names in a folder, () when absent. "" is the data directory itself."""

    def volume(self) -> Volume | None:
        """Return the volume of the data directory; None when the file system does not report it."""


# --------------------------------------------------------------------------- other effects


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Log bytes by reference: the host reads them, or sends them from the file."""

    path: str
    position: int
    length: int


@dataclass(frozen=True, slots=True)
class Send:
    """A request to another broker, `peer` its id.

    Requests to one peer keep their order, fetches and the others each by themselves: a fetch may
    wait at the leader, and nothing else should wait behind it.
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
    """The client has logged in by this: its requests may be large from here on."""
    for_replica: bool = False
    """The records are for a follower."""


@dataclass(frozen=True, slots=True)
class NoResponse:
    """The request (Produce with acks=0) has no answer: unblock the connection's queue."""

    connection_id: ConnectionId
    correlation_id: int


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
    """Forget `key`; absent is fine."""

    key: TimerKey


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Trace of an event, for the simulator's trace and the host's debug log."""

    kind: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """Work of the host, field by field in this order."""

    storage: tuple[StorageOperation, ...] = ()
    sends: tuple[Send, ...] = ()
    responses: tuple[Respond | NoResponse | Close, ...] = ()
    timers: tuple[SetTimer | CancelTimer, ...] = ()
    traces: tuple[TraceEvent, ...] = ()


@dataclass(slots=True)
class Effects:
    """Collects the effects of one step; passed down to all that may cause one.

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
    """Records of compacted topics whose keys this step has looked at; a limit applies."""
    decompressed_bytes: int = 0
    """Bytes of compacted topics that this step has decompressed; a limit applies."""

    def trace(self, kind: str, /, **fields: Any) -> None:
        """Add one trace line."""
        self.traces.append(TraceEvent(kind, fields))

    def set_timer(self, *parts: str, after_ms: int) -> None:
        """Fire the key `after_ms` from now."""
        self.timers.append(SetTimer(parts, self.monotonic_ms + after_ms))

    def freeze(self) -> Step:
        """The step."""
        return Step(
            tuple(self.storage),
            tuple(self.sends),
            tuple(self.responses),
            tuple(self.timers),
            tuple(self.traces),
        )
