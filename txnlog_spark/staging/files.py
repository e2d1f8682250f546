"""Staged batches in files of `stagingLocation`, a directory that executors and the driver share.

A file appears under its name only when it is complete, named by run and task attempt: attempts
never share one, so a retry, a speculative copy or a zombie can do no harm. What the message of a
lost attempt pointed to is removed with its batch's directory. The file is the staged bytes and the
index behind them. It is not flushed: until the transaction is decided the batch is replayed from
its sources.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from txnlog_spark.errors import StagedBatchesInvalid, StagingFailed
from txnlog_spark.staging.frames import Attempt

logger = logging.getLogger(__name__)

Bytes = bytes | bytearray | memoryview


def batch_directory(location: Path, write: str, batch_id: int) -> Path:
    """Where the attempts of one micro-batch stage their files."""
    return location / write / str(batch_id)


@contextlib.contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    """A full disk or a missing permission as an error that says where and what to do."""
    try:
        yield
    except OSError as error:
        raise StagingFailed(
            f"staging under {directory} failed ({error.strerror}): nothing was committed; free "
            "space or grant access there, or set stagingLocation to another shared directory"
        ) from error


class FileOutlet:
    """Writes an attempt to a file. Raises StagingFailed."""

    def __init__(self, location: Path, attempt: Attempt) -> None:
        self._directory = batch_directory(location, attempt.write, attempt.batch_id)
        self._path = self._directory / f"{attempt.name}-{uuid.uuid4().hex[:8]}.staged"
        with _disk_errors(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self._unfinished.open("wb")

    def write(self, data: Bytes) -> None:
        """More bytes."""
        with _disk_errors(self._directory):
            self._file.write(data)

    def finish(self, index: bytes) -> str:
        """The path of the complete file."""
        with _disk_errors(self._directory):
            self._file.write(index)
            self._file.close()
            self._unfinished.replace(self._path)
        return str(self._path)

    def discard(self) -> None:
        """Remove what was written.

        Closing writes what is still buffered, so that on a full disk it fails once more. A file
        that cannot be removed goes with its batch's directory.
        """
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._unfinished.unlink(missing_ok=True)

    @property
    def _unfinished(self) -> Path:
        return self._path.with_suffix(".unfinished")


def read_range(path: str, position: int, size_bytes: int | None, host: str) -> bytes:
    """Some bytes of a staged file. Raises StagedBatchesInvalid when it is not there.

    `host` is where a task wrote it.
    """
    try:
        with Path(path).open("rb") as file:
            file.seek(position)
            return file.read() if size_bytes is None else file.read(size_bytes)
    except OSError as error:
        raise StagedBatchesInvalid(
            f"staged file {path} cannot be read on the driver's machine {socket.gethostname()} "
            f"({error.strerror}); a task wrote it on {host or 'an executor'}. Nothing was "
            "committed. Either another driver of this query has removed it, and this one is to be "
            "ended, or stagingLocation is not shared: set it to a directory that all executors and "
            "the driver have under the same path, or leave it out"
        ) from error


def read_index(path: str, position: int, host: str) -> bytes:
    """What is behind the staged bytes. Raises StagedBatchesInvalid."""
    return read_range(path, position, None, host)


def remove_file(path: str) -> None:
    """Remove one attempt's file."""
    _remove(Path(path))


def remove_all(location: Path, write: str) -> None:
    """Remove everything that a query or a batch write has staged."""
    _remove(location / write)


def remove_batches(location: Path, write: str, batch_id: int) -> None:
    """Remove the directories of `batch_id` and all before it."""
    for directory in (location / write).glob("*"):
        if directory.name.isdigit() and int(directory.name) <= batch_id:
            _remove(directory)


def remove_other_runs(location: Path, write: str, batch_id: int, run_id: str) -> None:
    """Remove what other runs staged for this batch."""
    for path in batch_directory(location, write, batch_id).glob("*"):
        if not path.name.startswith(f"{run_id}-"):
            _remove(path)


_not_removed: set[Path] = set()
"""What a warning was logged for: it would come again with every batch."""


def _remove(path: Path) -> None:
    """Remove a file or a directory. What is in the way is logged, once: the batch is committed."""
    reason: OSError | None = None
    try:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        if path.is_dir():
            # As much as can go is gone. Again, for the error that says why not all.
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    except OSError as error:
        reason = error
    if reason is not None and path not in _not_removed:
        _not_removed.add(path)
        logger.warning(
            "staged files in %s cannot be removed and take up space: %s. Driver and executors must "
            "be allowed to remove each other's files there (one user, or a shared group)",
            path,
            reason,
        )
