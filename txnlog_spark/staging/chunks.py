"""Chunks of record batches that a task attempt staged, their index, and the index's digest.

The digest travels in the commit message, the index beside the staged bytes. The digest proves that
the index is the one that the task wrote, and a chunk's checksum proves that the bytes are the ones
that the task encoded. Bytes of another attempt, however valid, are an error and never data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from crc32c_rs import crc32c

from txnlog_kafka.operations.producer import Bytes, StagedChunk

CHUNK_BYTES_MAX = 256 * 1024
"""Largest chunk, in bytes. Neighbouring record batches of one partition are joined up to this size
and read together. The committer holds at most `in_flight_bytes_max` of chunks in memory, however
many partitions there are."""


class IndexDamaged(ValueError):
    """The index has another digest than the attempt's commit message names."""


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """Facts about an attempt's index, for its commit message."""

    chunk_count: int
    size_bytes: int
    record_count: int
    index_bytes: int
    digest: bytes
    """SHA-256 of the encoded index."""


class ChunkList:
    """Chunks of one attempt, in the order in which they are staged."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        """Number of each topic in the index."""
        self._rows: list[list[int]] = []
        """Topic's number, partition, size in bytes, record count and CRC-32C of each chunk."""
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, topic: str, partition: int, data: Bytes, record_count: int) -> None:
        """Append one record batch to the chunks."""
        number = self._topics.setdefault(topic, len(self._topics))
        last = self._rows[-1] if self._rows else None
        if (
            last is not None
            and last[:2] == [number, partition]
            and last[2] + len(data) <= CHUNK_BYTES_MAX
        ):
            last[2:] = [last[2] + len(data), last[3] + record_count, crc32c(data, last[4])]
        else:
            self._rows.append([number, partition, len(data), record_count, crc32c(data)])
        self.size_bytes += len(data)

    def index(self) -> tuple[bytes, IndexSummary]:
        """Return the encoded index, JSON with a column for each value, and its summary."""
        columns = [[row[number] for row in self._rows] for number in range(5)]
        encoded = json.dumps([list(self._topics), *columns], separators=(",", ":")).encode()
        records = sum(columns[3])
        digest = hashlib.sha256(encoded).digest()
        return encoded, IndexSummary(
            len(self._rows), self.size_bytes, records, len(encoded), digest
        )


def decode_index(
    encoded: bytes | bytearray, summary: IndexSummary, source: Callable[[int, int], Bytes]
) -> list[StagedChunk]:
    """Return the chunks of an encoded index; `source` reads the bytes of their attempt.

    Raises IndexDamaged if the digest of the index is another one.
    """
    if hashlib.sha256(encoded).digest() != summary.digest:
        raise IndexDamaged("the index of the staged batches has another digest")
    topics, *columns = json.loads(encoded)
    chunks, position = [], 0
    for number, partition, size_bytes, record_count, checksum in zip(*columns, strict=True):
        chunks.append(
            StagedChunk(
                topics[number], partition, position, size_bytes, record_count, checksum, source
            )
        )
        position += size_bytes
    return chunks
