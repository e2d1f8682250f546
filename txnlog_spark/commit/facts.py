"""What the brokers say of a query and its group, as far as the judgement needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from txnlog_spark.commit.checkpoint import is_repartitioning, read_logged_offsets
from txnlog_spark.commit.judgement import Facts, asks_log_starts, questions, unexpected_positions
from txnlog_spark.commit.plan import CommitPlan, Progress
from txnlog_spark.commit.progress import fetch_progress, newest_progress
from txnlog_spark.protocol.effects import Operation
from txnlog_spark.protocol.metadata import confirm_missing
from txnlog_spark.protocol.offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    fetch_committed,
    list_offsets,
)
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.together import side_by_side
from txnlog_spark.wire.invariants import present
from txnlog_spark.wire.topics import TopicPartition


def visible_progress(session: Session, plan: CommitPlan) -> Operation[Progress | None]:
    """The progress that anybody sees, without waiting for what is undecided.

    It may be old, and never too new: what is visible is committed, and progress does not go back.
    So it can tell that a batch is done, before anybody is fenced, and nothing else.
    """
    who = plan.who
    committed = yield from fetch_committed(session, who.progress_group_id, require_stable=False)
    return newest_progress(who.output.query_id, committed.values())


def stable_progress(session: Session, plan: CommitPlan) -> Operation[Progress | None]:
    """The query's progress after a takeover, when nothing under the transactional id is open."""
    group_id, query_id = plan.who.progress_group_id, plan.who.output.query_id
    return (yield from fetch_progress(session, group_id, query_id, partitions=[plan.who.place]))


def stable_facts(session: Session, plan: CommitPlan) -> Operation[Facts]:
    """What `judge` needs to know, after InitProducerId; one round where nothing is special."""
    if plan.group_id is None:
        found = yield from stable_progress(session, plan)
        return (yield from facts_about(session, plan, found))
    found, group = yield from side_by_side(
        session.monotonic_ms,
        stable_progress(session, plan),
        committed_offsets(session, plan.group_id, plan.batch.source_offsets),
    )
    return (yield from facts_about(session, plan, found, group))


def facts_about(
    session: Session,
    plan: CommitPlan,
    found: Progress | None,
    group: Mapping[TopicPartition, int] | None = None,
) -> Operation[Facts]:
    """Ask what `judge` needs to know for this progress; `group` is what is known of the group."""
    asked = questions(plan, found)
    gone = False
    if asked.progress_topic:
        gone = bool((yield from confirm_missing(session, [plan.who.place])))
    gap_is_empty = asked.gap is not None and (yield from _is_empty(plan, asked.gap))
    previous: Mapping[TopicPartition, int] = {}
    if asked.previous is not None:
        logged = yield from read_logged_offsets(plan.who.checkpoint, asked.previous)
        previous = {} if logged is None else logged.source_offsets
        asked = replace(asked, group=asked.group | frozenset(previous))
    expected = []
    for each in asked.expected:
        expected.append((yield from committed_offsets(session, each.group_id, each.committed)))
    foreign = []
    for offsets in asked.foreign:
        foreign.append((yield from _log_ends(session, offsets)))
    if asked.group and group is None:
        group = yield from committed_offsets(session, plan.group_id, asked.group)
    group = {p: at for p, at in (group or {}).items() if p in asked.group}
    starts: dict[TopicPartition, int] = {}
    if asks_log_starts(plan, found):
        specs = dict.fromkeys(unexpected_positions(plan, group), EARLIEST_TIMESTAMP)
        listed = yield from list_offsets(session, specs, read_committed=False)
        starts = {p: each.offset for p, each in listed.items()}
    return Facts(
        progress=found,
        asked=asked,
        group=group,
        expected=tuple(expected),
        foreign=tuple(foreign),
        log_starts=starts,
        previous=previous,
        progress_topic_is_gone=gone,
        gap_is_empty=gap_is_empty,
    )


def _is_empty(plan: CommitPlan, first: int) -> Operation[bool]:
    """Whether all batches from `first` on to this one are Spark's own, without any input."""
    for batch_id in range(first, plan.batch.batch_id):
        if not (yield from is_repartitioning(plan.who.checkpoint, batch_id)):
            return False
    return True


def committed_offsets(
    session: Session,
    group_id: str | None,
    partitions: Iterable[TopicPartition],
) -> Operation[dict[TopicPartition, int]]:
    """A group's committed offsets, those of `partitions` among them."""
    group = present(group_id, "offsets are asked of a group")
    committed = yield from fetch_committed(session, group, partitions=partitions)
    return {p: c.committed_offset for p, c in committed.items()}


def _log_ends(
    session: Session, offsets: Mapping[TopicPartition, int]
) -> Operation[dict[TopicPartition, int]]:
    missing = yield from confirm_missing(session, offsets)
    specs = {p: LATEST_TIMESTAMP for p in offsets if p not in missing}
    ends = yield from list_offsets(session, specs, read_committed=False)
    return {p: each.offset for p, each in ends.items()}
