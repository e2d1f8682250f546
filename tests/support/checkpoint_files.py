"""The sink's and Spark's files in a checkpoint on disk, read and written at once."""

from __future__ import annotations

from pathlib import Path

from txnlog_spark.commit import checkpoint, journal
from txnlog_spark.commit.checkpoint import BatchOffsets
from txnlog_spark.commit.journal import Attempt, RecordedIdentity
from txnlog_spark.commit.plan import Progress
from txnlog_spark.commit.progress import fetch_progress
from txnlog_spark.sink.disk import Disk


def read_query_id(folder: Path) -> str:
    """The id in a checkpoint's metadata."""
    return Disk().run(checkpoint.read_query_id(str(folder)))


def read_batch_offsets(folder: Path, batch_id: int) -> BatchOffsets:
    """Spark's log entry of a batch."""
    return Disk().run(checkpoint.read_batch_offsets(str(folder), batch_id))


def read_attempt(folder: Path) -> Attempt | None:
    """`attempt.json`."""
    return Disk().run(journal.read_attempt(str(folder)))


def write_attempt(folder: Path, attempt: Attempt) -> None:
    """Replace `attempt.json`."""
    Disk().run(journal.write_attempt(str(folder), attempt))


def read_identity(folder: Path) -> RecordedIdentity | None:
    """`identity.json`."""
    return Disk().run(journal.read_identity(str(folder)))


def write_identity(folder: Path, identity: RecordedIdentity, *, was_skipped: bool = False) -> bool:
    """Replace `identity.json` unless it is ahead."""
    return Disk().run(journal.write_identity(str(folder), identity, was_skipped=was_skipped))


def progress_of(client, progress_group_id: str, query_id: str) -> Progress | None:
    """The query's stable progress."""
    return client.run(fetch_progress(client.session, progress_group_id, query_id))
