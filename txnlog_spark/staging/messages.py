"""The commit message of a task attempt, and how much of its output may travel inside it."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from txnlog_spark.options.option_types import size_in_bytes
from txnlog_spark.staging.staged_output import StagedOutput

INLINE_BYTES_MAX = 900 * 1000
"""Largest output that travels inside the commit message, without a server or a file. The whole
message stays below 1 MiB: from 1 MiB on, Spark sends a task's result through its block manager."""

INLINE_TOTAL_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of all commit messages of one batch together: Spark's driver collects them as the job's
result."""
INLINE_TASKS_MAX = 48
INLINE_BYTES_MIN = 1024
RESULT_SIZE_PROPERTY = "spark.driver.maxResultSize"
RESULT_SIZE_SHARE = 4
"""Divisor of spark.driver.maxResultSize: the messages may take a quarter of it. If the results of a
job are larger than maxResultSize, Spark fails the job, and every replay of the batch."""


@dataclass(frozen=True)
class StagedBatches(StagedOutput, WriterCommitMessage):
    """`StagedOutput` as Spark takes it from a task to the driver."""


def inline_limit(task_index: int, result_size: str | None = None) -> int:
    """Return how many bytes a task's commit message may hold; all messages of a batch stay bounded.

    A task knows its own index, but not the number of tasks. The first INLINE_TASKS_MAX tasks get
    the whole limit. Each later task gets a share that shrinks with its index, a harmonic series, so
    up to 10,000 tasks stay within INLINE_TOTAL_BYTES_MAX together. Every task may use
    INLINE_BYTES_MIN, which is less than Spark's own bookkeeping for a task. `result_size` is the
    text of spark.driver.maxResultSize: a small value lowers all limits.
    """
    total = INLINE_TOTAL_BYTES_MAX
    allowed = size_in_bytes(result_size)
    if allowed:
        total = min(total, allowed // RESULT_SIZE_SHARE)
    first = min(INLINE_BYTES_MAX, total * 2 // 3 // INLINE_TASKS_MAX)
    if task_index < INLINE_TASKS_MAX:
        return max(first, INLINE_BYTES_MIN)
    return max(total // 24 // task_index, INLINE_BYTES_MIN)
