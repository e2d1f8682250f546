"""The sink's and Spark's files in a checkpoint on disk, read and written at once."""

from __future__ import annotations

from pathlib import Path

from txnlog_spark.commit import checkpoint, journal
from txnlog_spark.commit.checkpoint import BatchOffsets
from txnlog_spark.commit.plan import Begun, Progress
from txnlog_spark.commit.progress import fetch_progress
from txnlog_spark.sink.commit_host import CommitHost


def read_query_id(folder: Path) -> str:
    return CommitHost().run(checkpoint.read_query_id(str(folder)))


def read_batch_offsets(folder: Path, batch_id: int) -> BatchOffsets:
    """Spark's log entry of a batch."""
    return CommitHost().run(checkpoint.read_batch_offsets(str(folder), batch_id))


def is_rewriting(folder: Path, batch_id: int) -> bool:
    """True if Spark made the batch to rewrite the checkpoint."""
    return CommitHost().run(checkpoint.is_rewriting(str(folder), batch_id))


def read_begun(folder: Path) -> Begun | None:
    """`attempt.json`."""
    return CommitHost().run(journal.read_begun(str(folder)))


def write_begun(folder: Path, begun: Begun) -> None:
    CommitHost().run(journal.write_begun(str(folder), begun))


def progress_of(client, progress_group_id: str, query_id: str) -> Progress | None:
    return client.run(fetch_progress(client.session, progress_group_id, query_id))
