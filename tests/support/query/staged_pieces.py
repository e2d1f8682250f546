"""Staged record batches that lie in the test's own memory, and the host that gives them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crc32c_rs import crc32c

from txnlog_kafka.operations.effects import FileFailed, ReadStaged
from txnlog_kafka.operations.producer import StagedPartition, StagedPiece
from txnlog_kafka.wire.records import CorruptBatch, iter_batches


def piece_of(data: Any, size_bytes: int | None = None) -> StagedPiece:
    """A piece with these bytes, or with what a function gives when it is read."""
    known = b"" if callable(data) else bytes(data)
    try:
        count = sum(header.record_count for header, _ in iter_batches(known))
    except CorruptBatch:
        count = 0
    return StagedPiece(len(known) if size_bytes is None else size_bytes, count, data, crc32c(known))


def staged_of(topic: str, partition: int, pieces: Sequence[Any]) -> StagedPartition:
    """Staged pieces of one partition."""
    return StagedPartition(topic, partition, [piece_of(piece) for piece in pieces])


def read_back(piece: StagedPiece) -> Any:
    """What a host resumes an operation with."""
    source: Any = piece.source
    if not callable(source):
        return source
    try:
        return source()
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
