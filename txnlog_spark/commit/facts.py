"""Questions to the brokers and the checkpoint that gather the evidence for the judgement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from txnlog_kafka.operations.admin import group_members
from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.metadata import confirm_missing
from txnlog_kafka.operations.offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    CommittedOffset,
    fetch_committed,
    list_offsets,
)
from txnlog_kafka.operations.operation_group import side_by_side
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.invariants import present
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit import judgement
from txnlog_spark.commit.checkpoint import (
    BatchOffsets,
    is_rewriting,
    newest_batch,
    read_logged_offsets,
)
from txnlog_spark.commit.checkpoint_files import list_folder
from txnlog_spark.commit.journal import journal_folder, read_begun, recorded_digests
from txnlog_spark.commit.plan import Begun, CommitPlan, Evidence, LocatedPlan, Progress
from txnlog_spark.commit.progress import fetch_progress
from txnlog_spark.errors import FatalError
from txnlog_spark.group_note import notes_of


def visible_progress(session: Session, plan: CommitPlan) -> Operation[Progress | None]:
    """Return the committed progress, without waiting for open transactions.

    It may be old, but is never too new: it can prove that a batch is committed, and nothing else.
    """
    group_id, query_id = plan.committer.progress_group_id, plan.committer.output.query_id
    return (yield from fetch_progress(session, group_id, query_id, require_stable=False))


def stable_progress(session: Session, plan: LocatedPlan) -> Operation[Progress | None]:
    """Return the progress after a takeover, when no transaction of the transactional id is open."""
    group_id, query_id = plan.committer.progress_group_id, plan.committer.output.query_id
    return (yield from fetch_progress(session, group_id, query_id, partitions=[plan.place]))


def stable_facts(session: Session, plan: LocatedPlan) -> Operation[Evidence]:
    """Gather the evidence for `judge` after InitProducerId; usually in one round of requests."""
    found, group = yield from side_by_side(
        session.monotonic_ms, stable_progress(session, plan), group_offsets(session, plan)
    )
    return (yield from facts_of(session, plan, found, group))


def facts_of(
    session: Session,
    plan: LocatedPlan,
    found: Progress | None,
    group: Mapping[TopicPartition, CommittedOffset],
) -> Operation[Evidence]:
    """Return the evidence with this progress and these offsets of the plan's group."""
    offsets = {p: each.committed_offset for p, each in group.items()}
    former = yield from former_outputs(plan, found)
    facts = Evidence(found, former, offsets, notes_of(group.values()))
    if not plan.committer.is_query:
        return facts
    if judgement.is_missing(plan, found):
        gone = yield from confirm_missing(session, [plan.place])
        return replace(facts, progress_topic_is_gone=bool(gone))
    if found is not None and judgement.is_same_plan(plan, found):
        return facts
    facts = replace(facts, owner=(yield from _owner(session, plan)))
    facts = yield from _with_log(plan, facts)
    is_purged = facts.begin is None and plan.batch.batch_id > 0
    is_committed = judgement.is_committed(plan, found)
    if is_purged or is_committed:
        facts = replace(facts, newest_plan=(yield from newest_batch(plan.committer.checkpoint)))
    if is_committed:
        return facts
    unexpected = judgement.unexpected_positions(plan, facts)
    foreign = {p for source in judgement.foreign_sources(plan, found) for p in source}
    missing = yield from confirm_missing(session, foreign)
    moved = judgement.moved_since(plan, facts)
    return replace(
        facts,
        log_starts=(yield from _listed(session, unexpected, EARLIEST_TIMESTAMP)),
        log_ends=(yield from _listed(session, sorted(foreign - missing), LATEST_TIMESTAMP)),
        gap_is_empty=(yield from _gap_is_empty(plan, facts)),
        members=() if moved is None else (yield from _members(session, plan)),
    )


def group_offsets(
    session: Session, plan: CommitPlan, *, require_stable: bool = True
) -> Operation[Mapping[TopicPartition, CommittedOffset]]:
    """Return the committed offsets of a query's group, {} without a group.

    If another sink of the query commits the group's offsets, these are read without waiting: its
    transaction may be open since its driver died, and only that sink can end it.
    """
    group_id, ends = plan.watched_group_id, plan.batch.source_offsets
    if group_id is None or not plan.committer.is_query:
        return {}
    waits = require_stable and plan.committer.options.owner is None
    return (yield from fetch_committed(session, group_id, partitions=ends, require_stable=waits))


def former_outputs(plan: CommitPlan, found: Progress | None) -> Operation[frozenset[str]]:
    """Return the digests of former outputs, if the progress is not of the present output."""
    if found is None or not plan.committer.is_query or judgement.is_own(plan, found):
        return frozenset()
    return (yield from recorded_digests(plan.committer))


def _owner(session: Session, plan: CommitPlan) -> Operation[tuple[Begun | None, Progress | None]]:
    """Return the record and the visible progress of the sink that commits the query's group."""
    owner, query_id = plan.committer.options.owner, plan.committer.output.query_id
    if owner is None:
        return None, None
    folder = journal_folder(plan.committer.checkpoint, owner.sink_name)
    if (begun := (yield from read_begun(folder, query_id))) is None:
        return None, None
    group_id = begun.progress_group_id
    return begun, (yield from fetch_progress(session, group_id, query_id, require_stable=False))


def _members(session: Session, plan: CommitPlan) -> Operation[tuple[str, ...]]:
    """Return the group's members, for an error's text; () if the user may not describe it."""
    group_id = present(plan.watched_group_id, "offsets move in a group")
    try:
        return (yield from group_members(session, group_id))
    except FatalError as error:
        session.notice(f"the members of group {group_id} are not known: {error}")
        return ()


def _with_log(plan: CommitPlan, facts: Evidence) -> Operation[Evidence]:
    """Add the log entries of the batches before, and whether the query has state."""
    batch_id, found, left = plan.batch.batch_id, facts.progress, judgement.left_by(plan, facts)
    numbers = (
        batch_id - 1,
        -1 if found is None else found.next_batch_id - 1,
        -1 if left is None else left[0],
    )
    entries: dict[int, BatchOffsets | None] = {-1: None, batch_id: None}
    for number in numbers:
        if number not in entries:
            entries[number] = yield from read_logged_offsets(plan.committer.checkpoint, number)
    begin, last, left_at = (entries[number] for number in numbers)
    state = yield from has_state(plan)
    return replace(facts, begin=begin, last=last, left=left_at, has_state=state)


def has_state(plan: CommitPlan) -> Operation[bool]:
    """True if the query keeps state: its tasks have written some before the commit."""
    begun = plan.begun
    if begun is not None and begun.run_id == plan.committer.run_id:
        return begun.has_state
    return bool((yield from list_folder(f"{plan.committer.checkpoint}/state", folders=True)))


def _gap_is_empty(plan: CommitPlan, facts: Evidence) -> Operation[bool]:
    """True if every batch that the progress lacks is one of Spark's own batches without input."""
    found = facts.progress
    if found is None or not judgement.has_gap(plan, found, facts):
        return True
    for batch_id in range(found.next_batch_id, plan.batch.batch_id):
        if not (yield from is_rewriting(plan.committer.checkpoint, batch_id)):
            return False
    return True


def _listed(
    session: Session, partitions: Iterable[TopicPartition], timestamp: int
) -> Operation[dict[TopicPartition, int]]:
    specs = dict.fromkeys(partitions, timestamp)
    found = yield from list_offsets(session, specs, read_committed=False)
    return {p: each.offset for p, each in found.items()}
