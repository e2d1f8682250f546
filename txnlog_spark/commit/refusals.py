"""Why a batch is refused: the texts of the judgement's errors. Pure.

Each says what was found, that nothing was written, and what to do; a command in a text is complete
but for HOST:PORT and DIR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txnlog_kafka.wire.error_codes import ErrorCode
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.checkpoint import offsets_path
from txnlog_spark.commit.plan import CommitPlan, LocatedPlan, Progress
from txnlog_spark.errors import (
    BatchReplanned,
    CommittedOffsetsMoved,
    GroupHasOffsets,
    ProducerFenced,
    ProgressBehind,
    ProgressMissing,
    StatefulReplanned,
)
from txnlog_spark.group_note import GroupNote

_SHOWN_MAX = 5


def nothing_written(plan: CommitPlan) -> str:
    """Return the sentence about this refusal's effect: other sinks of a query may have written."""
    name = plan.committer.output.sink_name
    return f"Sink {name!r} wrote nothing" if name else "Nothing was written"


def another_text(plan: CommitPlan, found: Progress) -> str:
    """Return the text for progress that another copy of the checkpoint has committed."""
    committer = plan.committer
    if not committer.is_query:
        return (
            f"the progress in group {committer.progress_group_id!r} (version "
            f"{found.next_batch_id - 1}) was committed for another output than topic "
            f"{shown_target(committer.output.target)}. Nothing was written. Use another txnAppId"
        )
    return (
        f"the progress of {plan.query} in group {committer.progress_group_id!r} (all "
        f"batches below {found.next_batch_id}) was not committed by this checkpoint and "
        f"transactional id {committer.transactional_id!r}: another copy of the checkpoint is at "
        "work. "
        "Nothing was written, and nobody was fenced. Start one of the two only; or delete the "
        f"folder {committer.folder} and {offsets_path(committer.checkpoint, plan.batch.batch_id)} "
        "(with its "
        ".crc) of the copy and give it a kafka.group.id of its own (and a kafka.transactional.id, "
        "if that is set): it then goes on as a query of its own"
    )


def another_target_text(plan: CommitPlan, found: Progress) -> str:
    """Return the text for a batch that is committed in another topic."""
    there, wanted = shown_target(found.target), shown_target(plan.committer.output.target)
    return (
        f"{plan.name} is in topic {there} already, and the query was started with topic "
        f"{wanted}: skipped, its rows would be missing there. {nothing_written(plan)}. Start the "
        f"query with topic {there} until the batch is done (trigger availableNow does that and "
        "ends), and then with the other one. If these are two sinks of one query, give the one "
        f"of topic {wanted} a name: foreach_batch(..., name=...)"
    )


def shown_target(target: str) -> str:
    """Return a target as a text shows it."""
    return repr(target) if target else "(of the column topic)"


# ------------------------------------------------------------------ the batch


def left_behind(plan: CommitPlan, newest: int) -> ProducerFenced:
    """Return the error of a driver whose checkpoint another driver went on with."""
    return ProducerFenced(
        ErrorCode.PRODUCER_FENCED,
        f"another driver of {plan.query} went on: the offset log has a plan of batch {newest}, and "
        f"this one was about to commit batch {plan.batch.batch_id}. {nothing_written(plan)}, and "
        "the other one was not fenced. Stop one of the two",
    )


def stateful_replanned(plan: CommitPlan, found: Progress) -> StatefulReplanned:
    """Return the error for a stateful batch whose committed plan is not in the checkpoint."""
    last, path = found.next_batch_id - 1, offsets_path(plan.committer.checkpoint, 0)[:-2]
    several = "is" if last == plan.batch.batch_id else f"and all batches up to {last} are"
    go_on = (
        f"a new, empty checkpoint with startingOffsets=committed and group.id="
        f"{plan.watched_group_id!r} on both sides begins where the output ends"
        if plan.watched_group_id is not None
        else "a new checkpoint has to begin after the rows that the output has"
    )
    return StatefulReplanned(
        f"{plan.name} {several} committed, and the query keeps state, but the offset log no longer "
        f"has the plan that was committed: its newest entries were lost, or an older copy of the "
        "checkpoint was restored. What a stateful batch writes depends on its watermark, its time "
        "and where the batches before it ended, so a batch that was planned again is another "
        "batch: skipping it could lose rows, writing it could double them. "
        f"{nothing_written(plan)}. Stop the query and restore the folders offsets, commits, "
        f"sources and state of the checkpoint from a copy that has {path}/{last} as it was "
        f"committed, then start it again. Without such a copy the state is lost: {go_on}, with "
        "empty state, and windows or keys that were open then lack their earlier rows"
    )


def replanned(plan: CommitPlan, found: Progress) -> BatchReplanned:
    """Return the error for a committed batch that was planned again with other rows."""
    last = found.next_batch_id - 1
    is_equal = last == plan.batch.batch_id and found.source_digest == plan.batch.source_digest
    differs = (
        "its source offsets do not show whether it holds the same records"
        if is_equal
        else "has other source offsets than it was committed with"
    )
    name = plan.name if last >= plan.batch.batch_id else f"batch {last} of {plan.query}"
    return BatchReplanned(
        f"{name} is already committed (progress "
        f"{found.next_batch_id}), but was planned again since, and {differs}: "
        "the checkpoint's offsets log was lost or rolled back. To go on could lose "
        f"records or write them twice. {nothing_written(plan)}. Restore the folders "
        "offsets and sources of the checkpoint as they were when the batch was committed. "
        "If all its sources are Kafka topics and the query has a group.id, a new checkpoint "
        "with startingOffsets=committed goes on exactly where the output ends. A source of files "
        "has no such position: compare its files with the output"
    )


def behind(plan: CommitPlan, found: Progress) -> ProgressBehind:
    """Return the error for a batch before which the brokers lack batches."""
    committer = plan.committer
    causes = "or batches between were written by another sink (such as kafka), which moves no "
    causes += "progress"
    if committer.leaves_out_batches:
        causes = "or the function of foreachBatch went on although writing batch "
        causes += f"{found.next_batch_id} had failed"
    return ProgressBehind(
        f"{plan.query} is about to commit batch {plan.batch.batch_id}, but the "
        f"brokers have its batches below {found.next_batch_id} only (group "
        f"{committer.progress_group_id!r}). Either the brokers lost committed data, {causes}. "
        f"{nothing_written(plan)}. If the output has all batches below {plan.batch.batch_id}, say "
        "so: python -m txnlog_spark progress set --bootstrap-server HOST:PORT --checkpoint DIR"
        f"{_sink_option(plan)} --to-checkpoint --execute. If it has not, start a new checkpoint "
        "with startingOffsets=committed: that goes on from what the brokers have, and doubles what "
        "another sink has written since"
    )


_MISSING_REMEDY = (
    "{wrote}. Look whether the output ends with the records of this batch. Then say "
    "how far it is: python -m txnlog_spark progress set --bootstrap-server HOST:PORT --checkpoint "
    "DIR{sink} --next-batch-id N --execute, with N = {after} if they are in the output, N = {this} "
    "if they are not; and start the query again"
)


def _missing_remedy(plan: CommitPlan) -> str:
    this = plan.batch.batch_id
    return _MISSING_REMEDY.format(
        this=this, after=this + 1, sink=_sink_option(plan), wrote=nothing_written(plan)
    )


def _sink_option(plan: CommitPlan) -> str:
    name = plan.committer.output.sink_name
    return f" --sink {name}" if name else ""


def missing_text(plan: LocatedPlan) -> str:
    """Return the text for progress that must exist and does not."""
    topic, number = plan.place
    return (
        f"{plan.query} has committed before, but its progress is gone: group "
        f"offsets of {plan.committer.progress_group_id!r} expired (offsets.retention.minutes, 7 "
        "days by "
        "default, counted from the last batch on: while a query is stopped, and while it has no "
        "input), or were deleted, by themselves or with topic "
        f"{topic!r}, as they lie on {topic}-{number}. Whether batch {plan.batch.batch_id} is in "
        f"the output is not known. {_missing_remedy(plan)}"
    )


def progress_topic_deleted(plan: LocatedPlan) -> ProgressMissing:
    """Return the error for a query whose progress went with the topic that it lay on."""
    topic, number = plan.place
    return ProgressMissing(
        f"topic {topic!r} was deleted, and with it the progress of {plan.query}, "
        f"which was committed for {topic}-{number} (group {plan.committer.progress_group_id!r}). "
        "Whether "
        f"batch {plan.batch.batch_id} is in the output is not known. {_missing_remedy(plan)}"
    )


# ------------------------------------------------------------------ the group


def wrong_cluster_text(plan: CommitPlan, reason: str) -> str:
    """Return the text for offsets that are not positions in the sink's cluster."""
    return (
        f"{plan.query} has group.id={plan.watched_group_id!r}, but a source's offsets are "
        f"not positions in the cluster that the sink writes to ({reason}). Offsets are committed "
        f"for a group on one cluster only, in the transaction of the output. "
        f"{nothing_written(plan)}. Remove group.id from the writer: the query stays "
        "exactly-once by its checkpoint"
    )


def group_has_offsets(
    plan: CommitPlan, elsewhere: Mapping[TopicPartition, int], *, is_first: bool
) -> GroupHasOffsets:
    """Return the error for partitions that the query begins elsewhere than where its group is."""
    if not is_first:
        return GroupHasOffsets(
            f"{plan.query} reads partitions that it did not read before, from their beginning, and "
            f"its group {plan.watched_group_id!r} has committed offsets there: "
            f"{places(elsewhere)}. So it may write again what is in the output already. "
            f"{nothing_written(plan)}. To go on from the "
            "committed offsets in all partitions, start with a new, empty checkpoint and "
            "startingOffsets=committed. To read these from the beginning on purpose, set the "
            "writer's option overwriteGroupOffsets=true until the batch is done"
        )
    return GroupHasOffsets(
        f"{plan.query} has no committed batch, and its group {plan.watched_group_id!r} has "
        f"committed offsets: {places(elsewhere)}. The query does not begin there, so it may write "
        "again what is in the output already, or leave records out. "
        f"{nothing_written(plan)}. To go on from the committed offsets (such as after a lost "
        f"checkpoint), start with a new, empty checkpoint, group.id={plan.watched_group_id!r} on "
        "the reader as well, and startingOffsets=committed. To begin elsewhere on purpose, set the "
        "writer's option overwriteGroupOffsets=true, or use another group.id"
    )


def start_moved(plan: CommitPlan, stand: Mapping[TopicPartition, int]) -> CommittedOffsetsMoved:
    """Return the error for a start from committed offsets that moved meanwhile."""
    ends = plan.batch.source_offsets
    moved = {p: ends.get(p) for p, at in stand.items() if ends.get(p) != at}
    # The first batch is empty, and ends where the query began.
    what = _moves(moved, stand) if plan.batch.batch_id == 0 else f"it is at {places(stand)}"
    return CommittedOffsetsMoved(
        f"{plan.query} starts from the committed offsets of group {plan.watched_group_id!r}, "
        f"but these moved after it had read them: {what}. Another driver of this "
        "group was still at work; it is fenced now if it had this query's transactional id "
        f"{plan.committer.transactional_id!r}. {nothing_written(plan)}. Start again with a new, "
        "empty checkpoint and startingOffsets=committed"
    )


def group_moved(
    plan: CommitPlan,
    batch_id: int,
    moved: Mapping[TopicPartition, int | None],
    group: Mapping[TopicPartition, int],
    notes: Sequence[GroupNote],
    members: Sequence[str],
) -> CommittedOffsetsMoved:
    """Return the error for a group that somebody moved since the query's last batch.

    The brokers say who: the note of another query, a member of the group, or neither.
    """
    what = f": {_moves(moved, group)}" if moved else f"; it is now at {places(group)}"
    others = [note for note in notes if note.query_id != plan.committer.output.query_id]
    return CommittedOffsetsMoved(
        f"{plan.query} committed its batch {batch_id} and the offsets of group "
        f"{plan.watched_group_id!r} with it, but these moved since{what}. "
        f"{_cause(plan, others, members, moved)}. {nothing_written(plan)}"
    )


def _cause(
    plan: CommitPlan,
    others: Sequence[GroupNote],
    members: Sequence[str],
    moved: Mapping[TopicPartition, int | None],
) -> str:
    if others:
        last = max(others, key=lambda note: note.batch_id)
        return (
            f"Query {last.query_id} has committed them, with its batch {last.batch_id}. If it is "
            "this job with a newer checkpoint, what this checkpoint has next is in the output "
            "already: start the job with the newer checkpoint only. If it is another job, give "
            "each of the two a group.id of its own"
        )
    if members:
        return (
            f"The group has members, {', '.join(members[:_SHOWN_MAX])}: a consumer commits "
            "offsets for it. Stop it, give it another group.id, and set the offsets back: "
            f"{_set_back(plan, moved)}"
        )
    return (
        "No other query has committed them, and the group has no member now: a person or a tool "
        "set them, or a consumer that has ended. To go on where the query was, set them back: "
        f"{_set_back(plan, moved)}. To go on from where they are now instead, start a new, empty "
        "checkpoint with startingOffsets=committed: what lies between is not read, or is written "
        "twice"
    )


def _set_back(plan: CommitPlan, moved: Mapping[TopicPartition, int | None]) -> str:
    command = "python -m broker_sim groups reset-offsets --bootstrap-server HOST:PORT --group "
    lines = [
        f"{command}{plan.watched_group_id} --topic {topic}:{number} --to-offset {at} --execute"
        for (topic, number), at in sorted(moved.items())
        if at is not None
    ]
    if not lines:
        return "(the checkpoint no longer has the offsets of that batch)"
    return " && ".join(lines[:_SHOWN_MAX]) + _more(len(lines))


def _moves(before: Mapping[TopicPartition, int | None], now: Mapping[TopicPartition, int]) -> str:
    shown = [
        f"{name[0]}-{name[1]} from {_shown(was)} to {_shown(now.get(name))}"
        for name, was in sorted(before.items())
    ]
    return ", ".join(shown[:_SHOWN_MAX]) + _more(len(shown))


def _shown(offset: int | None) -> str:
    return "none" if offset is None else str(offset)


def places(offsets: Mapping[TopicPartition, int]) -> str:
    """Return some of these partitions, with their offsets."""
    shown = [f"{topic}-{number} at {at}" for (topic, number), at in sorted(offsets.items())]
    return ", ".join(shown[:_SHOWN_MAX]) + _more(len(shown))


def _more(count: int) -> str:
    return f" and {count - _SHOWN_MAX} more" if count > _SHOWN_MAX else ""
