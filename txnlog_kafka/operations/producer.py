"""Plain values of producing in a transaction: the producer, and what it produces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from crc32c_rs import crc32c

Bytes = bytes | bytearray | memoryview

TRANSACTION_TIMEOUT_MS = 300_000
"""Default of the time after which the coordinator aborts an open transaction."""
PRODUCE_REQUEST_BYTES = 1024 * 1024
"""Default of the size at which a Produce request is closed."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Answer of InitProducerId for a transactional id: good for one transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """Whole, valid RecordBatches of one partition that a task staged, with blank producer fields.

    A chunk should stay near 1 MiB, because it is held in memory until its batches are acknowledged.
    `size_bytes` and `record_count` are of all its record batches, headers included; `checksum` is
    the CRC-32C of all its bytes. The bytes begin at `position` of the task's output, and `source`
    reads a number of bytes from a position of that output.
    """

    topic: str
    partition: int
    position: int
    size_bytes: int
    record_count: int
    checksum: int
    source: Callable[[int, int], Bytes] = field(repr=False)

    def read(self) -> Bytes:
        """Read the bytes, unchecked; only the host that serves `ReadStaged` may call this.

        Raises OSError and what `source` raises.
        """
        return self.source(self.position, self.size_bytes)

    def check(self, data: Bytes) -> None:
        """Raise ValueError unless `data` is exactly the staged bytes: other bytes may be another's
        rows.

        The batches' own checksums are not enough: the checksums of another attempt are correct as
        well, and stamping writes new checksums.
        """
        if len(data) != self.size_bytes:
            raise ValueError(
                f"a piece of {self.size_bytes} bytes was staged, {len(data)} are there"
            )
        found = crc32c(data)
        if found != self.checksum:
            raise ValueError(f"its CRC-32C is {found:08x}, {self.checksum:08x} was staged")


@dataclass(frozen=True, slots=True)
class ProducePlan:
    """Staged batches to produce in one transaction, and the memory for it."""

    batch_id: int
    """Batch number for messages and failpoints."""
    staged: Sequence[StagedChunk]
    """Each partition's chunks in the order in which they are appended."""
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    """Time after which the coordinator aborts the transaction."""
    produce_request_bytes: int = PRODUCE_REQUEST_BYTES
    """Size at which a Produce request is closed; one batch may go over."""
    in_flight_bytes_max: int = 8 * 1024 * 1024
    """Bytes of stamped batches in memory at once, over all leaders."""
