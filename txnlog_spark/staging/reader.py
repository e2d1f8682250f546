"""The committer's side of staging: plan what all tasks staged, read it piece by piece, remove it.

The committer is on the machine of the staging server, whose files it reads itself. Whatever is read
is checked against what the task's commit message says, the index here and the bytes where they are
produced (`StagedPiece.check`), so that a torn file or another attempt's bytes are an error and
never data.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import cast

from txnlog_kafka.operations.producer import Bytes, StagedPartition, StagedPiece
from txnlog_kafka.wire.invariants import present
from txnlog_spark.errors import StagedBatchesInvalid, TxnLogError
from txnlog_spark.log_once import warn_once
from txnlog_spark.staging.address import StagingSettings, running_server, silent_server
from txnlog_spark.staging.channel import Channel, ServerAnswered, ServerGone, ServerSilent
from txnlog_spark.staging.chunks import IndexDamaged, StagedChunk, decode_index
from txnlog_spark.staging.frames import Forgotten, Kind
from txnlog_spark.staging.messages import StagedBatches
from txnlog_spark.staging.staged_files import StagedFiles
from txnlog_spark.staging.staged_output import (
    PieceSource,
    StagedOutput,
    over_after_commit,
    over_after_failure,
    plan_partitions,
)
from txnlog_spark.storage.local import LocalFiles

logger = logging.getLogger(__name__)

REPLAY = "nothing was committed, restart the query to replay the batch"


class StagedReader:
    """Reads and removes what tasks staged, for one commit; close it afterwards.

    `files` are those of stagingLocation; without them they are the staging server's, which is found
    by `settings` to have them removed, and never started here: what one had that is gone is gone.
    """

    def __init__(self, settings: StagingSettings, files: StagedFiles | None) -> None:
        self._settings = settings
        self._files = files
        self._channel: Channel | None = None

    def close(self) -> None:
        """Close the connection to the server."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    # ------------------------------------------------------------------ reading

    def plan(self, messages: Sequence[StagedBatches]) -> list[StagedPartition]:
        """Each partition's record batches, read when they are needed; in the order of the tasks.

        Raises StagedBatchesInvalid for a message of another version of this package, and where an
        index is gone or another one.
        """
        return plan_partitions(messages, self._index)

    def read(self, piece: StagedPiece) -> Bytes:
        """The bytes of a piece of `plan`, unchecked. Raises StagedBatchesInvalid.

        No file stays open between two pieces: all partitions of a batch are read side by side, and
        a topic may have more of them than a process may have open files.
        """
        message, position = cast("PieceSource", piece.source)
        if message.inline is not None:
            return memoryview(message.inline)[position : position + piece.size_bytes]
        return self._file(message, position, piece.size_bytes)

    def _index(self, message: StagedOutput) -> list[StagedChunk]:
        summary = message.summary
        encoded = message.index or self._file(message, summary.size_bytes, summary.index_bytes)
        try:
            return decode_index(encoded, summary)
        except IndexDamaged as error:
            raise StagedBatchesInvalid(
                f"{error}: task attempt {message.task_attempt_id} on {message.host} staged, in "
                f"{message.path or 'its message'}, what is not there any more. {REPLAY}"
            ) from error

    def _file(self, message: StagedOutput, position: int, size: int) -> bytes | bytearray:
        path = present(message.path, "what is not in the message is in a file")
        if self._files is not None:
            return self._files.read(path, position, size, message.host)
        try:
            return LocalFiles().read_range(path, position, size)
        except OSError as error:
            raise StagedBatchesInvalid(
                f"what task attempt {message.task_attempt_id} on {message.host or 'an executor'} "
                f"staged cannot be read on the driver, in {path} ({error.strerror or error}): the "
                f"staging server has ended, or another run has removed it. {REPLAY}"
            ) from error

    # ------------------------------------------------------------------ removing

    def remove_batches(self, write: str, batch_id: int, run_id: str) -> None:
        """All of `batch_id` and of the batches before it, leftovers of lost attempts too."""
        self._forget(over_after_commit(write, batch_id, run_id))
        if self._files is not None:
            self._files.remove_batches(write, batch_id)

    def remove_other_runs(self, write: str, batch_id: int, run_id: str) -> None:
        """What earlier runs of the query staged for this batch: each crash leaves a whole copy.

        Only for who has fenced those runs: a driver of one of them that still reads what it staged
        could not commit it. What this run's attempts stage stays. A run that was fenced itself and
        does not know it yet may remove what the one that fenced it has staged, unless that has
        begun its batch (`journal`): that one stops then, and its restart stages again.
        """
        if not run_id:
            return
        self._forget([Forgotten(write, but_run=run_id)])
        if self._files is not None:
            self._files.remove_other_runs(write, batch_id, run_id)

    def remove_all(self, write: str) -> None:
        """Everything that a query or a batch write has staged."""
        self._forget([Forgotten(write)])
        if self._files is not None:
            self._files.remove_all(write)

    def abandon(self, messages: Iterable[StagedBatches | None]) -> None:
        """What the messages of a failed batch point to, and its attempts that gave no message."""
        given = [message for message in messages if message is not None]
        for message in given:
            if message.path is not None and self._files is not None:
                self._files.remove_file(message.path)
        self._forget(over_after_failure(given))

    def _forget(self, forgotten: Sequence[Forgotten]) -> None:
        """A server that is gone has nothing to forget.

        Raises nothing, whatever is in the way: the batch may be committed, and an error would say
        that it is not.
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
                "what was staged for %s is not removed: %s",
                forgotten[0].write,
                reason,
            )
