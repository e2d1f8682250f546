"""Commit messages of the tasks, and the driver's decisions about them before it commits.

This module is pure; `reader` reads and removes the files. Spark hands the driver one message of
each task. Everything else that attempts have staged is removed and never committed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from txnlog_kafka.operations.producer import StagedChunk
from txnlog_kafka.wire.invariants import check
from txnlog_spark.errors import StagedBatchesInvalid, TxnLogError
from txnlog_spark.staging.chunks import IndexSummary
from txnlog_spark.staging.frames import Forgotten, TaskAttempt

MESSAGE_VERSION = 4


@dataclass(frozen=True)
class StagedOutput:
    """Staged output of one task attempt, and its location.

    With `inline`, the bytes and their `index` are in the message. With `path`, they are in that
    file of the staging server or of `stagingLocation`, and the index follows the bytes.
    `partition_counts` are the counts that the partitioner used: the committer checks that all tasks
    saw the same topic.
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
        """Number of the micro-batch."""
        return self.attempt.batch_id

    @property
    def run_id(self) -> str:
        """Id of this planning of the batch, see `TaskAttempt.run_id`."""
        return self.attempt.run_id


Message = TypeVar("Message", bound=StagedOutput)


def complete_messages(messages: Sequence[Message | None]) -> list[Message]:
    """Return all messages. Raises TxnLogError if a task sent no message: its rows would be lost."""
    staged = [message for message in messages if message is not None]
    if len(staged) != len(messages):
        raise TxnLogError(
            f"{len(messages) - len(staged)} of {len(messages)} tasks gave no commit message: "
            "nothing was committed; restart the query to replay the batch"
        )
    return staged


def check_one_batch(messages: Sequence[StagedOutput], batch_id: int) -> None:
    """Raise InvariantViolation unless all messages are of one sink of one query and this batch."""
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
    """Return the partition counts of all tasks. Raises TxnLogError if two tasks differ.

    Different counts would put rows of one key into two partitions. When the batch is replayed, all
    tasks see the new count.
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


def plan_chunks(
    messages: Sequence[Message], index_of: Callable[[Message], Sequence[StagedChunk]]
) -> list[StagedChunk]:
    """Return the staged chunks by partition, each partition's in the order of the tasks.

    `index_of` is called for each message that has chunks. Raises the errors of `index_of`, and
    StagedBatchesInvalid for a message of another version of this package.
    """
    check_versions(messages)
    indexed = (index_of(message) for message in messages if message.summary.chunk_count)
    chunks = itertools.chain.from_iterable(indexed)
    return sorted(chunks, key=lambda chunk: (chunk.topic, chunk.partition))


def over_after_commit(write: str, batch_id: int, run_id: str) -> list[Forgotten]:
    """Return orders to forget `batch_id` and all earlier batches, lost attempts included.

    With `run_id`, the server then refuses late attempts of this planning of the batch.
    """
    forgotten = [Forgotten(write, up_to_batch=batch_id)]
    if run_id:
        forgotten.append(Forgotten(write, up_to_batch=batch_id, run_id=run_id))
    return forgotten


def over_after_failure(messages: Iterable[StagedOutput | None]) -> list[Forgotten]:
    """Return orders to forget a failed batch, including attempts that sent no message.

    The server then refuses late attempts of this planning of the batch.
    """
    attempts = [message.attempt for message in messages if message is not None]
    batches = sorted({(each.write, each.batch_id, each.run_id) for each in attempts})
    return [Forgotten(write, batch_id=batch, run_id=run) for write, batch, run in batches]
