"""Staged batches in files of `stagingLocation`: any storage that executors and the driver reach.

A file appears under its name only when it is complete. It lies in the folder of its batch and run,
and its name contains the task attempt. Attempts never share a file, so a retry, a speculative copy
or a zombie does no harm. The file of a lost attempt is removed with its batch's folder. A file
contains the staged bytes, then the index. It is not flushed: until the transaction is decided,
Spark can replay the batch from its sources.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import uuid
from collections.abc import Callable, Iterator

from txnlog_spark.errors import StagedBatchesInvalid, StagingFailed
from txnlog_spark.log_once import warn_once
from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.storage.connect import StorageSettings, open_files
from txnlog_spark.storage.file_store import Bytes, Files
from txnlog_spark.storage.location import Location

logger = logging.getLogger(__name__)

OPTION = "stagingLocation"


class StagedFiles:
    """Files under one location: a task writes them, the committer reads and removes them."""

    def __init__(self, location: Location, storage: StorageSettings) -> None:
        """Connect to the storage. Raises OptionError if these settings do not reach it."""
        self._location = location
        self._files = open_files(OPTION, location, storage)

    # ------------------------------------------------------------------ a task

    def outlet(self, attempt: TaskAttempt) -> FileOutlet:
        """Begin an attempt's file. Raises StagingFailed."""
        folder = f"{self._batch(attempt.write, attempt.batch_id)}/{attempt.run_id or 'run'}"
        return FileOutlet(self._files, f"{folder}/{attempt.name}-{uuid.uuid4().hex[:8]}.staged")

    # ------------------------------------------------------------------ the committer

    def read(self, path: str, position: int, size: int, host: str) -> bytes | bytearray:
        """Return bytes of a staged file, which a task wrote on `host`.

        Raises StagedBatchesInvalid if the file cannot be read.
        """
        try:
            return self._files.read_range(path, position, size)
        except OSError as error:
            raise StagedBatchesInvalid(
                f"staged file {path} cannot be read on the driver's machine {socket.gethostname()} "
                f"({error.strerror or error}); a task wrote it on {host or 'an executor'}. Nothing "
                "was committed. Either another driver of this query has removed it: stop one of "
                "the two drivers. Or stagingLocation is not shared: set it to a directory that all "
                "executors and the driver have under the same path, or leave it out"
            ) from error

    def remove_file(self, path: str) -> None:
        """Remove one attempt's file."""
        self._remove_path(path, self._files.delete)

    def remove_all(self, write: str) -> None:
        """Remove everything that a query or a batch write has staged."""
        self._remove_path(f"{self._location.text}/{write}", self._files.delete_folder)

    def remove_batches(self, write: str, batch_id: int) -> None:
        """Remove the folders of `batch_id` and all earlier batches."""
        for name in self._folders(f"{self._location.text}/{write}"):
            if name.isdigit() and int(name) <= batch_id:
                self._remove_path(self._batch(write, int(name)), self._files.delete_folder)

    def remove_other_runs(self, write: str, batch_id: int, run_id: str) -> None:
        """Remove the output that other runs staged for this batch."""
        batch = self._batch(write, batch_id)
        for name in self._folders(batch):
            if name != run_id:
                self._remove_path(f"{batch}/{name}", self._files.delete_folder)

    def _batch(self, write: str, batch_id: int) -> str:
        return f"{self._location.text}/{write}/{batch_id}"

    def _folders(self, path: str) -> tuple[str, ...]:
        try:
            return self._files.list_folders(path)
        except OSError as error:
            _log_once(path, error)
            return ()

    def _remove_path(self, path: str, remove: Callable[[str], None]) -> None:
        try:
            remove(path)
        except OSError as error:
            _log_once(path, error)


class FileOutlet:
    """Writes an attempt to a file. Raises StagingFailed."""

    def __init__(self, files: Files, path: str) -> None:
        self._path = path
        with self._errors():
            self._output = files.open_output(path)

    def write(self, data: Bytes) -> None:
        """Append bytes to the file."""
        with self._errors():
            self._output.write(data)

    def finish(self, index: bytes) -> str:
        """Append the index and close the file; return its path."""
        with self._errors():
            self._output.write(index)
            self._output.close()
        return self._path

    def discard(self) -> None:
        """Remove the file. If that fails, it is removed with its batch's folder."""
        self._output.abort()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn an OSError, such as a full disk, into an error that names the path and the
        remedy."""
        try:
            yield
        except OSError as error:
            raise StagingFailed(
                f"staging in {self._path} failed ({error.strerror or error}): nothing was "
                "committed; free space or grant access there, or set stagingLocation to another "
                "shared directory"
            ) from error


def _log_once(path: str, error: OSError) -> None:
    """Log once that files cannot be removed. The batch is committed all the same."""
    warn_once(
        logger,
        ("not removed", path),
        "staged files in %s cannot be removed and take up space: %s. Driver and executors must "
        "be allowed to remove each other's files there (one user, or a shared group)",
        path,
        error,
    )
