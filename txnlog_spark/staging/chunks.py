"""What a task attempt staged: chunks of record batches, the index of them, and the index's digest.

The digest travels in the commit message, the index beside the staged bytes. An index that has the
digest is the one that the task wrote, and bytes that have a chunk's checksum are the ones that it
encoded: bytes of another attempt, however whole, are an error and never data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from crc32c_rs import crc32c

CHUNK_BYTES_MAX = 256 * 1024
"""Neighbouring record batches of one partition become one chunk up to this size: a read of its
own. The committer has at most `in_flight_bytes_max` of chunks in memory, however many partitions
there are."""


class IndexDamaged(ValueError):
    """An index that is not the one of the attempt."""


class StagedChunk(NamedTuple):
    """Whole record batches of one partition: where they lie in the staged bytes, and their
    CRC-32C."""

    topic: str
    partition: int
    position: int
    size_bytes: int
    record_count: int
    checksum: int


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """What a commit message says of an attempt's index."""

    chunk_count: int
    size_bytes: int
    record_count: int
    index_bytes: int
    digest: bytes
    """SHA-256 of the encoded index."""


class ChunkList:
    """The chunks of one attempt, in the order in which they are staged."""

    def __init__(self) -> None:
        self._chunks: list[StagedChunk] = []
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(
        self, topic: str, partition: int, data: bytes | bytearray | memoryview, record_count: int
    ) -> None:
        """One record batch, behind all before it."""
        last = self._chunks[-1] if self._chunks else None
        if (
            last is not None
            and (last.topic, last.partition) == (topic, partition)
            and last.size_bytes + len(data) <= CHUNK_BYTES_MAX
        ):
            self._chunks[-1] = StagedChunk(
                topic,
                partition,
                last.position,
                last.size_bytes + len(data),
                last.record_count + record_count,
                crc32c(data, last.checksum),
            )
        else:
            self._chunks.append(
                StagedChunk(
                    topic, partition, self.size_bytes, len(data), record_count, crc32c(data)
                )
            )
        self.size_bytes += len(data)

    def index(self) -> tuple[bytes, IndexSummary]:
        """The encoded index and what the commit message says of it."""
        encoded = encode_index(self._chunks)
        records = sum(chunk.record_count for chunk in self._chunks)
        digest = hashlib.sha256(encoded).digest()
        return encoded, IndexSummary(
            len(self._chunks), self.size_bytes, records, len(encoded), digest
        )


def encode_index(chunks: Iterable[StagedChunk]) -> bytes:
    """The chunks as JSON columns, topics by number."""
    columns: list[list[int]] = [[] for _ in range(5)]
    topics: dict[str, int] = {}
    for topic, partition, _, size_bytes, record_count, checksum in chunks:
        row = (topics.setdefault(topic, len(topics)), partition, size_bytes, record_count, checksum)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    return json.dumps([list(topics), *columns], separators=(",", ":")).encode()


def decode_index(encoded: bytes | bytearray, summary: IndexSummary) -> list[StagedChunk]:
    """The chunks. Raises IndexDamaged unless the index is the one that was summed up."""
    if hashlib.sha256(encoded).digest() != summary.digest:
        raise IndexDamaged("the index of the staged batches has another digest")
    topics, *columns = json.loads(encoded)
    chunks, position = [], 0
    for number, partition, size_bytes, record_count, checksum in zip(*columns, strict=True):
        chunks.append(
            StagedChunk(topics[number], partition, position, size_bytes, record_count, checksum)
        )
        position += size_bytes
    return chunks
