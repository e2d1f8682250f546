"""Files of the checkpoint, read and written by asking the host."""

from __future__ import annotations

import json
from typing import Any

from txnlog_kafka.operations.effects import (
    FileFailed,
    FlushFile,
    ListFolder,
    Operation,
    ReadFile,
    WriteFile,
)
from txnlog_kafka.wire.invariants import check
from txnlog_spark.errors import ProgressError


def read_file(path: str) -> Operation[bytes | None]:
    """A file's bytes, None where there is none. Raises ProgressError when it cannot be read."""
    found: bytes | FileFailed | None = yield ReadFile(path)
    if isinstance(found, FileFailed):
        raise unreadable(path, found.reason)
    # Anything else taken for "no file" would be a first start.
    check(found is None or isinstance(found, bytes), "a file is bytes, or absent", path=path)
    return found


def list_folder(path: str, *, folders: bool = False) -> Operation[tuple[str, ...]]:
    """Return the names of a folder's files, or of the folders in it. Raises ProgressError."""
    found: tuple[str, ...] | FileFailed = yield ListFolder(path, folders)
    if isinstance(found, FileFailed):
        raise unreadable(path, found.reason)
    check(isinstance(found, tuple), "a listing is names", path=path)
    return found


def read_text(path: str) -> Operation[str]:
    """The text of a file that has to be there. Raises ProgressError."""
    data = yield from read_file(path)
    if data is None:
        raise unreadable(path, "there is no such file")
    return text_of(path, data)


def text_of(path: str, data: bytes) -> str:
    """The text of a file's bytes. Raises ProgressError."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise unreadable(path, "it is not UTF-8 text") from error


def write_file(path: str, data: bytes, *, durable: bool) -> Operation[None]:
    """Replace a file, as `WriteFile` says. Raises ProgressError when it cannot be written."""
    _check_written(path, (yield WriteFile(path, data, durable)))


def flush_file(path: str) -> Operation[None]:
    """Make a file of Spark's durable, as `FlushFile` says. Raises ProgressError if it cannot be."""
    _check_written(path, (yield FlushFile(path)))


def _check_written(path: str, done: FileFailed | None) -> None:
    if isinstance(done, FileFailed):
        raise ProgressError(
            f"checkpoint file {path} cannot be written: {done.reason}. Give the driver's user "
            "access to the checkpoint, and free space on its disk; then start the query again"
        )


def json_of(path: str, text: str) -> Any:
    """The value of a checkpoint file's JSON. Raises ProgressError."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise unreadable(path, f"it is not valid JSON: {error}") from error


def unreadable(path: str, reason: str) -> ProgressError:
    """The error for a checkpoint file that cannot be used."""
    return ProgressError(
        f"checkpoint file {path} cannot be used: {reason}. Give checkpointLocation as the writer's "
        "option and as a directory that the driver can read; if the file is damaged, restore the "
        "checkpoint, or start a new one with startingOffsets=committed"
    )
