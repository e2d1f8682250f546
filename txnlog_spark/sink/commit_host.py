"""Host of the commit's files: the checkpoint in any store, and the staged bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from txnlog_kafka.operations.effects import (
    Ask,
    FileAsk,
    FileFailed,
    FileOutcome,
    FlushFile,
    ListFolder,
    Operation,
    Outcome,
    ReadFile,
    ReadStaged,
    RemoveOtherRuns,
    WriteFile,
    relayed,
)
from txnlog_kafka.wire.invariants import InvariantViolation
from txnlog_spark.storage.connect import open_files
from txnlog_spark.storage.default_fs import check_reading
from txnlog_spark.storage.file_store import Files
from txnlog_spark.storage.local import LocalFiles

if TYPE_CHECKING:
    from txnlog_spark.sink.settings import SinkSettings  # needs PySpark, which commands do without

T = TypeVar("T")


def _nothing() -> None:
    """Remove nothing: no other run has staged anything."""


@dataclass(frozen=True, slots=True)
class CommitHost:
    """Performs `FileAsk`s; `remove_other_runs` removes what fenced runs have staged.

    A path begins with the checkpoint's `root`, or is a normalised one (`Location.normal`), which
    may be in another store: there is no such file, as far as can be seen.
    """

    files: Files = field(default_factory=LocalFiles)
    root: str = ""
    normal_root: str = ""
    remove_other_runs: Callable[[], None] = _nothing

    @classmethod
    def of(
        cls, settings: SinkSettings, remove_other_runs: Callable[[], None] = _nothing
    ) -> CommitHost:
        """The checkpoint of a streaming query. Raises OptionError if it cannot be found."""
        location = settings.checkpoint_location
        check_reading("checkpointLocation", location)
        files = open_files("checkpointLocation", location, settings.storage)
        return cls(files, location.root, location.normal_root, remove_other_runs)

    def perform(self, ask: FileAsk) -> FileOutcome:
        """The outcome of one ask. Raises StagedBatchesInvalid."""
        try:
            match ask:
                case ReadFile(path):
                    place = self._path(path)
                    return None if place is None else self.files.read(place)
                case ListFolder(path, folders):
                    list_names = self.files.list_folders if folders else self.files.list_folder
                    return list_names(path)
                case WriteFile(path, data, durable):
                    self.files.write(path, data, durable=durable)
                case FlushFile(path):
                    self.files.flush(path)
                case RemoveOtherRuns():
                    self.remove_other_runs()
                case ReadStaged(piece):
                    return piece.read()
        except OSError as error:
            return FileFailed(error.strerror or str(error))
        return None

    def _path(self, path: str) -> str | None:
        """Return the path as the checkpoint's store names it; None for a path in another store."""
        if not self.root or path.startswith(f"{self.root}/"):
            return path
        if path.startswith(f"{self.normal_root}/"):
            return self.root + path.removeprefix(self.normal_root)
        return None

    def serve(self, operation: Operation[T]) -> Operation[T]:
        """Return `operation` with its files served here; all other asks go on to the client."""
        return relayed(operation, self._answer_ask)

    def _answer_ask(self, ask: Ask) -> Operation[Outcome]:
        return self.perform(ask) if isinstance(ask, FileAsk) else (yield ask)

    def run(self, operation: Operation[T]) -> T:
        """Run an operation that asks for nothing but files, and return its result."""
        served = self.serve(operation)
        try:
            ask = next(served)
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise InvariantViolation(f"an operation on files asks for {ask}")
