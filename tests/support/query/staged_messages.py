"""Commit messages as tasks give them, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from txnlog_spark.errors import StagedBatchesInvalid
from txnlog_spark.sink.settings import SinkSettings
from txnlog_spark.staging.address import StagingSettings, ensure_server
from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.staging.messages import StagedBatches
from txnlog_spark.staging.reader import StagedReader
from txnlog_spark.staging.staged_files import StagedFiles
from txnlog_spark.staging.writer import Outlet, StagingWriter, open_server_outlet
from txnlog_spark.storage.connect import StorageSettings
from txnlog_spark.storage.location import read_location

Row = tuple[str, int, bytes]
"""Topic, partition and a whole record batch."""


def on_server(settings: StagingSettings, attempt: TaskAttempt) -> Callable[[], Outlet]:
    """Return what a task of local mode calls to open its outlet."""
    return lambda: open_server_outlet(ensure_server(settings), attempt, host=None, is_local=True)


def files_in(folder: Path) -> StagedFiles:
    """`stagingLocation` on this disk."""
    return StagedFiles(read_location("stagingLocation", str(folder)), StorageSettings())


def with_location(settings: SinkSettings, folder: Path) -> SinkSettings:
    return replace(settings, staging_location=read_location("stagingLocation", str(folder)))


def in_file(location: Path, attempt: TaskAttempt) -> Callable[[], Outlet]:
    return lambda: files_in(location).outlet(attempt)


def never() -> Outlet:
    """Fail: the rows of this test fit into the message."""
    raise AssertionError("the rows of this test are few")


def message_of(
    attempt: TaskAttempt,
    staging: StagingWriter,
    counts: dict[str, int] | None = None,
    query_id: str | None = None,
) -> StagedBatches:
    staged = staging.finish()
    return StagedBatches(
        attempt=attempt,
        query_id=attempt.write if query_id is None else query_id,
        task_attempt_id=0,
        summary=staged.summary,
        partition_counts=counts or {},
        inline=staged.inline,
        index=staged.index,
        path=staged.path,
        host="executor-7",
    )


def stage(
    attempt: TaskAttempt,
    rows: Iterable[Row],
    outlet: Callable[[], Outlet] = never,
    counts: dict[str, int] | None = None,
    query_id: str | None = None,
) -> StagedBatches:
    """Stage one attempt: inside the message without an outlet, else all of it in the outlet."""
    staging = StagingWriter(outlet, inline_bytes_max=1 << 20 if outlet is never else 0)
    for topic, partition, data in rows:
        staging.append(topic, partition, [data])
    return message_of(attempt, staging, counts, query_id)


def is_there(settings: StagingSettings, message: StagedBatches) -> bool:
    """True if the server still has the rows that the message points to."""
    reader = StagedReader(settings, None)
    try:
        return bool(reader.plan([message]))
    except StagedBatchesInvalid:
        return False
    finally:
        reader.close()


def flip_a_byte(message: StagedBatches) -> None:
    """Flip a byte in a staged file, inside the staged bytes."""
    path = Path(message.path or "")
    data = bytearray(path.read_bytes())
    data[message.summary.size_bytes // 2] ^= 1
    path.write_bytes(data)
