"""The driver's disk: what the commit asks of files is done here, on local file systems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from txnlog_spark.errors import TxnLogError
from txnlog_spark.protocol.effects import (
    FileAsk,
    FileFailed,
    FileOutcome,
    ListFolder,
    Operation,
    ReadFile,
    ReadStaged,
    RunBegan,
    WriteFile,
)
from txnlog_spark.protocol.values import StagedPiece
from txnlog_spark.sink.files import visible_files, write_atomically
from txnlog_spark.wire.invariants import InvariantViolation

T = TypeVar("T")


def _nothing() -> None:
    """There is nothing to remove."""


def _nothing_staged(piece: StagedPiece) -> bytes | memoryview:
    raise InvariantViolation(f"nothing was staged for this operation, which reads {piece}")


@dataclass(frozen=True, slots=True)
class Disk:
    """Performs `FileAsk`s; `on_run_began` removes what fenced runs have staged."""

    on_run_began: Callable[[], None] = _nothing
    read_staged: Callable[[StagedPiece], bytes | memoryview] = _nothing_staged

    def perform(self, ask: FileAsk) -> FileOutcome:
        """The outcome of one ask. Raises StagedBatchesInvalid."""
        try:
            match ask:
                case ReadFile(path):
                    return Path(path).read_bytes()
                case ListFolder(path):
                    return visible_files(Path(path))
                case WriteFile(path, data, durable):
                    write_atomically(Path(path), data, durable=durable)
                case RunBegan():
                    self.on_run_began()
                case ReadStaged(piece):
                    return self.read_staged(piece)
        except FileNotFoundError as error:
            if isinstance(ask, ReadFile):
                return None
            return FileFailed(str(error))
        except OSError as error:
            return FileFailed(error.strerror or str(error))
        return None

    def serve(self, operation: Operation[T]) -> Operation[T]:
        """`operation` with its files served here; all other asks go on to the client."""
        try:
            ask = next(operation)
            while True:
                try:
                    outcome = self.perform(ask) if isinstance(ask, FileAsk) else (yield ask)
                except TxnLogError as error:
                    ask = operation.throw(error)
                else:
                    ask = operation.send(outcome)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            operation.close()

    def run(self, operation: Operation[T]) -> T:
        """Carry an operation to its end that asks for nothing but files."""
        served = self.serve(operation)
        try:
            ask = next(served)
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise InvariantViolation(f"an operation on files asks for {ask}")
