"""Errors of the judgement. Pure. Each says what happened, what was written, and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark import errors
from txnlog_spark.commit.checkpoint import offsets_path
from txnlog_spark.commit.plan import CommitPlan, Evidence, LocatedPlan, Progress
from txnlog_spark.errors import BROKERS, do_this

_SHOWN_MAX = 5


def another_output(plan: CommitPlan, found: Progress) -> errors.AnotherOutput:
    """Return the error for progress that another copy of the checkpoint has committed."""
    committer = plan.committer
    group_id = committer.progress_group_id
    if not committer.is_query:
        return errors.AnotherOutput(
            f"the progress in group {group_id!r} (version {found.next_batch_id - 1}) was committed "
            f"for another output than topic {shown_target(committer.output.target)}. Nothing was "
            "written. Set txnAppId to another name"
        )
    planned = offsets_path(committer.checkpoint, plan.batch.batch_id)
    return errors.AnotherOutput(
        f"the progress of {plan.query} in group {group_id!r} (all batches below "
        f"{found.next_batch_id}) was not committed by this checkpoint and transactional id "
        f"{committer.transactional_id!r}: another copy of the checkpoint is at work. Nothing was "
        "written, and no driver was fenced. Start only one of the two. Or delete the folder "
        f"{committer.folder} and {planned} (with its .crc) of the copy, and give the copy its own "
        "kafka.group.id (and its own kafka.transactional.id, if that is set or there is no group) "
        "and its own topic: it then continues as a query of its own"
    )


def another_target(plan: CommitPlan, found: Progress) -> errors.AnotherOutput:
    """Return the error for a batch that is already committed to another topic."""
    there, wanted = shown_target(found.target), shown_target(plan.committer.output.target)
    return errors.AnotherOutput(
        f"{plan.name} is in topic {there} already, but the query was started with topic {wanted}: "
        f"if the batch were skipped, its rows would be missing there. {plan.wrote_nothing}. Start "
        f"the query with topic {there} until the batch is done (the trigger availableNow does that "
        f"and ends), and then with topic {wanted}. If these are two sinks of one query, give the "
        f"sink of topic {wanted} a name: foreach_batch(..., name=...)"
    )


def shown_target(target: str) -> str:
    """Return a target as an error's text shows it."""
    return repr(target) if target else "(of the column topic)"


def left_behind(plan: CommitPlan, sign: str) -> errors.ProducerFenced:
    """Return the error for a driver that another driver overtook; `sign` is the proof."""
    return errors.ProducerFenced(
        ErrorCode.PRODUCER_FENCED,
        f"another driver of {plan.query} has taken over: {sign}, but this driver was about to "
        f"begin batch {plan.batch.batch_id}. {plan.wrote_nothing}, and the other driver was not "
        "fenced. Stop one of the two drivers",
    )


def stateful_replanned(plan: CommitPlan, found: Progress) -> errors.StatefulReplanned:
    """Return the error for a stateful batch whose committed plan is not in the checkpoint."""
    last = found.next_batch_id - 1
    several = "is" if last == plan.batch.batch_id else f"and all batches up to {last} are"
    go_on = "a new checkpoint must begin after the rows that are in the output"
    if plan.watched_group_id is not None:
        go_on = "a new, empty checkpoint with startingOffsets=committed and "
        go_on += f"kafka.group.id={plan.watched_group_id!r} on both sides begins where the output "
        go_on += "ends"
    return errors.StatefulReplanned(
        f"{plan.name} {several} committed, and the query keeps state, but the offset log no longer "
        "has the plan that was committed: its newest entries were lost, or an older copy of the "
        "checkpoint was restored. The output of a stateful batch depends on its watermark, its "
        "time and the ends of the batches before it, so a batch that was planned again is another "
        f"batch: skipping it could lose rows, writing it could double them. {plan.wrote_nothing}. "
        "Stop the query, restore the folders offsets, commits, sources and state of the checkpoint "
        f"from a copy that has {offsets_path(plan.committer.checkpoint, last)} as it was "
        f"committed, and start the query again. Without such a copy the state is lost: {go_on}, "
        "with empty state, and windows or keys that were open then lack their earlier rows"
    )


def replanned(plan: CommitPlan, found: Progress) -> errors.BatchReplanned:
    """Return the error for a committed batch that was planned again with other rows."""
    last = found.next_batch_id - 1
    is_equal = last == plan.batch.batch_id and found.source_digest == plan.batch.source_digest
    differs = "has other source offsets than it was committed with"
    if is_equal:
        differs = "its source offsets do not show whether it holds the same records"
    name = plan.name if last >= plan.batch.batch_id else f"batch {last} of {plan.query}"
    return errors.BatchReplanned(
        f"{name} is already committed (progress {found.next_batch_id}), but was planned again "
        f"since, and {differs}: the checkpoint's offsets log was lost or rolled back. To continue "
        f"could lose records or write them twice. {plan.wrote_nothing}. Restore the folders "
        "offsets and sources of the checkpoint as they were when the batch was committed. "
        "If all sources are Kafka topics and the query has a kafka.group.id, you may start a new "
        "checkpoint with startingOffsets=committed instead: it begins exactly where the output "
        "ends. A source of files has no such position: compare its files with the output"
    )


def behind(plan: CommitPlan, found: Progress) -> errors.ProgressBehind:
    """Return the error for a batch whose preceding batches the brokers lack."""
    committer, first, this = plan.committer, found.next_batch_id, plan.batch.batch_id
    cause = "batches between were written by another sink (such as kafka), which moves no progress"
    if committer.leaves_out_batches:
        cause = f"the function of foreachBatch went on although writing batch {first} had failed"
    return errors.ProgressBehind(
        f"{plan.query} is about to commit batch {this}, but the brokers have its batches below "
        f"{first} only (group {committer.progress_group_id!r}). Either the brokers lost committed "
        f"data, or {cause}. {plan.wrote_nothing}. If the output has all batches below {this}, run "
        "the command below. If it has not, start a new checkpoint with startingOffsets=committed: "
        "it begins where the brokers' progress ends, and doubles the rows that another sink has "
        "written since"
        + _set_progress(plan, "--to-checkpoint", f"if the output has all batches below {this}")
    )


def missing(plan: LocatedPlan, *, topic_is_gone: bool) -> errors.ProgressMissing:
    """Return the error for progress that must exist but does not."""
    (topic, number), this = plan.place, plan.batch.batch_id
    group_id = plan.committer.progress_group_id
    what = (
        f"topic {topic!r} was deleted, and with it the progress of {plan.query}, which was "
        f"committed for {topic}-{number} (group {group_id!r})"
        if topic_is_gone
        else f"{plan.query} has committed before, but its progress is gone: group offsets of "
        f"{group_id!r} expired (offsets.retention.minutes, 7 days by default, counted from the "
        "last batch on: while a query is stopped, and while it has no input), or were deleted, "
        f"alone or with topic {topic!r}, because they are committed for {topic}-{number}"
    )
    return errors.ProgressMissing(
        f"{what}. It is not known whether batch {this} is in the output. {plan.wrote_nothing}. "
        "Check whether the output ends with its records, run the command for your answer, and "
        "start the query again"
        + _set_progress(plan, f"--next-batch-id {this + 1}", f"if the output has batch {this}")
        + _set_progress(plan, f"--next-batch-id {this}", f"if the output lacks batch {this}")
    )


def _set_progress(plan: CommitPlan, to: str, when: str) -> str:
    where, name = shlex.quote(plan.committer.checkpoint), plan.committer.output.sink_name
    sink = f" --sink {shlex.quote(name)}" if name else ""
    command = f"python -m txnlog_spark progress set {BROKERS} --checkpoint {where}{sink} {to}"
    return do_this(f"{command} --execute", when)


def wrong_cluster(plan: CommitPlan, reason: str) -> errors.WrongCluster:
    """Return the error for offsets that are not positions in the sink's cluster."""
    return errors.WrongCluster(
        f"{plan.query} has kafka.group.id={plan.watched_group_id!r}, but a source's offsets are "
        f"not positions in the cluster that the sink writes to ({reason}). A group's offsets can "
        "be committed on one cluster only, in the transaction of the output. "
        f"{plan.wrote_nothing}. Remove kafka.group.id from the writer: the query stays "
        "exactly-once by its checkpoint"
    )


def group_has_offsets(
    plan: CommitPlan, elsewhere: Mapping[TopicPartition, int], *, is_first: bool
) -> errors.GroupHasOffsets:
    """Return the error for a query that does not begin at its group's committed offsets."""
    group_id = plan.watched_group_id
    what = "has no committed batch" if is_first else "reads partitions that it did not read before"
    return errors.GroupHasOffsets(
        f"{plan.query} {what}, and its group {group_id!r} has committed offsets there: "
        f"{places(elsewhere)}. The query does not begin at these, so it may write rows again that "
        f"are in the output, or leave records out. {plan.wrote_nothing}. To continue from the "
        "committed offsets (for example after a lost checkpoint), start with a new, empty "
        f"checkpoint, kafka.group.id={group_id!r} on the reader as well, and "
        "startingOffsets=committed. To begin elsewhere on purpose, set the writer's option "
        "overwriteGroupOffsets=true until the batch is done, or use another kafka.group.id"
    )


def start_moved(
    plan: CommitPlan, stand: Mapping[TopicPartition, int]
) -> errors.CommittedOffsetsMoved:
    """Return the error for a start from committed offsets that have moved since they were read."""
    ends = plan.batch.source_offsets
    moved = {p: ends.get(p) for p, at in stand.items() if ends.get(p) != at}
    # The first batch is empty, and ends where the query began.
    what = _moves(moved, stand) if plan.batch.batch_id == 0 else f"it is at {places(stand)}"
    return errors.CommittedOffsetsMoved(
        f"{plan.query} starts from the committed offsets of group {plan.watched_group_id!r}, "
        f"but these moved after it had read them: {what}. Another driver of this group was still "
        "at work; it is now fenced if it had this query's transactional id "
        f"{plan.committer.transactional_id!r}. {plan.wrote_nothing}. Start the query again with a "
        "new, empty checkpoint and startingOffsets=committed"
    )


def group_moved(
    plan: CommitPlan, batch_id: int, moved: Mapping[TopicPartition, int | None], facts: Evidence
) -> errors.CommittedOffsetsMoved:
    """Return the error for a group that somebody moved since the query's last batch."""
    group = facts.group
    what = f": {_moves(moved, group)}" if moved else f"; it is now at {places(group)}"
    return errors.CommittedOffsetsMoved(
        f"{plan.query} committed its batch {batch_id} and the offsets of group "
        f"{plan.watched_group_id!r} with it, but these moved since{what}. "
        f"{_cause(plan, moved, facts)}. {plan.wrote_nothing}"
    )


def _cause(plan: CommitPlan, moved: Mapping[TopicPartition, int | None], facts: Evidence) -> str:
    others = [note for note in facts.notes if note.query_id != plan.committer.output.query_id]
    if others:
        last = max(others, key=lambda note: note.batch_id)
        return (
            f"Query {last.query_id} has committed them, with its batch {last.batch_id}. If that "
            "query is this job with a newer checkpoint, the next rows of this checkpoint are in "
            "the output already: start the job with the newer checkpoint only. If it is another "
            "job, give each of the two its own kafka.group.id"
        )
    if facts.members:
        return (
            f"The group has members, {', '.join(facts.members[:_SHOWN_MAX])}: a consumer commits "
            "offsets for it. Stop the consumer, give it another group.id, and set the offsets back"
            + _set_back(plan, moved, "once it is stopped")
        )
    return (
        "No other query has committed them, and the group has no member now: a person, a tool or "
        "a consumer that has ended set them. To continue from the present offsets, start a new, "
        "empty checkpoint with startingOffsets=committed: the records in between are not read, or "
        "are written twice. To continue where the query was, set the offsets back"
        + _set_back(plan, moved, "to continue where the query was")
    )


def _set_back(plan: CommitPlan, moved: Mapping[TopicPartition, int | None], when: str) -> str:
    there: dict[int, str] = {}
    for (topic, number), at in sorted(moved.items()):
        if at is not None:
            there[at] = f"{there.get(at, '')} --topic {topic}:{number}"
    group_id = shlex.quote(plan.watched_group_id or "")
    command = f"python -m broker_sim groups reset-offsets {BROKERS} --group {group_id}"
    lines = [f"{command}{names} --to-offset {at} --execute" for at, names in there.items()]
    gone = " (the checkpoint no longer has the offsets of that batch)"
    return do_this(" && ".join(lines), when) if lines else gone


def _moves(before: Mapping[TopicPartition, int | None], now: Mapping[TopicPartition, int]) -> str:
    return _some(
        f"{p[0]}-{p[1]} from {'none' if was is None else was} to {now.get(p, 'none')}"
        for p, was in sorted(before.items())
    )


def places(offsets: Mapping[TopicPartition, int]) -> str:
    """Return some of these partitions, with their offsets."""
    return _some(f"{topic}-{number} at {at}" for (topic, number), at in sorted(offsets.items()))


def _some(each: Iterable[str]) -> str:
    shown = list(each)
    more = f" and {len(shown) - _SHOWN_MAX} more" if len(shown) > _SHOWN_MAX else ""
    return ", ".join(shown[:_SHOWN_MAX]) + more
