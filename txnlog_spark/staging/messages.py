"""The commit message of a task attempt, and how much of its output may travel inside it."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from txnlog_spark.options.option_types import size_in_bytes
from txnlog_spark.staging.staged_output import StagedOutput

INLINE_BYTES_MAX = 900 * 1000
"""Staged batches up to this size travel in the commit message: no server, no file. With all around
it a message stays below the 1 MiB from which on Spark takes results by a detour."""

INLINE_TOTAL_BYTES_MAX = 64 * 1024 * 1024
"""All commit messages of a batch together: Spark's driver collects them as the job's result."""
INLINE_TASKS_MAX = 48
INLINE_BYTES_MIN = 1024
RESULT_SIZE_PROPERTY = "spark.driver.maxResultSize"
RESULT_SIZE_SHARE = 4
"""Of spark.driver.maxResultSize, for the messages. Spark fails a job whose results are larger, and
every replay of the batch."""


@dataclass(frozen=True)
class StagedBatches(StagedOutput, WriterCommitMessage):
    """`StagedOutput` as Spark takes it from a task to the driver."""


def inline_limit(task_index: int, result_size: str | None = None) -> int:
    """How much a task's commit message may hold, so that a batch's messages stay bounded in all.

    A task does not know how many there are, only its own index. So the first tasks may take the
    whole limit, and those behind them share a rest as a harmonic series does, of which 10,000 terms
    are hardly more than 1,000: together INLINE_TOTAL_BYTES_MAX up to 10,000 tasks. From there on
    what is always granted counts, less than Spark's own account of a task. `result_size` is
    spark.driver.maxResultSize as it was set: all limits shrink with it.
    """
    total = INLINE_TOTAL_BYTES_MAX
    allowed = size_in_bytes(result_size)
    if allowed:
        total = min(total, allowed // RESULT_SIZE_SHARE)
    first = min(INLINE_BYTES_MAX, total * 2 // 3 // INLINE_TASKS_MAX)
    if task_index < INLINE_TASKS_MAX:
        return max(first, INLINE_BYTES_MIN)
    return max(total // 24 // task_index, INLINE_BYTES_MIN)
