"""The one judgement of a commit: skip the batch, write it, or refuse it. Pure.

The deciding rule and its table of decisions are "The rule" in docs/internals/commit-protocol.md.
Visible progress that has the batch may be read at any time. All other evidence (`facts.py`) is read
after InitProducerId, when no other driver can move progress or group under the query's id.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit import refusals
from txnlog_spark.commit.checkpoint import BatchOffsets
from txnlog_spark.commit.plan import CommitPlan, Evidence, LocatedPlan, Progress
from txnlog_spark.commit.progress import group_digest
from txnlog_spark.offsets import positions_digest

Positions = Mapping[TopicPartition, int]


class Decision(enum.Enum):
    """The judgement of a batch that is not refused."""

    SKIP = "skip"
    """The batch is already committed."""
    PASS = "pass"
    """The batch's rows are committed under another number; its own number is committed empty."""
    DO = "do"
    """The batch is not committed, and may be written."""


def is_committed(plan: CommitPlan, found: Progress | None) -> bool:
    """True if the progress has a batch of the plan's number."""
    return found is not None and found.next_batch_id > plan.batch.batch_id


def is_same_plan(plan: CommitPlan, found: Progress) -> bool:
    """True if this very entry of the offset log was committed last: its hash includes its time."""
    is_last = found.next_batch_id == plan.batch.batch_id + 1
    return is_last and bool(plan.batch.batch_hash) and found.batch_hash == plan.batch.batch_hash


def is_missing(plan: CommitPlan, found: Progress | None) -> bool:
    """True if progress must exist but was not found."""
    return found is None and plan.was_begun


def judge(plan: LocatedPlan, facts: Evidence) -> Decision:
    """Return the decision.

    Raises ProgressMissing, ProgressBehind, BatchReplanned, StatefulReplanned, AnotherOutput,
    CommittedOffsetsMoved, WrongCluster, GroupHasOffsets; ProducerFenced for a driver left behind.
    """
    check_output(plan, facts)
    found = facts.progress
    if not plan.committer.is_query:
        return Decision.SKIP if is_committed(plan, found) else Decision.DO
    if is_missing(plan, found):
        raise refusals.missing(plan, topic_is_gone=facts.progress_topic_is_gone)
    if facts.newest_plan > plan.batch.batch_id:
        # No entry was lost: the driver stood still, and Spark may have purged its entries since.
        raise refusals.left_behind(plan, f"the offset log has a plan of batch {facts.newest_plan}")
    decision = Decision.DO if found is None else _by_plan(plan, found, facts)
    if decision is Decision.SKIP:
        return decision
    if found is not None and has_gap(plan, found, facts) and not facts.gap_is_empty:
        raise refusals.behind(plan, found)
    check_start(plan, facts)
    _check_of_this_cluster(plan, facts)
    _check_group_is_unused(plan, facts)
    check_previous(plan, facts)
    if found is not None and decision is Decision.DO and _begins_early(plan, found, facts):
        raise refusals.replanned(plan, found)
    return decision


# ------------------------------------------------------------------ the same output


def is_own(plan: CommitPlan, found: Progress, former: frozenset[str] = frozenset()) -> bool:
    """True if this checkpoint committed the progress, with this transactional id or another."""
    begun = set() if plan.begun is None else {plan.begun.output.digest}
    return found.output_digest in {plan.committer.output.digest} | begun | former


def check_output(plan: CommitPlan, facts: Evidence) -> None:
    """Raise AnotherOutput for progress of another output, before that progress skips a batch."""
    found = facts.progress
    if found is None:
        return
    if not is_own(plan, found, facts.former):
        if _is_baseline(found) and not is_committed(plan, found):
            return  # nobody has committed a batch
        raise refusals.another_output(plan, found)
    if is_committed(plan, found) and found.target != plan.committer.output.target:
        raise refusals.another_target(plan, found)


def _is_baseline(found: Progress) -> bool:
    return not found.batch_hash and not found.source_digest


def _says_which_rows(plan: CommitPlan, found: Progress) -> bool:
    """True if equal offsets mean equal rows in the output, whichever driver committed them.

    A driver with another transactional id may have run on a cloned volume at the same path. The
    rows that it wrote are known only if all rows go to one topic.
    """
    output = plan.committer.output
    return found.output_digest == output.digest or bool(output.target)


# ------------------------------------------------------------------ the same batch


def _by_plan(plan: CommitPlan, found: Progress, facts: Evidence) -> Decision:
    """Decide by Spark's number as long as its log is whole, else by the batch's rows."""
    if is_same_plan(plan, found):
        return Decision.SKIP
    batch, last, is_number_used = plan.batch, facts.last, is_committed(plan, found)
    # After a loss of log entries, this number or the last committed number has another plan.
    is_last_replanned = last is not None and found.batch_hash not in ("", last.batch_hash)
    if last is not None and batch.is_pinned and not facts.has_state:
        is_same = found.source_digest == last.digest and _says_which_rows(plan, found)
        is_last_replanned = is_last_replanned and not is_same  # a plan of the same rows is no other
    if not is_number_used and not is_last_replanned:
        return Decision.DO
    if facts.has_state:
        raise refusals.stateful_replanned(plan, found)
    if not _says_which_rows(plan, found):
        raise refusals.another_output(plan, found)
    is_equal = batch.is_pinned and found.source_digest == batch.source_digest
    if is_equal and found.next_batch_id == batch.batch_id + 1:
        return Decision.SKIP
    if is_number_used and _ends_before_group(plan, facts):
        check_previous(plan, facts)  # the group is the end of the output, unless somebody moved it
        return Decision.SKIP
    if _begins_at_end(plan, found, facts):
        return Decision.DO
    if is_equal and not is_number_used:
        return Decision.PASS
    raise refusals.replanned(plan, found)


def _begins_early(plan: CommitPlan, found: Progress, facts: Evidence) -> bool:
    """True if a function's batch begins before the group's offsets.

    Two drivers planned batches: a sink that is not called for each cannot tell by the numbers.
    """
    may = plan.committer.leaves_out_batches and not plan.committer.options.overwrite_group
    if not may or plan.group_id is None or facts.begin is None or _is_baseline(found):
        return False
    return not _begins_at_group(plan, facts.begin, facts.group)


def _ends_before_group(plan: CommitPlan, facts: Evidence) -> bool:
    """True if the rows of a stateless batch end where the group stands, or before."""
    if not plan.batch.is_pinned or plan.group_id is None:
        return False
    return all(end <= facts.group.get(p, -1) for p, end in plan.batch.source_offsets.items())


def _begins_at_end(plan: CommitPlan, found: Progress, facts: Evidence) -> bool:
    """True if the rows of a stateless batch begin where the committed output ends.

    The batch may begin later if a function of foreachBatch has left out batches since.
    `check_previous` then finds the group where the output ends.
    """
    begin, last = facts.begin, facts.last
    if begin is None or not plan.batch.is_pinned:
        return False
    if plan.group_id is not None and any(p in facts.group for p in plan.batch.source_offsets):
        return _begins_at_group(plan, begin, facts.group)
    ends = {begin.digest}
    if plan.committer.leaves_out_batches and last is not None:
        ends.add(last.digest)
    return found.source_digest in ends  # never of a baseline, which has none


def _begins_at_group(plan: CommitPlan, begin: BatchOffsets, group: Positions) -> bool:
    """True if the rows of each source begin at the group's offsets, or later (`_begins_at_end`)."""
    starts, leaves_out = begin.source_offsets, plan.committer.leaves_out_batches
    before = {s.source_id: s.group_start for s in begin.sources if s.note is not None}
    for source in plan.batch.sources:
        stand = {p: group[p] for p in source.offsets if p in group}
        if source.source_id and before.get(source.source_id) not in (None, source.group_start):
            begins = positions_digest(stand) == source.group_start  # it went there without reading
        else:
            at = {p: starts.get(p, -1) - stand[p] for p in stand}
            begins = all(gap == 0 or (leaves_out and gap > 0) for gap in at.values())
        if not begins:
            return False
    return True


def has_gap(plan: CommitPlan, found: Progress, facts: Evidence) -> bool:
    """True if the progress lacks batches before this one that may have been written.

    A sink that is not called for each batch lacks none in two cases: it has committed all batches
    that were begun, or all rows before this batch. A batch that was begun then was lost, and
    planned again under this number.
    """
    if found.next_batch_id >= plan.batch.batch_id:
        return False
    last, begin = plan.last_begun_below, facts.begin
    # Before the first batch is begun, its baseline is committed.
    is_new = plan.begun is None and _is_baseline(found)
    is_whole = is_new or (last is not None and last < found.next_batch_id)
    if begin is not None and plan.batch.is_pinned and not facts.has_state:
        starts = begin.source_offsets.items() if plan.group_id is not None else ()
        is_whole |= begin.digest == found.source_digest
        is_whole |= bool(starts) and all(facts.group.get(p) == at for p, at in starts)
    return not (plan.committer.leaves_out_batches and is_whole)


# ------------------------------------------------------------------ the same group


def foreign_sources(plan: CommitPlan, found: Progress | None) -> Sequence[Positions]:
    """Return the offsets that do not say which cluster they belong to.

    Return nothing if a batch of the query was committed for this group on this cluster.
    """
    if plan.group_id is None:
        return ()
    is_known = found is not None and found.group_digest == group_digest(plan.group_id)
    return () if is_known else [s.offsets for s in plan.batch.sources if s.note is None]


def _check_of_this_cluster(plan: CommitPlan, facts: Evidence) -> None:
    """Refuse offsets that look like Kafka's but cannot be positions in this cluster's logs.

    They may come from Spark's own Kafka source, which names no cluster, or from Azure Event Hubs.
    """
    for offsets in foreign_sources(plan, facts.progress):
        ends = {p: facts.log_ends[p] for p in offsets if p in facts.log_ends}
        if not ends:
            raise refusals.wrong_cluster(plan, f"{refusals.places(offsets)} do not exist there")
        beyond = {p: offsets[p] for p, end in ends.items() if offsets[p] > end}
        if beyond:
            reason = f"its logs end before {refusals.places(beyond)}"
            raise refusals.wrong_cluster(plan, reason)


def left_by(plan: CommitPlan, facts: Evidence) -> tuple[int, str] | None:
    """Return the batch that left the group where this batch must find it, and the offsets' digest.

    Return None if the query did not move this group. Progress of version 0.1.0 has the digest "".
    """
    own = group_digest(plan.watched_group_id)
    is_own = plan.committer.options.owner is None
    begun, found = (plan.begun, facts.progress) if is_own else facts.owner
    if not own:
        return None
    if found is not None:
        is_own_group = found.group_digest == own
        return (found.next_batch_id - 1, found.positions) if is_own_group else None
    if begun is None or begun.group_digest != own:
        return None
    return min(begun.batch_id, plan.batch.batch_id - 1), begun.positions


def begins_group(plan: CommitPlan, facts: Evidence) -> bool:
    """True if the query has not moved its group: the sink that moves it has committed no batch."""
    return plan.is_first if plan.committer.options.owner is None else facts.owner == (None, None)


def unexpected_positions(plan: CommitPlan, facts: Evidence) -> dict[TopicPartition, int]:
    """Return the offsets that the group reached without this query.

    For a new query these may be in any partition, later only in partitions that the batch before
    did not read. Somebody else moved the group: a newer checkpoint, begun when this one was
    believed to be lost, or the same query before a topic was taken out of it. Nothing is unexpected
    if the source says that it begins where the group is, or if the empty first batch ends there.
    """
    group, before, is_first = facts.group, facts.left or facts.begin, begins_group(plan, facts)
    if plan.committer.options.overwrite_group or not (is_first or before):
        return {}
    ends = plan.batch.source_offsets
    known = set() if is_first or before is None else set(before.source_offsets)
    for source in plan.batch.sources:
        if source.group_start and is_first:
            known |= source.offsets.keys()
    stand = {p: group[p] for p in ends if p in group and p not in known}
    if plan.batch.staged or facts.has_state or not is_first:
        return stand  # with state, a batch that wrote nothing may have read rows
    return {p: offset for p, offset in stand.items() if offset != ends[p]}


def _check_group_is_unused(plan: CommitPlan, facts: Evidence) -> None:
    """Refuse a batch that does not begin at its group's offsets: it would write output twice.

    A committed offset at the log start is allowed: no record was read.
    """
    stand = unexpected_positions(plan, facts)
    elsewhere = {p: offset for p, offset in stand.items() if offset != facts.log_starts.get(p)}
    if elsewhere:
        is_first = begins_group(plan, facts)
        raise refusals.group_has_offsets(plan, elsewhere, is_first=is_first)


def check_start(plan: CommitPlan, facts: Evidence) -> None:
    """Refuse a start from committed offsets that the group has left. Raises CommittedOffsetsMoved.

    A driver of the lost checkpoint still ran. Call this after InitProducerId, which ends that
    driver's open transaction and fences it: from then on the offsets stay.
    """
    if not begins_group(plan, facts):
        return
    for source in plan.batch.sources:
        stand = {p: facts.group[p] for p in source.offsets if p in facts.group}
        if source.group_start not in ("", positions_digest(stand)):
            raise refusals.start_moved(plan, stand)


def moved_since(plan: CommitPlan, facts: Evidence) -> dict[TopicPartition, int | None] | None:
    """Return where the query left its group, for the partitions that moved since.

    Return None if no partition moved, {} if Spark has purged the log entry that has the offsets. A
    partition without a committed offset proves nothing: its topic was deleted.
    """
    left = left_by(plan, facts)
    if left is None or not facts.group:
        return None
    ends, positions = plan.batch.source_offsets, left[1]
    group = {p: at for p, at in facts.group.items() if p in ends}
    if positions and positions in (positions_digest(group), positions_digest(facts.group)):
        return None
    entry = facts.left
    if entry is None and facts.begin is not None and facts.progress is not None:
        entry = facts.begin if facts.begin.digest == facts.progress.source_digest else None
    if entry is None:
        return {} if positions and group else None
    stand = facts.group
    return {p: at for p, at in entry.source_offsets.items() if stand.get(p, at) != at} or None


def is_unproved(plan: CommitPlan, facts: Evidence) -> bool:
    """True if nothing says where the query left its group: progress of 0.1.0, a purged entry."""
    left = left_by(plan, facts)
    return left is not None and not left[1] and facts.left is None and bool(facts.group)


def check_previous(plan: CommitPlan, facts: Evidence) -> None:
    """Refuse a checkpoint that its group has left behind. Raises CommittedOffsetsMoved."""
    moved, left = moved_since(plan, facts), left_by(plan, facts)
    if moved is not None and left is not None:
        raise refusals.group_moved(plan, left[0], moved, facts)
