"""Staged record batches that lie in the test's own memory, and the host that gives them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crc32c_rs import crc32c

from txnlog_kafka.operations.effects import FileFailed, ReadStaged
from txnlog_kafka.operations.producer import StagedChunk
from txnlog_kafka.wire.records import CorruptBatch, iter_batches


def piece_of(
    data: Any, topic: str = "out", partition: int = 0, *, size_bytes: int | None = None
) -> StagedChunk:
    """Return a chunk with these bytes, or with the bytes that a function returns at each read."""
    known = b"" if callable(data) else bytes(data)
    try:
        count = sum(header.record_count for header, _ in iter_batches(known))
    except CorruptBatch:
        count = 0
    size = len(known) if size_bytes is None else size_bytes
    read = data if callable(data) else lambda: data
    return StagedChunk(topic, partition, 0, size, count, crc32c(known), lambda _, __: read())


def staged_of(topic: str, partition: int, pieces: Sequence[Any]) -> tuple[StagedChunk, ...]:
    return tuple(piece_of(piece, topic, partition) for piece in pieces)


def read_back(piece: StagedChunk) -> Any:
    """Return the value that a host resumes an operation with."""
    try:
        return piece.read()
    except OSError as error:
        return FileFailed(str(error))


def served(operation):
    """`operation` with its staged pieces read here; all else goes on to the host."""
    ask = next(operation, None)
    try:
        while True:
            if isinstance(ask, ReadStaged):
                ask = operation.send(read_back(ask.piece))
                continue
            try:
                outcome = yield ask
            except Exception as error:
                ask = operation.throw(error)
            else:
                ask = operation.send(outcome)
    except StopIteration as stop:
        return stop.value
