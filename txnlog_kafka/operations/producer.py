"""Plain values of producing in a transaction: the producer, and what it produces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crc32c_rs import crc32c

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """What InitProducerId answered for a transactional id: good for one transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


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


@dataclass(frozen=True, slots=True)
class ProducePlan:
    """What is to be produced in one transaction, and with how much memory."""

    batch_id: int
    """For messages and failpoints."""
    staged: Sequence[StagedPartition]
    transaction_timeout_ms: int = 300_000
    """After it the coordinator aborts the transaction."""
    produce_request_bytes: int = 1024 * 1024
    """A Produce request is closed when it holds this much; one batch may go over."""
    in_flight_bytes_max: int = 8 * 1024 * 1024
    """Stamped batches in memory at once, over all leaders."""
