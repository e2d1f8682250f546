"""What tasks tell the driver that they have staged, and what it makes of it before it commits.

Pure decisions: `reader` reads and removes the files. One message of each task counts,
the one that Spark took. Whatever else attempts have staged is only ever removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from txnlog_kafka.operations.producer import StagedPartition, StagedPiece
from txnlog_kafka.wire.invariants import check
from txnlog_spark.errors import StagedBatchesInvalid, TxnLogError
from txnlog_spark.staging.chunks import IndexSummary, StagedChunk
from txnlog_spark.staging.frames import Forgotten, TaskAttempt

MESSAGE_VERSION = 4


@dataclass(frozen=True)
class StagedOutput:
    """What one task attempt staged, and where.

    With `inline` the bytes and their `index` are in the message; with `path` they are in that file
    of the staging server, or of `stagingLocation`, the index behind the bytes. `partition_counts`
    is what the partitioner went by, so that the committer can see that all tasks saw the same
    topic.
    """

    attempt: TaskAttempt
    query_id: str
    task_attempt_id: int
    summary: IndexSummary
    partition_counts: dict[str, int] = field(default_factory=dict)
    inline: bytes | None = None
    index: bytes | None = None
    path: str | None = None
    host: str = ""
    version: int = MESSAGE_VERSION

    @property
    def batch_id(self) -> int:
        """The micro-batch."""
        return self.attempt.batch_id

    @property
    def run_id(self) -> str:
        """The run of the query."""
        return self.attempt.run_id


Message = TypeVar("Message", bound=StagedOutput)


class PieceSource(NamedTuple):
    """Where a piece is: `StagedPiece.source`."""

    message: StagedOutput
    position: int


def complete_messages(messages: Sequence[Message | None]) -> list[Message]:
    """All tasks' messages. A missing one means rows that would be lost. Raises TxnLogError."""
    staged = [message for message in messages if message is not None]
    if len(staged) != len(messages):
        raise TxnLogError(
            f"{len(messages) - len(staged)} of {len(messages)} tasks gave no commit message: "
            "nothing was committed, restart the query to replay the batch"
        )
    return staged


def check_one_batch(messages: Sequence[StagedOutput], batch_id: int) -> None:
    """Raises InvariantViolation unless all are of one sink of a query and of this batch."""
    for message in messages:
        check(message.batch_id == batch_id, "a task of another batch", message=message.batch_id)
        check(
            message.query_id == messages[0].query_id,
            "a task of another query",
            message=message.query_id,
        )
        check(
            message.attempt.write == messages[0].attempt.write,
            "a task that stages elsewhere",
            message=message.attempt.write,
        )


def check_versions(messages: Sequence[StagedOutput]) -> None:
    """Raise StagedBatchesInvalid for a message of another version of this package."""
    for message in messages:
        if message.version != MESSAGE_VERSION:
            raise StagedBatchesInvalid(
                f"a task staged batches in version {message.version}, the driver reads "
                f"{MESSAGE_VERSION}: install one version of txnlog_spark on all machines"
            )


def merge_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The partition counts that all tasks agree on. Raises TxnLogError when they do not.

    Rows of one key would be in two partitions; the replayed batch sees the new count in all tasks.
    """
    merged: dict[str, int] = {}
    for part in counts:
        for topic, count in part.items():
            if merged.setdefault(topic, count) != count:
                raise TxnLogError(
                    f"partitions were added to topic {topic} while the batch ran ({merged[topic]} "
                    f"and {count} were seen): nothing was committed, restart the query"
                )
    return merged


def plan_partitions(
    messages: Sequence[Message], index_of: Callable[[Message], Sequence[StagedChunk]]
) -> list[StagedPartition]:
    """Each partition's record batches, read when they are needed; in the order of the tasks.

    `index_of` is asked for messages that have chunks. Raises what it does, and
    StagedBatchesInvalid for a message of another version of this package.
    """
    check_versions(messages)
    found: dict[tuple[str, int], list[StagedPiece]] = {}
    for message in messages:
        if not message.summary.chunk_count:
            continue
        for chunk in index_of(message):
            source = PieceSource(message, chunk.position)
            piece = StagedPiece(chunk.size_bytes, chunk.record_count, source, chunk.checksum)
            found.setdefault((chunk.topic, chunk.partition), []).append(piece)
    return [
        StagedPartition(topic, partition, tuple(pieces))
        for (topic, partition), pieces in sorted(found.items())
    ]


def over_after_commit(write: str, batch_id: int, run_id: str) -> list[Forgotten]:
    """All of `batch_id` and of the batches before it, leftovers of lost attempts too.

    Later attempts of this planning of the batch are refused.
    """
    forgotten = [Forgotten(write, up_to_batch=batch_id)]
    if run_id:
        forgotten.append(Forgotten(write, up_to_batch=batch_id, run_id=run_id))
    return forgotten


def over_after_failure(messages: Iterable[StagedOutput | None]) -> list[Forgotten]:
    """What the messages of a failed batch point to, and its attempts that gave no message.

    Later attempts of this planning of the batch are refused.
    """
    attempts = [message.attempt for message in messages if message is not None]
    batches = sorted({(each.write, each.batch_id, each.run_id) for each in attempts})
    return [Forgotten(write, batch_id=batch, run_id=run) for write, batch, run in batches]
