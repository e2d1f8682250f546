"""Input and output of a partition's log, as frozen values."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from broker_sim.core.effects import FileSlice
from txnlog_kafka.wire.error_codes import ErrorCode


class AppendOrigin(enum.Enum):
    """The origin of an append decides how much is checked (Kafka's `AppendOrigin`).

    CLIENT: batch shape, producer epoch and sequence, duplicates. COORDINATOR (offset commits,
    coordinator records, markers): producer epoch only. REPLICATION: nothing is refused, for the
    leader has checked it; offsets and leader epoch are kept as they are.
    """

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an append was refused; nothing has changed."""

    error: ErrorCode
    message: str
    record_indexes: tuple[int, ...] = ()
    """The records of the batch that are to blame, where single ones are."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The outcome of one append. Offsets are inclusive; -1 where there is none."""

    error: ErrorCode
    message: str = ""
    base_offset: int = -1
    last_offset: int = -1
    log_append_time_ms: int = -1
    """The broker's time where `message.timestamp.type` is LogAppendTime, else -1. Of a duplicate
    the timestamp of the batch that is there, whatever the type."""
    log_start_offset: int = -1
    record_indexes: tuple[int, ...] = ()
    """The records of the batch that are to blame for a refusal, where single ones are."""
    duplicate: bool = False
    """The batch was appended before: the offsets are the old ones, nothing was written."""

    @property
    def ok(self) -> bool:
        """Appended, now or before."""
        return self.error == ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """Entry of the aborted-transaction index. Offsets are inclusive.

    `last_offset` is the ABORT marker's. `last_stable_offset` (exclusive) is the LSO after this
    marker, so that a reader knows where to stop looking (Kafka's `AbortedTxn`).
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class LogRead:
    """The answer to one read: bytes by reference, whole batches only.

    The first batch may begin before the offset asked for, as everywhere in Kafka: the client
    drops what it did not ask for. `aborted` is None for READ_UNCOMMITTED.
    """

    error: ErrorCode
    slices: tuple[FileSlice, ...]
    aborted: tuple[AbortedTransaction, ...] | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    size_bytes: int
    """The sum of the slices."""
    report: str = ""
    """Damage that was found and is not reported yet, with file and position."""


@dataclass(frozen=True, slots=True)
class ProducerStateView:
    """State of a producer on a partition, as DescribeProducers reports it (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int
    """-1 when no transaction is open."""
