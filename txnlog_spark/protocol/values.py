"""Plain values of producing in a transaction: who produces, and what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from crc32c import crc32c

from txnlog_spark.wire.topics import TopicPartition

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """What the coordinator gave a transactional id, and how far this holder used it.

    `initialised` False says: known from a file, or an outcome since was unknown or aborted, so
    InitProducerId comes first and carries this producer id and epoch (KIP-360: PRODUCER_FENCED if
    another driver took over). `sequences` holds the next base sequence per partition in this epoch;
    it matters on transaction version 1 only, where an epoch outlives a transaction.
    `last_batch_id` is the batch that was committed last under this very
    identity: between it and the next one nobody else can have come without fencing it.
    `transaction_version` is the cluster's as it was found at the takeover, 0 when not yet asked.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    initialised: bool = False
    sequences: Mapping[TopicPartition, int] = field(default_factory=dict)
    last_batch_id: int | None = None
    transaction_version: int = 0


@dataclass(frozen=True, slots=True)
class StagedPiece:
    """Whole, valid RecordBatches with blank producer fields; `source` tells the host where.

    A piece should stay near 1 MiB, because it is held in memory until its batches are acknowledged.
    `size_bytes` and `record_count` are of all its record batches, headers included, `checksum` is
    the CRC-32C of all its bytes.
    """

    size_bytes: int
    record_count: int
    source: object
    checksum: int

    def check(self, data: Bytes) -> None:
        """Raise ValueError unless `data` is what was staged: anything else may be another's rows.

        The batches' own checksums would not do: those of another attempt are right as well, and
        stamping writes new ones.
        """
        if len(data) != self.size_bytes:
            raise ValueError(
                f"a piece of {self.size_bytes} bytes was staged, {len(data)} are there"
            )
        found = crc32c(data)
        if found != self.checksum:
            raise ValueError(f"its CRC-32C is {found:08x}, {self.checksum:08x} was staged")


@dataclass(frozen=True, slots=True)
class StagedPartition:
    """Staged pieces for one partition, in the order in which they are to be appended.

    Several StagedPartitions may name one partition: they are appended in the order of the plan.
    """

    topic: str
    partition: int
    pieces: Sequence[StagedPiece]

    @property
    def size_bytes(self) -> int:
        """All record batches, each once."""
        return sum(piece.size_bytes for piece in self.pieces)

    @property
    def record_count(self) -> int:
        """All records."""
        return sum(piece.record_count for piece in self.pieces)


class ProducePlan(Protocol):
    """What is to be produced in one transaction, and with how much memory (`commit.plan`)."""

    @property
    def batch_id(self) -> int:
        """For messages and failpoints."""

    @property
    def staged(self) -> Sequence[StagedPartition]:
        """What to produce."""

    @property
    def transaction_timeout_ms(self) -> int:
        """After it the coordinator aborts the transaction."""

    @property
    def produce_request_bytes(self) -> int:
        """A Produce request is closed when it holds this much; one batch may go over."""

    @property
    def in_flight_bytes_max(self) -> int:
        """Stamped batches in memory at once, over all leaders."""
