"""The sinks as Spark sees them: `write` in the tasks, `commit` and `abort` on the driver.

Spark makes one writer when it plans a batch and pickles it to the tasks. The streaming committer is
another object in another process (measured). So a writer carries settings, and no state. The tasks'
view of the output topic, its partition count included, is asked for once per batch
(`look_at_topic`), before Spark pickles the writer, and never by the committer.
"""

from __future__ import annotations

import logging
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from txnlog_kafka.wire.invariants import present
from txnlog_spark.client_cache import ConnectionSettings, client_for, resolve_bootstrap
from txnlog_spark.commit.checkpoint import read_query_id
from txnlog_spark.errors import SparkSettingRefused, TxnLogError
from txnlog_spark.foreachbatch import QUERY_ID_PROPERTY
from txnlog_spark.log_once import warn_once
from txnlog_spark.process_local import Frozen, process_local
from txnlog_spark.sink.commit_host import CommitHost
from txnlog_spark.sink.committer import (
    abort_staged,
    commit_batch_write,
    commit_streaming,
    staged_reader,
)
from txnlog_spark.sink.settings import SinkSettings
from txnlog_spark.spark_errors import readable_errors
from txnlog_spark.staging.address import ServerAddress, ensure_server
from txnlog_spark.staging.frames import TaskAttempt
from txnlog_spark.staging.messages import RESULT_SIZE_PROPERTY, StagedBatches, inline_limit
from txnlog_spark.staging.writer import Outlet, StagingWriter, open_server_outlet

if TYPE_CHECKING:
    from txnlog_spark.sink.columns import SinkColumns

BATCH_ID_PROPERTY = "streaming.sql.batchId"
"""With QUERY_ID_PROPERTY the local properties that Spark sets on the tasks of a micro-batch."""
MASTER_PROPERTY = "spark.master"
DRIVER_HOST_PROPERTY = "spark.driver.host"
FULL_RETRY_PROPERTY = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
PUSH_PROPERTY = "spark.shuffle.push.enabled"
"""Names of settings in a task's local properties. Spark passes every setting of the session and of
its configuration there, but no default (measured, 4.2 and 4.3); not documented."""

T = TypeVar("T")
_Messages = list[Any]
"""Commit messages of the tasks, None for a task that failed; Spark has its own type for them."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OutputView:
    """The view that all tasks of a batch share: brokers, partition counts, and the staging server.

    `query_id` is the checkpoint's, "" if nothing is staged under it.
    """

    servers: str
    counts: dict[str, int]
    staging: ServerAddress | None
    query_id: str = ""


def look_at_topic(settings: SinkSettings, *, is_function: bool) -> OutputView:
    """Ask for the partition count, and start the staging server if there is none.

    Call this on the driver: Spark makes a writer there and sends copies of it to the tasks.
    `is_function` is True if a function given to foreachBatch writes. Its tasks do not know their
    query in Spark Connect, nor in a thread of the function's own, so the query's id is read here.
    Raises TxnLogError.
    """
    servers = resolve_bootstrap(settings.connection)
    topics = [] if settings.topic is None else [settings.topic]
    counts = {each: _partition_count(settings.connection, servers, each) for each in topics}
    if settings.staging_location is None:
        # The server is this application's own, and serves no two checkpoints of one path.
        return OutputView(servers, counts, ensure_server(settings.staging))
    if not is_function:
        return OutputView(servers, counts, None)
    disk, checkpoint = CommitHost.of(settings), settings.checkpoint_location.text
    return OutputView(servers, counts, None, disk.run(read_query_id(checkpoint)))


def _partition_count(connection: ConnectionSettings, servers: str, topic: str) -> int:
    """Return the topic's partition count. Like Kafka's producer, this creates a missing topic if
    the broker's configuration allows it."""
    client = client_for(connection, servers)
    return len(client.topic_partitions([topic], allow_auto_create=True)[topic])


class _StagingSink:
    """The part of both writers that runs in a task."""

    def __init__(
        self, settings: SinkSettings, columns: SinkColumns | None, view: OutputView | None
    ) -> None:
        """Keep settings and view. A writer that only commits has neither columns nor view."""
        self._settings = settings
        self._columns = columns
        self._view = view
        self._plan_id = uuid.uuid4().hex

    def _stage_rows(
        self, batches: Iterator[Any], write: str, query_id: str, batch_id: int, task: TaskContext
    ) -> Any:
        # Of the processes that have a writer only a task's needs numpy and pyarrow.
        from txnlog_spark.sink.task import TaskEncoder, lookup_counts

        check_full_retry(task.getLocalProperty)
        process_local(Frozen)
        settings = self._settings
        view = present(self._view, "a writer whose copies are in tasks has looked at the topic")
        columns = present(self._columns, "a writer whose copies are in tasks has their columns")
        # A task attempt's number is unique in an application.
        name = f"{self._plan_id}-{task.partitionId()}-{task.taskAttemptId()}"
        attempt = TaskAttempt(write, batch_id, self._plan_id, name)
        limit = inline_limit(task.partitionId(), task.getLocalProperty(RESULT_SIZE_PROPERTY))
        staging = StagingWriter(partial(self._outlet, view, attempt, task), inline_bytes_max=limit)
        encoder = TaskEncoder(
            settings,
            columns,
            lookup_counts(
                view.counts, lambda t: _partition_count(settings.connection, view.servers, t)
            ),
            staging,
            sticky=task.partitionId() + batch_id,
        )
        try:
            encoder.encode_all(batches)
            staged = staging.finish()
        except BaseException:
            staging.discard()
            raise
        return StagedBatches(
            attempt=attempt,
            query_id=query_id,
            task_attempt_id=task.taskAttemptId(),
            summary=staged.summary,
            partition_counts=encoder.partition_counts,
            inline=staged.inline,
            index=staged.index,
            path=staged.path,
            host=socket.gethostname(),
        )

    def _outlet(self, view: OutputView, attempt: TaskAttempt, task: TaskContext) -> Outlet:
        """Open the outlet for the rows of a task that are too large for its commit message."""
        files = self._settings.staged_files()
        if files is not None:
            return files.outlet(attempt)
        return open_server_outlet(
            present(view.staging, "without stagingLocation there is a server"),
            attempt,
            host=self._settings.staging.host or task.getLocalProperty(DRIVER_HOST_PROPERTY),
            is_local=is_local_master(task.getLocalProperty(MASTER_PROPERTY)),
        )


def is_local_master(master: str | None) -> bool:
    """True if tasks run in the driver's process: local and local[N], not local-cluster[...]."""
    return master is not None and (master == "local" or master.startswith("local["))


def check_full_retry(setting_of: Callable[[str], str | None]) -> None:
    """Raise SparkSettingRefused unless Spark computes a batch again as a whole, or not at all.

    A task does not know whether the plan shuffles, so all writes are checked. The full retry
    computes checksums by itself: `orderIndependentChecksum.enabled` alone only logs a mismatch.
    Spark leaves the full retry out if push-based shuffle is on, which exists on YARN only.
    """
    if _is(setting_of(FULL_RETRY_PROPERTY), "false"):
        raise SparkSettingRefused(FULL_RETRY_PROPERTY, "false", "true, or leave it out")
    if _is(setting_of(PUSH_PROPERTY), "true") and setting_of(MASTER_PROPERTY) == "yarn":
        raise SparkSettingRefused(PUSH_PROPERTY, "true", "false, or leave it out")


def _is(value: str | None, expected: str) -> bool:
    """Compare a boolean setting as Spark reads it. None is Spark's default."""
    return value is not None and value.strip().lower() == expected


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise TxnLogError("rows are written in Spark tasks only")
    return task


def _tell_at_least_once(messages: Iterable[Any]) -> None:
    """Warn once for each query that a plain write in its foreachBatch is at-least-once."""
    for query_id in {message.query_id for message in messages} - {""}:
        warn_once(
            logger,
            ("plain write", query_id),
            "query %s writes to Kafka with a plain write in its foreachBatch, which is "
            "at-least-once: a replayed batch is written again. txnlog_spark.foreach_batch writes "
            "each batch exactly once",
            query_id,
        )


class TxnLogStreamWriter(_StagingSink, DataSourceStreamArrowWriter):
    """The exactly-once sink of a streaming query; `run_id` names the query's run."""

    def __init__(
        self,
        settings: SinkSettings,
        columns: SinkColumns | None,
        view: OutputView | None,
        run_id: str,
    ) -> None:
        super().__init__(settings, columns, view)
        self._run_id = run_id

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage this task's rows (`pyarrow.RecordBatch`es)."""
        with readable_errors():
            task = _task()
            batch_id = int(task.getLocalProperty(BATCH_ID_PROPERTY) or -1)
            query_id = task.getLocalProperty(QUERY_ID_PROPERTY) or ""
            message: WriterCommitMessage = self._stage_rows(
                iterator, self._settings.write_name(query_id), query_id, batch_id, task
            )
            return message

    def commit(self, messages: _Messages, batchId: int) -> None:
        """Commit the micro-batch: output, source offsets and progress in one transaction."""
        with readable_errors():
            commit_streaming(self._settings, messages, batchId, self._run_id)

    def abort(
        self,
        messages: _Messages,
        batchId: int,  # noqa: ARG002  Spark's signature
    ) -> None:
        """Drop the staged rows."""
        abort_staged(self._settings, messages)


class TxnLogBatchWriter(_StagingSink, DataSourceArrowWriter):
    """The sink of a batch write, one transaction; in foreachBatch, of a micro-batch."""

    @property
    def _write_id(self) -> str:
        return f"write-{self._plan_id}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage this task's rows (`pyarrow.RecordBatch`es)."""
        settings = self._settings
        with readable_errors():
            task = _task()
            # In Spark Connect the query is not known: a task is of the client's write alone.
            query_id = task.getLocalProperty(QUERY_ID_PROPERTY) or ""
            write, batch_id = self._write_id, 0
            if settings.checkpoint is not None:
                view = present(self._view, "a writer whose copies are in tasks has a view")
                write, batch_id = settings.write_name(view.query_id), settings.txn_version
            message: WriterCommitMessage = self._stage_rows(
                iterator, write, query_id, batch_id, task
            )
            return message

    def commit(self, messages: _Messages) -> None:
        """Commit all rows in one transaction."""
        settings = self._settings
        with readable_errors():
            if settings.checkpoint is not None:
                commit_streaming(settings, messages, settings.txn_version, settings.sink_run)
            else:
                commit_batch_write(settings, messages, self._write_id)
                if settings.txn_app_id is None:
                    _tell_at_least_once(messages)

    def abort(self, messages: _Messages) -> None:
        """Drop the staged rows."""
        abort_staged(self._settings, messages)
        if self._settings.checkpoint is None:
            with closing(staged_reader(self._settings)) as staged:
                staged.remove_all(self._write_id)
