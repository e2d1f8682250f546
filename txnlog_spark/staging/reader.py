"""The committer's side of staging: plan what all tasks staged, read it piece by piece, remove it.

Whatever is read is checked against what the task's commit message says, the index here and the
bytes where they are produced (`StagedPiece.check`), so that a torn file, a server that answers
with something else, or another attempt's bytes are an error and never data.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import cast

from txnlog_kafka.operations.producer import Bytes, StagedPartition, StagedPiece
from txnlog_kafka.wire.invariants import present
from txnlog_spark.errors import StagedBatchesInvalid, TxnLogError
from txnlog_spark.log_once import warn_once
from txnlog_spark.staging.address import StagingSettings, running_server
from txnlog_spark.staging.channel import Channel, ServerAnswered, ServerGone
from txnlog_spark.staging.chunks import IndexDamaged, StagedChunk, decode_index
from txnlog_spark.staging.frames import DATA_BYTES_MAX, Forgotten, Kind
from txnlog_spark.staging.messages import StagedBatches
from txnlog_spark.staging.staged_files import StagedFiles
from txnlog_spark.staging.staged_output import (
    PieceSource,
    StagedOutput,
    over_after_commit,
    over_after_failure,
    plan_partitions,
)

logger = logging.getLogger(__name__)

REPLAY = "nothing was committed, restart the query to replay the batch"


class StagedReader:
    """Reads and removes what tasks staged, for one commit; close it afterwards.

    `files` are those of stagingLocation; without them the staging server is asked, which is found
    by `settings` and never started here: what one had that is gone is gone.
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
        return self._bytes(message, position, piece.size_bytes)

    def _index(self, message: StagedOutput) -> list[StagedChunk]:
        summary = message.summary
        if message.index is not None:
            encoded: bytes | bytearray = message.index
        elif message.path is not None:
            encoded = self._file(message.path, summary.size_bytes, summary.index_bytes, message)
        else:
            value = [message.attempt, summary.size_bytes]
            encoded = self._ask(message, Kind.GET_INDEX, value, Kind.DATA)
        try:
            return decode_index(encoded, summary)
        except IndexDamaged as error:
            raise StagedBatchesInvalid(
                f"{error}: task attempt {message.task_attempt_id} on {message.host} staged, in "
                f"{message.path or 'the staging server'}, what is not there any more. {REPLAY}"
            ) from error

    def _bytes(self, message: StagedOutput, position: int, size_bytes: int) -> Bytes:
        if message.inline is not None:
            return memoryview(message.inline)[position : position + size_bytes]
        if message.path is not None:
            return self._file(message.path, position, size_bytes, message)
        end = position + size_bytes
        parts = [
            self._ask(
                message,
                Kind.READ,
                [message.attempt, start, min(DATA_BYTES_MAX, end - start)],
                Kind.DATA,
            )
            for start in range(position, end, DATA_BYTES_MAX)
        ]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _file(self, path: str, position: int, size_bytes: int, message: StagedOutput) -> bytes:
        files = present(self._files, "a task stages in files where stagingLocation is set")
        return files.read(path, position, size_bytes, message.host)

    def _ask(self, message: StagedOutput, kind: Kind, value: object, wanted: Kind) -> bytearray:
        try:
            channel = present(self._connected(), "a connection")
            return channel.ask(kind, value, wanted)
        except (ServerGone, ServerAnswered) as error:
            self.close()
            raise StagedBatchesInvalid(
                f"what task attempt {message.task_attempt_id} on {message.host or 'an executor'} "
                f"staged cannot be read from the driver's staging server ({error}): {REPLAY}"
            ) from error

    def _connected(self) -> Channel:
        """Raises ServerGone."""
        if self._channel is None:
            self._channel = running_server(self._settings)
        if self._channel is None:
            raise ServerGone("it has ended, and a new one has nothing of this batch")
        return self._channel

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
            if isinstance(error, ServerGone) and not isinstance(error.__cause__, TimeoutError):
                return
            warn_once(
                logger,
                ("not forgotten", str(error)),
                "what was staged for %s is not removed: %s",
                forgotten[0].write,
                error,
            )
