"""The sinks as Spark sees them: `write` in the tasks, `commit` and `abort` on the driver.

Spark makes one writer when it plans a batch and pickles it to the tasks; the streaming committer is
another object in another process (measured), so a writer carries settings and nothing that happens.
Pickling is the moment that the tasks' view of the output topic is frozen: its partition count is
asked for then, once per batch, and never in the committer.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from txnlog_spark.client import admin
from txnlog_spark.client_cache import ConnectionSettings, client_for, resolve_bootstrap
from txnlog_spark.errors import OptionError, TxnLogError
from txnlog_spark.sink.columns import SinkColumns
from txnlog_spark.sink.committer import abort_staged, commit_batch_write, commit_streaming
from txnlog_spark.sink.settings import SinkSettings
from txnlog_spark.sink.staging import (
    RESULT_SIZE_PROPERTY,
    StagedBatches,
    StagingWriter,
    batch_directory,
    default_root,
    inline_limit,
    remove_all,
)
from txnlog_spark.sink.task import TaskEncoder, lookup_counts
from txnlog_spark.spark_errors import readable_errors

BATCH_ID_PROPERTY = "streaming.sql.batchId"
QUERY_ID_PROPERTY = "sql.streaming.queryId"
RUN_ID_PROPERTY = "spark.jobGroup.id"
"""Local properties that Spark sets on the tasks of a micro-batch; the run id is the job group."""
MASTER_PROPERTY = "spark.master"
"""Spark tells tasks its whole configuration as local properties (measured, 4.3); not documented."""


class _TopicSnapshot:
    """What the tasks need to know of the cluster, taken when a writer is pickled for them."""

    def __init__(self, connection: ConnectionSettings, topic: str | None) -> None:
        self._connection = connection
        self._topic = topic
        self._taken: tuple[str, dict[str, int]] | TxnLogError | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Take the snapshot; a failure is kept for the tasks, where Spark shows it whole."""
        if self._taken is None:
            try:
                servers = resolve_bootstrap(self._connection)
                topics = [] if self._topic is None else [self._topic]
                counts = {
                    topic: _partition_count(self._connection, servers, topic) for topic in topics
                }
                self._taken = (servers, counts)
            except TxnLogError as error:
                self._taken = error
        return dict(self.__dict__)

    def get(self) -> tuple[str, dict[str, int]]:
        """(bootstrap servers, partition counts), or raise what the planner met."""
        if isinstance(self._taken, TxnLogError):
            raise self._taken
        if self._taken is None:
            return resolve_bootstrap(self._connection), {}
        return self._taken


def _partition_count(connection: ConnectionSettings, servers: str, topic: str) -> int:
    """Like Kafka's producer, this creates a missing topic where the broker's config says so."""
    client = client_for(connection, servers)
    return len(admin.topic_partitions(client, [topic], allow_auto_create=True)[topic])


class _StagingSink:
    """What both writers do in a task."""

    def __init__(self, settings: SinkSettings, columns: SinkColumns) -> None:
        self._settings = settings
        self._columns = columns
        self._snapshot = _TopicSnapshot(settings.connection, settings.topic)

    def _stage(self, batches: Iterator[Any], names: Mapping[str, Any], task: TaskContext) -> Any:
        settings = self._settings
        servers, counts = self._snapshot.get()
        directory = batch_directory(
            default_root(settings.checkpoint, settings.staging_location),
            settings.staging_name(names["query_id"]),
            names["batch_id"],
        )
        attempt = f"{names['run_id'] or 'run'}-{task.partitionId()}-{task.taskAttemptId()}"
        inline_bytes_max = inline_limit(
            task.partitionId(), task.getLocalProperty(RESULT_SIZE_PROPERTY)
        )
        staging = StagingWriter(
            directory,
            attempt,
            inline_bytes_max=inline_bytes_max,
            refusal=unshared_staging(settings, task.getLocalProperty(MASTER_PROPERTY)),
        )
        encoder = TaskEncoder(
            settings,
            self._columns,
            lookup_counts(counts, lambda t: _partition_count(settings.connection, servers, t)),
            staging,
            sticky=task.partitionId() + names["batch_id"],
        )
        try:
            encoder.encode_all(batches)
            chunks, inline, path = staging.finish()
        except BaseException:
            staging.discard()
            raise
        return StagedBatches(
            **names,
            task_attempt_id=task.taskAttemptId(),
            chunks=chunks,
            partition_counts=encoder.partition_counts,
            inline=inline,
            path=path,
            record_count=encoder.record_count,
            host=socket.gethostname(),
        )


def unshared_staging(settings: SinkSettings, master: str | None) -> OptionError | None:
    """What to raise when a write needs a file, and would put it where the driver cannot look.

    Without stagingLocation and a checkpoint on a disk it would be in the temporary directory, of
    another machine unless Spark runs in local mode. (What travels in the commit message needs no
    file.)
    """
    checkpoint = settings.checkpoint
    on_disk = checkpoint is not None and checkpoint.local is not None
    if settings.staging_location is not None or on_disk:
        return None
    if master is None or master.startswith("local"):
        return None
    return OptionError(
        "stagingLocation",
        None,
        f"set it to a directory that all executors and the driver share: with spark.master={master}"
        " the driver cannot read what a task stages in its own temporary directory, and this "
        "write is too large to travel in the commit messages",
    )


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise TxnLogError("rows are written in Spark tasks only")
    return task


def _names_of(task: TaskContext) -> dict[str, Any]:
    """The query, its run and the micro-batch that a task of a streaming query belongs to."""
    return {
        "query_id": task.getLocalProperty(QUERY_ID_PROPERTY) or "",
        "run_id": task.getLocalProperty(RUN_ID_PROPERTY) or "",
        "batch_id": int(task.getLocalProperty(BATCH_ID_PROPERTY) or -1),
    }


class TxnLogStreamWriter(_StagingSink, DataSourceStreamArrowWriter):
    """The exactly-once sink of a streaming query."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage this task's rows (`pyarrow.RecordBatch`es)."""
        with readable_errors():
            task = _task()
            message: WriterCommitMessage = self._stage(iterator, _names_of(task), task)
            return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the micro-batch: output, source offsets and progress in one transaction."""
        with readable_errors():
            commit_streaming(self._settings, messages, batchId)  # type: ignore[arg-type]

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: ARG002  Spark's signature
    ) -> None:
        """Drop what was staged."""
        abort_staged(messages)  # type: ignore[arg-type]


class TxnLogBatchWriter(_StagingSink, DataSourceArrowWriter):
    """A batch write: one transaction, all or nothing. Inside foreachBatch: the micro-batch's."""

    def __init__(self, settings: SinkSettings, columns: SinkColumns) -> None:
        super().__init__(settings, columns)
        self._write_id = f"write-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage this task's rows (`pyarrow.RecordBatch`es)."""
        with readable_errors():
            task = _task()
            names = {"query_id": self._write_id, "run_id": self._write_id, "batch_id": 0}
            if self._settings.checkpoint is not None:
                names = _names_of(task)
            message: WriterCommitMessage = self._stage(iterator, names, task)
            return message

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit all rows in one transaction."""
        settings = self._settings
        with readable_errors():
            if settings.checkpoint is not None:
                commit_streaming(settings, messages, settings.txn_version)  # type: ignore[arg-type]
            else:
                commit_batch_write(settings, messages, self._write_id)  # type: ignore[arg-type]

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        abort_staged(messages)  # type: ignore[arg-type]
        if self._settings.checkpoint is None:
            remove_all(default_root(None, self._settings.staging_location), self._write_id)
