"""What the errors of a query advise the person to do who runs it."""

from __future__ import annotations

from simulation.hosts.checkpoint import Checkpoint
from txnlog_spark.errors import (
    AnotherOutput,
    BatchReplanned,
    CommittedOffsetsMoved,
    GroupHasOffsets,
    ProgressBehind,
    ProgressError,
)


def is_of_another_topic(error: ProgressError, topic: str) -> bool:
    """Whether the batch is in the topic of before: to be started with that one again."""
    return isinstance(error, AnotherOutput) and f"started with topic {topic!r}" in str(error)


def is_of_a_sink_that_lags(error: ProgressError, sinks: int) -> bool:
    """Whether it may be that another driver is ahead by several batches: of a sink without a group
    nobody can tell. Started again it knows what is planned."""
    return isinstance(error, BatchReplanned) and sinks > 1


def is_explained(error: ProgressError, checkpoint: Checkpoint, *, is_only: bool) -> bool:
    """Whether what was done to the checkpoints explains that a person has to look."""
    if isinstance(error, GroupHasOffsets) and checkpoint.starts_committed:
        return False  # it begins where the group is
    if isinstance(error, CommittedOffsetsMoved | GroupHasOffsets):
        return not is_only or checkpoint.tail_losses > 0
    # A batch that was begun may be planned again without rows, and its sink not be called for it.
    return isinstance(error, BatchReplanned | ProgressBehind) and checkpoint.tail_losses > 0
