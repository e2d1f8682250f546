"""The committer's side of staging: plan the output of all tasks, read it chunk by chunk, remove it.

The committer runs on the machine of the staging server and reads the server's files directly.
Everything that it reads is checked against the tasks' commit messages: the index here, the bytes
where they are produced (`StagedChunk.check`). So a torn file or the bytes of another attempt are an
error and never data.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial

from txnlog_kafka.operations.producer import Bytes, StagedChunk
from txnlog_kafka.wire.invariants import present
from txnlog_spark.errors import StagedBatchesInvalid, TxnLogError
from txnlog_spark.log_once import warn_once
from txnlog_spark.staging.address import StagingSettings, running_server, silent_server
from txnlog_spark.staging.channel import Channel, ServerAnswered, ServerGone, ServerSilent
from txnlog_spark.staging.chunks import IndexDamaged, decode_index
from txnlog_spark.staging.frames import Forgotten, Kind
from txnlog_spark.staging.messages import StagedBatches
from txnlog_spark.staging.staged_files import StagedFiles
from txnlog_spark.staging.staged_output import (
    StagedOutput,
    over_after_commit,
    over_after_failure,
    plan_chunks,
)
from txnlog_spark.storage.local import LocalFiles

logger = logging.getLogger(__name__)

REPLAY = "nothing was committed, restart the query to replay the batch"


class StagedReader:
    """Reads and removes staged output, for one commit; close it afterwards.

    `files` are the files of stagingLocation. Without `files` the staged output is in files of the
    staging server. The reader connects to that server only to have files removed, and never starts
    it: the output of a server that has ended is lost.
    """

    def __init__(self, settings: StagingSettings, files: StagedFiles | None) -> None:
        self._settings = settings
        self._files = files
        self._channel: Channel | None = None

    def close(self) -> None:
        """Close the connection to the staging server."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    # ------------------------------------------------------------------ reading

    def plan(self, messages: Sequence[StagedBatches]) -> list[StagedChunk]:
        """Return the staged chunks by partition, each partition's in the order of the tasks.

        Their bytes are read later. Raises StagedBatchesInvalid for a message of another version of
        this package, and for an index that is gone or is another attempt's.
        """
        return plan_chunks(messages, self._index)

    def _index(self, message: StagedOutput) -> list[StagedChunk]:
        summary, source = message.summary, partial(self._read_output, message)
        encoded = message.index or self._file(message, summary.size_bytes, summary.index_bytes)
        try:
            return decode_index(encoded, summary, source)
        except IndexDamaged as error:
            raise StagedBatchesInvalid(
                f"{error}: the rows that task attempt {message.task_attempt_id} on {message.host} "
                f"staged in {message.path or 'its message'} are gone; {REPLAY}"
            ) from error

    def _read_output(self, message: StagedOutput, position: int, size: int) -> Bytes:
        """Return bytes of a task's output. Raises StagedBatchesInvalid.

        No file stays open between two chunks: all partitions of a batch are read side by side, and
        a topic may have more partitions than a process may have open files.
        """
        if message.inline is not None:
            return memoryview(message.inline)[position : position + size]
        return self._file(message, position, size)

    def _file(self, message: StagedOutput, position: int, size: int) -> bytes | bytearray:
        path = present(message.path, "what is not in the message is in a file")
        if self._files is not None:
            return self._files.read(path, position, size, message.host)
        try:
            return LocalFiles().read_range(path, position, size)
        except OSError as error:
            raise StagedBatchesInvalid(
                f"the rows that task attempt {message.task_attempt_id} on "
                f"{message.host or 'an executor'} staged cannot be read on the driver, in {path} "
                f"({error.strerror or error}): the staging server has ended, or another run has "
                f"removed them; {REPLAY}"
            ) from error

    # ------------------------------------------------------------------ removing

    def remove_batches(self, write: str, batch_id: int, run_id: str) -> None:
        """Remove the staged output of `batch_id` and all earlier batches, lost attempts
        included."""
        self._forget_attempts(over_after_commit(write, batch_id, run_id))
        if self._files is not None:
            self._files.remove_batches(write, batch_id)

    def remove_other_runs(self, write: str, batch_id: int, run_id: str) -> None:
        """Remove the output that earlier runs of the query staged for this batch: each crash leaves
        a whole copy.

        Call this only after fencing the other runs. A fenced driver may still read its staged rows,
        but cannot commit them. The output of this run's attempts stays.

        A driver that was fenced and does not know it yet may remove the output of the run that
        fenced it, unless that run has begun its batch (`journal`). The run that lost its output
        stops, and its restart stages the batch again.
        """
        if not run_id:
            return
        self._forget_attempts([Forgotten(write, but_run=run_id)])
        if self._files is not None:
            self._files.remove_other_runs(write, batch_id, run_id)

    def remove_all(self, write: str) -> None:
        """Remove everything that a query or a batch write has staged."""
        self._forget_attempts([Forgotten(write)])
        if self._files is not None:
            self._files.remove_all(write)

    def abandon(self, messages: Iterable[StagedBatches | None]) -> None:
        """Remove the output of a failed batch, including attempts that sent no message."""
        given = [message for message in messages if message is not None]
        for message in given:
            if message.path is not None and self._files is not None:
                self._files.remove_file(message.path)
        self._forget_attempts(over_after_failure(given))

    def _forget_attempts(self, forgotten: Sequence[Forgotten]) -> None:
        """Tell the staging server to forget attempts. A server that has ended needs no order.

        Never raises: the batch may be committed, and an error would say that it is not. Output that
        cannot be removed costs disk space until the application ends, so it is logged once.
        """
        if self._files is not None or not forgotten:
            return
        try:
            if self._channel is None:
                self._channel = running_server(self._settings)
            if self._channel is not None:
                self._channel.ask(Kind.FORGET, forgotten, Kind.DONE)
        except ServerAnswered:
            self.close()
        except (ServerGone, TxnLogError, OSError) as error:
            self.close()
            if isinstance(error, ServerGone) and not isinstance(error, ServerSilent):
                return
            is_silent = isinstance(error, ServerSilent)
            reason = silent_server(self._settings) if is_silent else str(error)
            warn_once(
                logger,
                ("not forgotten", reason),
                "the rows that were staged for %s are not removed: %s",
                forgotten[0].write,
                reason,
            )
