"""The driver's part of a write, as Spark calls it: the host of `txnlog_spark.commit`."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import partial

from txnlog_kafka.operations.producer import StagedChunk
from txnlog_spark.client_cache import client_for, resolve_bootstrap
from txnlog_spark.commit.batch_write import BatchWrite, commit_write
from txnlog_spark.commit.plan import CommitOutcome
from txnlog_spark.commit.query import QueryBatch, commit_query_batch
from txnlog_spark.sink.commit_host import CommitHost
from txnlog_spark.sink.commit_reports import run_reported
from txnlog_spark.sink.settings import SinkSettings
from txnlog_spark.staging.messages import StagedBatches
from txnlog_spark.staging.reader import StagedReader
from txnlog_spark.staging.staged_output import check_one_batch, complete_messages, merge_counts


def commit_streaming(
    settings: SinkSettings, messages: Sequence[StagedBatches | None], batch_id: int, run_id: str
) -> None:
    """Commit one micro-batch of a streaming query, exactly once; `run_id` names its run.

    Raises the errors of `commit_query_batch`, StagedBatchesInvalid, and TxnLogError for messages
    that are not of one batch. After each of them Spark stops the query, and its restart replays the
    batch.
    """
    staged = complete_messages(messages)
    check_one_batch(staged, batch_id)
    first = staged[0] if staged else None
    bootstrap_servers = resolve_bootstrap(settings.connection)
    client = client_for(settings.connection, bootstrap_servers)
    location = settings.checkpoint_location
    with closing(staged_reader(settings)) as reader:
        batch = QueryBatch(
            checkpoint=location.text,
            location=location.normal,
            batch_id=batch_id,
            options=settings.commit_options,
            staged=_staged_partitions(reader, staged),
            run_id=run_id,
            query_id=None if first is None else first.query_id or None,
            is_function=bool(settings.sink_run),
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        # A batch without tasks has staged nothing, and removes nothing (`remove_other_runs`).
        write, plan_id = ("", "") if first is None else (first.attempt.write, first.run_id)
        remove_others = partial(reader.remove_other_runs, write, batch_id, plan_id)
        disk = CommitHost.of(settings, remove_others)
        commit = disk.serve(commit_query_batch(client.session, batch))
        name = f"{settings.query_name}, batch {batch_id}" if settings.query_name else ""
        run_reported(
            batch.query_id or "", batch_id, batch.staged, commit, client.run, shown_as=name
        )
        if first is not None:
            reader.remove_batches(write, batch_id, plan_id)


def staged_reader(settings: SinkSettings) -> StagedReader:
    """Return the reader of the rows that this sink's tasks staged."""
    return StagedReader(settings.staging, settings.staged_files())


def abort_staged(settings: SinkSettings, messages: Iterable[StagedBatches | None]) -> None:
    """Forget a batch whose tasks failed. Nothing was produced, so nothing is aborted here.

    Spark also calls this after a failed commit. A transaction whose EndTxn was sent must not be
    touched then; a transaction that was not ended is fenced by the next InitProducerId.
    """
    with closing(staged_reader(settings)) as reader:
        reader.abandon(messages)


def commit_batch_write(
    settings: SinkSettings, messages: Sequence[StagedBatches | None], write_id: str
) -> CommitOutcome | None:
    """Commit a batch write as one transaction, see `commit_write`.

    Return None if there is nothing to commit: no rows, no source offsets, no version.
    """
    staged = complete_messages(messages)
    is_empty = not any(message.summary.chunk_count for message in staged)
    if is_empty and settings.txn_app_id is None and not settings.source_offsets:
        return None
    client = client_for(settings.connection)
    with closing(staged_reader(settings)) as reader:
        write = BatchWrite(
            write_id=write_id,
            options=settings.commit_options,
            staged=_staged_partitions(reader, staged),
            app_id=settings.txn_app_id,
            version=settings.txn_version,
            source_offsets=settings.source_offsets,
        )
        commit = CommitHost().serve(commit_write(client.session, write))
        outcome = run_reported(
            write_id, write.version or 0, write.staged, commit, client.run, shown_as="batch write"
        )
        reader.remove_all(write_id)
    return outcome


def _staged_partitions(
    reader: StagedReader, staged: Sequence[StagedBatches]
) -> tuple[StagedChunk, ...]:
    merge_counts(message.partition_counts for message in staged)
    return tuple(reader.plan(staged))
