"""The checkpoint's disk: what the commit asks of files is done here, on local file systems.

A file is whole or absent: written beside, flushed, renamed, the directory flushed too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from txnlog_spark.errors import TxnLogError
from txnlog_spark.protocol.effects import (
    FileAsk,
    FileFailed,
    Operation,
    Outcome,
    ReadFile,
    RunBegan,
    WriteFile,
)
from txnlog_spark.wire.invariants import InvariantViolation

T = TypeVar("T")


def _nothing() -> None:
    """There is nothing to remove."""


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` with `data`; after a crash it holds the old bytes or the new ones.

    Without `durable` that holds for a crash of the process; after one of the machine the file may
    hold anything.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    beside.replace(path)
    if durable:
        flush_directory(path.parent)


def flush_directory(directory: Path) -> None:
    """Make renames in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Disk:
    """Performs `FileAsk`s; `on_run_began` removes what fenced runs have staged."""

    on_run_began: Callable[[], None] = _nothing

    def perform(self, ask: FileAsk) -> bytes | FileFailed | None:
        """The outcome of one ask."""
        try:
            match ask:
                case ReadFile(path):
                    return Path(path).read_bytes()
                case WriteFile(path, data, durable):
                    write_atomically(Path(path), data, durable=durable)
                case RunBegan():
                    self.on_run_began()
        except FileNotFoundError as error:
            if isinstance(ask, ReadFile):
                return None
            return FileFailed(str(error))
        except OSError as error:
            return FileFailed(error.strerror or str(error))
        return None

    def serve(self, operation: Operation[T]) -> Operation[T]:
        """`operation` with its files served here; all other asks go on to the client."""
        outcome: Outcome = None
        try:
            ask = next(operation)
            while True:
                if isinstance(ask, FileAsk):
                    ask = operation.send(self.perform(ask))
                    continue
                try:
                    outcome = yield ask
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
