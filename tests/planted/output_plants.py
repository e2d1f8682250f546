"""Bugs planted in who is who: copies and moved checkpoints, topics, several sinks of a query."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from planted.commit_plants import replaced
from simulation.world import Plant
from txnlog_spark.commit import journal, judgement, query
from txnlog_spark.commit.judgement import check_output
from txnlog_spark.commit.output import Output, moved_or_copied
from txnlog_spark.commit.plan import CommitPlan, Committer, Evidence
from txnlog_spark.errors import CheckpointCopied


def _output_not_compared(_: Any) -> contextlib.AbstractContextManager[None]:
    """A batch that another output has is skipped."""

    def anything(*_: object) -> None:
        """Accept anything, in place of the check."""

    return replaced(judgement, "check_output", anything)


def _topic_not_compared(_: Any) -> contextlib.AbstractContextManager[None]:
    """An output is the same whatever its topic is."""
    original = check_output

    def of_any_topic(plan: CommitPlan, facts: Evidence) -> None:
        found = facts.progress
        if found is not None:
            found = dataclasses.replace(found, target=plan.committer.output.target)
        original(plan, dataclasses.replace(facts, progress=found))

    return replaced(judgement, "check_output", of_any_topic)


def _recognised_as(
    change: Callable[[Callable[[], Output], Output, Output], Output],
) -> contextlib.AbstractContextManager[None]:
    original = moved_or_copied

    def recognised(output: Output, before: Output, **known: bool) -> Output:
        return change(lambda: original(output, before, **known), output, before)

    return replaced(query, "moved_or_copied", recognised)


def _copy_keeps_the_progress(_: Any) -> contextlib.AbstractContextManager[None]:
    """A copy goes on with the progress, and the ids, of the original."""

    def kept(rightly: Callable[[], Output], output: Output, before: Output) -> Output:
        rightly()
        return dataclasses.replace(output, copy=before.copy)

    return _recognised_as(kept)


def _copy_with_one_id_not_refused(_: Any) -> contextlib.AbstractContextManager[None]:
    """A copy with the transactional id of the original is taken for the original, moved."""

    def moved(rightly: Callable[[], Output], output: Output, before: Output) -> Output:
        try:
            return rightly()
        except CheckpointCopied:
            return dataclasses.replace(output, copy=before.copy)

    return _recognised_as(moved)


def _moved_taken_for_a_copy(_: Any) -> contextlib.AbstractContextManager[None]:
    """A checkpoint in another place is another query's: its progress begins again."""

    def copied(_: Callable[[], Output], output: Output, before: Output) -> Output:
        if output.checkpoint == before.checkpoint:
            return dataclasses.replace(output, copy=before.copy)
        return dataclasses.replace(output, copy=output.digest[:8])

    return _recognised_as(copied)


def _ids_of_the_original_fenced(_: Any) -> contextlib.AbstractContextManager[None]:
    """A copy has the original's recorded outputs, and fences them as its own of before."""

    def shared(committer: Committer) -> str:
        return f"{committer.folder}/outputs"

    return replaced(journal, "outputs_folder", shared)


def _one_folder_for_all_sinks(_: Any) -> contextlib.AbstractContextManager[None]:
    """The sinks of a query keep what they have begun in one place."""

    def shared(checkpoint: str, sink_name: str = "") -> str:
        del sink_name
        return f"{checkpoint}/txnlog"

    return replaced(journal, "journal_folder", shared)


OUTPUT_PLANTS: dict[str, Plant] = {
    "output-not-compared": _output_not_compared,
    "topic-not-compared": _topic_not_compared,
    "copy-keeps-the-progress": _copy_keeps_the_progress,
    "copy-with-one-id-not-refused": _copy_with_one_id_not_refused,
    "moved-taken-for-a-copy": _moved_taken_for_a_copy,
    "ids-of-the-original-fenced": _ids_of_the_original_fenced,
    "one-folder-for-all-sinks": _one_folder_for_all_sinks,
}
"""Plants by name; the canary test runs each of them until it is caught."""
