"""Bugs planted in how a commit takes a batch for the committed one, where a checkpoint has losses.

Each is what a plausible slip in `txnlog_spark.commit` would be.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from planted.commit_plants import replaced
from simulation.world import Plant
from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit import checkpoint_files, judgement
from txnlog_spark.commit import facts as facts_module
from txnlog_spark.commit.judgement import moved_since
from txnlog_spark.commit.plan import CommitPlan, Evidence, Progress


def _state_not_asked_for(_: Any) -> contextlib.AbstractContextManager[None]:
    """A stateful query's batch is skipped by its offsets, as if these pinned its output."""

    def stateless(_: CommitPlan) -> Operation[bool]:
        yield from ()
        return False

    return replaced(facts_module, "has_state", stateless)


def _plan_not_flushed(_: Any) -> contextlib.AbstractContextManager[None]:
    """The transaction begins while Spark's plan of its batch may still be lost with the power."""

    def unflushed(_: str) -> Operation[None]:
        yield from ()

    return replaced(checkpoint_files, "flush_file", unflushed)


def _gone_forward_anywhere(_: Any) -> contextlib.AbstractContextManager[None]:
    """A backup goes forward with a batch that does not begin where the output ends."""

    def anywhere(_: CommitPlan, found: Progress, facts: Evidence) -> bool:
        del found
        return not facts.has_state

    return replaced(judgement, "_begins_at_end", anywhere)


@contextlib.contextmanager
def _purged_entry_taken_for_nothing(_: Any) -> Iterator[None]:
    """The group is compared with what Spark's log says only, and a purged entry says nothing.

    Nor is it compared with where a function's batch begins, which would show the same.
    """

    def by_the_log(plan: CommitPlan, facts: Evidence) -> dict[TopicPartition, int | None] | None:
        return None if facts.left is None else moved_since(plan, facts)

    with (
        replaced(judgement, "moved_since", by_the_log),
        replaced(judgement, "_begins_early", lambda *_: False),
    ):
        yield


CHECKPOINT_PLANTS: dict[str, Plant] = {
    "state-not-asked-for": _state_not_asked_for,
    "plan-not-flushed": _plan_not_flushed,
    "gone-forward-anywhere": _gone_forward_anywhere,
    "purged-entry-taken-for-nothing": _purged_entry_taken_for_nothing,
}
"""Plants by name; the canary test runs each of them until it is caught."""
