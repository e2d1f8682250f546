"""What the brokers say of a query and its group, as far as the judgement needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.metadata import confirm_missing
from txnlog_kafka.operations.offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    fetch_committed,
    list_offsets,
)
from txnlog_kafka.operations.operation_group import side_by_side
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.checkpoint import is_repartitioning, read_logged_offsets
from txnlog_spark.commit.judgement import (
    Evidence,
    foreign_sources,
    has_gap,
    is_committed,
    is_missing,
    previous_batch,
    unexpected_positions,
)
from txnlog_spark.commit.plan import CommitPlan, Progress
from txnlog_spark.commit.progress import fetch_progress, newest_progress


def visible_progress(session: Session, plan: CommitPlan) -> Operation[Progress | None]:
    """The progress that anybody sees, without waiting for what is undecided.

    It may be old, and never too new: what is visible is committed, and progress does not go back.
    So it can tell that a batch is done, before anybody is fenced, and nothing else.
    """
    committer = plan.committer
    committed = yield from fetch_committed(
        session, committer.progress_group_id, require_stable=False
    )
    return newest_progress(committer.output.query_id, committed.values())


def stable_progress(session: Session, plan: CommitPlan) -> Operation[Progress | None]:
    """The query's progress after a takeover, when nothing under the transactional id is open."""
    group_id, query_id = plan.committer.progress_group_id, plan.committer.output.query_id
    return (
        yield from fetch_progress(session, group_id, query_id, partitions=[plan.committer.place])
    )


def stable_facts(session: Session, plan: CommitPlan) -> Operation[Evidence]:
    """What `judge` needs to know, after InitProducerId; one round where nothing is special."""
    found, group = yield from side_by_side(
        session.monotonic_ms, stable_progress(session, plan), stable_group(session, plan)
    )
    if not plan.committer.is_query or is_committed(plan, found):
        return Evidence(found, group)
    if is_missing(plan, found):
        gone = yield from confirm_missing(session, [plan.committer.place])
        return Evidence(found, group, progress_topic_is_gone=bool(gone))
    previous = yield from _previous(plan, found)
    unexpected = unexpected_positions(plan, group, previous)
    return Evidence(
        found,
        group,
        previous=previous,
        log_starts=(yield from _log_starts(session, unexpected)),
        log_ends=(yield from _log_ends(session, foreign_sources(plan, found))),
        gap_is_empty=(yield from _gap_is_empty(plan, found)),
    )


def stable_group(session: Session, plan: CommitPlan) -> Operation[dict[TopicPartition, int]]:
    """The committed offsets of a query's group, {} without one."""
    if plan.group_id is None or not plan.committer.is_query:
        return {}
    partitions = plan.batch.source_offsets
    committed = yield from fetch_committed(session, plan.group_id, partitions=partitions)
    return {p: each.committed_offset for p, each in committed.items()}


def _previous(plan: CommitPlan, found: Progress | None) -> Operation[Mapping[TopicPartition, int]]:
    batch_id = previous_batch(plan, found)
    if batch_id is None:
        return {}
    logged = yield from read_logged_offsets(plan.committer.checkpoint, batch_id)
    return {} if logged is None else logged.source_offsets


def _gap_is_empty(plan: CommitPlan, found: Progress | None) -> Operation[bool]:
    """Whether all batches that the progress lacks are Spark's own, without any input."""
    if found is None or not has_gap(plan, found):
        return True
    for batch_id in range(found.next_batch_id, plan.batch.batch_id):
        if not (yield from is_repartitioning(plan.committer.checkpoint, batch_id)):
            return False
    return True


def _log_starts(
    session: Session, partitions: Iterable[TopicPartition]
) -> Operation[dict[TopicPartition, int]]:
    specs = dict.fromkeys(partitions, EARLIEST_TIMESTAMP)
    starts = yield from list_offsets(session, specs, read_committed=False)
    return {p: each.offset for p, each in starts.items()}


def _log_ends(
    session: Session, sources: Iterable[Mapping[TopicPartition, int]]
) -> Operation[dict[TopicPartition, int]]:
    offsets = [p for source in sources for p in source]
    missing = yield from confirm_missing(session, offsets)
    specs = {p: LATEST_TIMESTAMP for p in offsets if p not in missing}
    ends = yield from list_offsets(session, specs, read_committed=False)
    return {p: each.offset for p, each in ends.items()}
