"""Files of the checkpoint: the host reads and writes them for the commit."""

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
    """Return a file's bytes, None if there is no file. Raises ProgressError."""
    found: bytes | FileFailed | None = yield ReadFile(path)
    if isinstance(found, FileFailed):
        raise unreadable(path, found.reason)
    # If any other answer counted as "no file", the query would begin as on its first start.
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
    """Return the text of a file that must exist. Raises ProgressError."""
    data = yield from read_file(path)
    if data is None:
        raise unreadable(path, "there is no such file")
    return text_of(path, data)


def text_of(path: str, data: bytes) -> str:
    """Decode a file's bytes as UTF-8. Raises ProgressError."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise unreadable(path, "it is not UTF-8 text") from error


def write_file(path: str, data: bytes, *, durable: bool) -> Operation[None]:
    """Replace a file, as `WriteFile` says. Raises ProgressError if it cannot be written."""
    _check_written(path, (yield WriteFile(path, data, durable)))


def flush_file(path: str) -> Operation[None]:
    """Make a file of Spark's durable, as `FlushFile` says. Raises ProgressError if that fails."""
    _check_written(path, (yield FlushFile(path)))


def _check_written(path: str, done: FileFailed | None) -> None:
    if isinstance(done, FileFailed):
        raise ProgressError(
            f"checkpoint file {path} cannot be written: {done.reason}. Give the driver's user "
            "access to the checkpoint, and free space on its disk; then start the query again"
        )


def json_of(path: str, text: str) -> Any:
    """Parse the JSON of a checkpoint file. Raises ProgressError."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise unreadable(path, f"it is not valid JSON: {error}") from error


def unreadable(path: str, reason: str) -> ProgressError:
    """Return the error for a checkpoint file that cannot be used."""
    return ProgressError(
        f"checkpoint file {path} cannot be used: {reason}. Set the writer's option "
        "checkpointLocation to a directory that the driver can read. If the file is damaged, "
        "restore the checkpoint, or start a new one with startingOffsets=committed"
    )
