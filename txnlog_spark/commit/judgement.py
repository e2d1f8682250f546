"""Skip the batch, do it, or refuse it: the one judgement of a commit. Pure.

`judge` gets the plan and what the brokers say (`Evidence`, which `facts.py` asks), and says SKIP or
DO, or raises why a person has to look. All facts but a visible progress that has the batch are
taken after InitProducerId, when nobody else can move the query's progress or its group under the
query's transactional id.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.checkpoint import offsets_path
from txnlog_spark.commit.plan import CommitPlan, Progress
from txnlog_spark.commit.progress import group_digest
from txnlog_spark.errors import (
    AnotherOutput,
    BatchReplanned,
    CommittedOffsetsMoved,
    GroupHasOffsets,
    ProgressBehind,
    ProgressMissing,
    WrongCluster,
)

_SHOWN_MAX = 5


class Decision(enum.Enum):
    """What to do with the batch."""

    SKIP = "skip"
    """It is committed."""
    DO = "do"
    """It is not committed, and may be."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the brokers and the checkpoint say, as far as the case needs it.

    `group` has the stable committed offsets of the plan's group; a partition without one is left
    out. `previous` is where the batch before left the group, {} where that is not known.
    """

    progress: Progress | None
    group: Mapping[TopicPartition, int] = field(default_factory=dict)
    previous: Mapping[TopicPartition, int] = field(default_factory=dict)
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of `unexpected_positions`."""
    log_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of `foreign_sources`, those that exist."""
    progress_topic_is_gone: bool = False
    gap_is_empty: bool = False
    """No sink was to see the batches that the progress lacks."""


def is_committed(plan: CommitPlan, found: Progress | None) -> bool:
    """Whether the progress has the plan's batch."""
    return found is not None and found.next_batch_id > plan.batch.batch_id


def is_missing(plan: CommitPlan, found: Progress | None) -> bool:
    """Whether there has to be progress, and is none."""
    return found is None and plan.was_begun


def judge(plan: CommitPlan, facts: Evidence) -> Decision:
    """SKIP or DO.

    Raises ProgressMissing, ProgressBehind, BatchReplanned, AnotherOutput, CommittedOffsetsMoved,
    WrongCluster, GroupHasOffsets: each says what was found, and what to do.
    """
    found = facts.progress
    if found is not None:
        check_output(plan, found)
    if not plan.committer.is_query:
        return Decision.SKIP if is_committed(plan, found) else Decision.DO
    if is_missing(plan, found):
        if facts.progress_topic_is_gone:
            raise progress_topic_deleted(plan)
        raise ProgressMissing(_missing_text(plan))
    if found is not None and is_committed(plan, found):
        if not _is_same_batch(plan, found, facts.group):
            if not _says_which_rows(plan, found):
                raise AnotherOutput(_another_text(plan, found))
            raise BatchReplanned(_replanned_text(plan, found))
        return Decision.SKIP
    if found is not None and has_gap(plan, found) and not facts.gap_is_empty:
        raise _behind(plan, found)
    check_expected(plan, facts)
    for offsets in foreign_sources(plan, found):
        _check_of_this_cluster(plan, offsets, facts.log_ends)
    _check_group_is_unused(plan, facts)
    check_previous(plan, facts)
    return Decision.DO


def is_own(plan: CommitPlan, found: Progress) -> bool:
    """Whether this checkpoint committed the progress, with this transactional id or another."""
    begun = set() if plan.begun is None else {plan.begun.output.digest}
    return found.output_digest in {plan.committer.output.digest} | begun | plan.former


def check_output(plan: CommitPlan, found: Progress) -> None:
    """Refuse progress that another output has committed, before it makes a batch be skipped.

    Raises AnotherOutput.
    """
    output = plan.committer.output
    if not is_own(plan, found):
        if _is_baseline(found) and not is_committed(plan, found):
            return  # nobody has committed a batch
        raise AnotherOutput(_another_text(plan, found))
    if is_committed(plan, found) and found.target != output.target:
        there, wanted = _shown_target(found.target), _shown_target(output.target)
        raise AnotherOutput(
            f"{plan.name} is in topic {there} already, and the query was started with topic "
            f"{wanted}: skipped, its rows would be missing there. Nothing was written. Start the "
            f"query with topic {there} until the batch is done (trigger availableNow does that and "
            "ends), and then with the other one. If these are two sinks of one query, give the one "
            f"of topic {wanted} a name: foreach_batch(..., name=...)"
        )


def _is_baseline(found: Progress) -> bool:
    return not found.batch_hash and not found.source_digest


def _another_text(plan: CommitPlan, found: Progress) -> str:
    committer = plan.committer
    if not committer.is_query:
        return (
            f"the progress in group {committer.progress_group_id!r} (version "
            f"{found.next_batch_id - 1}) was committed for another output than topic "
            f"{_shown_target(committer.output.target)}. Nothing was written. Use another txnAppId"
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


def _shown_target(target: str) -> str:
    return repr(target) if target else "(of the column topic)"


def has_gap(plan: CommitPlan, found: Progress) -> bool:
    """Whether the progress lacks batches before this one that may have been written.

    A sink that is not called for each batch lacks none when it has all that was begun.
    """
    if found.next_batch_id >= plan.batch.batch_id:
        return False
    last = plan.last_begun_below
    is_whole = last is not None and last < found.next_batch_id
    return not (plan.committer.leaves_out_batches and is_whole)


def unexpected_positions(
    plan: CommitPlan,
    group: Mapping[TopicPartition, int],
    previous: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Where the group has come to, and the query does not say that it knows: in all partitions of a
    new query, later in those that the batch before did not have.

    The query has not committed any batch of them, so what its group has is of somebody else: that
    may be a newer checkpoint, which was begun when this one was believed to be lost, or the same
    query before a topic was taken out of it. A committed offset at the end of an empty first batch
    is where the query begins.
    """
    if plan.committer.overwrite_group or not (plan.is_first or previous):
        return {}
    ends = plan.batch.source_offsets
    known = plan.batch.expected if plan.is_first else {*plan.batch.expected, *previous}
    stand = {p: group[p] for p in ends if p in group and p not in known}
    if plan.batch.staged or not plan.is_first:
        return stand
    return {p: offset for p, offset in stand.items() if offset != ends[p]}


def foreign_sources(
    plan: CommitPlan, found: Progress | None
) -> Sequence[Mapping[TopicPartition, int]]:
    """Offsets that have to be positions in this cluster's logs: no batch of the query has been
    committed for this group on this cluster."""
    if plan.group_id is None:
        return ()
    is_known = found is not None and found.group_digest == group_digest(plan.group_id)
    return () if is_known else plan.batch.foreign_sources


def previous_batch(plan: CommitPlan, found: Progress | None) -> int | None:
    """The batch that has left the group where this one has to find it, None if that is open."""
    begun = plan.begun
    left = found.group_digest if found is not None else begun.group_digest if begun else ""
    if not left or left != group_digest(plan.group_id):
        return None
    if found is not None:
        return found.next_batch_id - 1
    return None if begun is None else min(begun.batch_id, plan.batch.batch_id - 1)


def _is_same_batch(plan: CommitPlan, found: Progress, group: Mapping[TopicPartition, int]) -> bool:
    """Whether all that the batch read is in the committed output: only then it may be skipped.

    Spark's offset log can be lost with its commit log; the batch is then planned again and may
    reach further than the committed one (the second variant of paimon#9666).
    """
    batch = plan.batch
    if found.next_batch_id == batch.batch_id + 1:
        if batch.batch_hash and found.batch_hash == batch.batch_hash:
            return True
        is_equal = found.source_digest == batch.source_digest
        return batch.is_pinned and is_equal and _says_which_rows(plan, found)
    if not batch.is_pinned or plan.group_id is None or not _says_which_rows(plan, found):
        return False
    return all(end <= group.get(partition, -1) for partition, end in batch.source_offsets.items())


def _says_which_rows(plan: CommitPlan, found: Progress) -> bool:
    """Whether equal offsets are equal rows in the output, whichever driver has committed them.

    With another transactional id of this checkpoint it may have been a copy of its volume, which
    lies at the same place: what that has written is known where all goes to one topic.
    """
    output = plan.committer.output
    return found.output_digest == output.digest or bool(output.target)


def _check_group_is_unused(plan: CommitPlan, facts: Evidence) -> None:
    """Refuse a batch that begins partitions elsewhere than where its group has come to.

    A query that has read a topic to its end with a group and starts with `earliest` and an empty
    checkpoint would write all of it again; so would one that reads a topic again which it had left
    out for a while. A committed offset at the log start says that nothing was read.
    """
    stand = unexpected_positions(plan, facts.group, facts.previous)
    elsewhere = {p: offset for p, offset in stand.items() if offset != facts.log_starts.get(p)}
    if not elsewhere:
        return
    if not plan.is_first:
        raise GroupHasOffsets(
            f"{plan.query} reads partitions that it did not read before, from their beginning, and "
            f"its group {plan.group_id!r} has committed offsets there: {_places(elsewhere)}. So it "
            "may write again what is in the output already. Nothing was written. To go on from the "
            "committed offsets in all partitions, start with a new, empty checkpoint and "
            "startingOffsets=committed. To read these from the beginning on purpose, set the "
            "writer's option overwriteGroupOffsets=true until the batch is done"
        )
    raise GroupHasOffsets(
        f"{plan.query} has no committed batch, and its group {plan.group_id!r} has "
        f"committed offsets: {_places(elsewhere)}. The query does not begin there, so it may write "
        "again what is in the output already, or leave records out. Nothing was written. To go on "
        "from the committed offsets (such as after a lost checkpoint), start with a new, empty "
        "checkpoint and startingOffsets=committed. To begin elsewhere on purpose, set the "
        "writer's option overwriteGroupOffsets=true, or use another kafka.group.id"
    )


def _check_of_this_cluster(
    plan: CommitPlan, offsets: Mapping[TopicPartition, int], log_ends: Mapping[TopicPartition, int]
) -> None:
    """Refuse offsets that look like Kafka's and cannot be positions in this cluster's logs.

    Spark's own Kafka source does not say which cluster it reads, and other systems' connectors
    write offsets of the same shape (Azure Event Hubs).
    """
    ends = {p: log_ends[p] for p in offsets if p in log_ends}
    if offsets and not ends:
        raise WrongCluster(_wrong_cluster(plan, f"{_places(offsets)} do not exist there"))
    beyond = {p: offsets[p] for p, end in ends.items() if offsets[p] > end}
    if beyond:
        raise WrongCluster(_wrong_cluster(plan, f"its logs end before {_places(beyond)}"))


def _wrong_cluster(plan: CommitPlan, reason: str) -> str:
    return (
        f"{plan.query} has kafka.group.id={plan.group_id!r}, but a source's offsets are "
        f"not positions in the cluster that the sink writes to ({reason}). Offsets are committed "
        "for a group on one cluster only, in the transaction of the output. Nothing was written. "
        "Remove kafka.group.id from the writer: the query stays exactly-once by its checkpoint"
    )


def check_expected(plan: CommitPlan, facts: Evidence) -> None:
    """Refuse a start from committed offsets that the group has left meanwhile.

    A driver of the lost checkpoint that still lived committed a batch after this query had read
    where to start: read again from there, that batch would be doubled. To be called after
    InitProducerId, which ends what such a driver had open and fences it: from then on the offsets
    stay. Raises CommittedOffsetsMoved.
    """
    moved = _moved(plan.batch.expected, facts.group)
    if not moved:
        return
    raise CommittedOffsetsMoved(
        f"{plan.query} starts from the committed offsets of group {plan.group_id!r}, "
        f"but these moved after it had read them: {moved}. Another driver of this group "
        "was still at work; it is fenced now if it had this query's transactional id "
        f"{plan.committer.transactional_id!r}. Nothing was written. Start again with a new, empty "
        "checkpoint and startingOffsets=committed"
    )


def check_previous(plan: CommitPlan, facts: Evidence) -> None:
    """Refuse to go on from a checkpoint that its group has left behind.

    After a lost checkpoint was replaced by a new one, or was believed to be lost, the old one's
    next batch holds records that are in the output already. A partition without a committed offset
    says nothing: its topic was deleted. Raises CommittedOffsetsMoved.
    """
    moved = _moved({p: at for p, at in facts.previous.items() if p in facts.group}, facts.group)
    if not moved:
        return
    raise CommittedOffsetsMoved(
        f"{plan.query} committed its batch {previous_batch(plan, facts.progress)} and the offsets "
        f"of group {plan.group_id!r} with it, but these moved since: {moved}. Either a newer "
        "checkpoint went on from there, and what this one has next may be in the output already: "
        "start the query with the newer one. Or the group is used by another query, or by a "
        "consumer that commits: give each a group of its own. Or a person set the offsets. Then "
        "set them back to the former. (A new, empty checkpoint with startingOffsets=committed "
        "goes on from where they are now: what lies between is not read, or is written twice.) "
        "Nothing was written"
    )


def _moved(
    before: Mapping[TopicPartition, int | None], now: Mapping[TopicPartition, int | None]
) -> str:
    return ", ".join(
        f"{name[0]}-{name[1]} from {_shown(was)} to {_shown(now.get(name))}"
        for name, was in sorted(before.items())
        if now.get(name) != was
    )


def _behind(plan: CommitPlan, found: Progress) -> ProgressBehind:
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
        "Nothing "
        f"was written. If the output has all batches below {plan.batch.batch_id}, say so: python "
        f"-m txnlog_spark progress set --bootstrap-server HOST:PORT --checkpoint DIR"
        f"{_sink_option(plan)} --to-checkpoint --execute. If it has not, start a new checkpoint "
        "with startingOffsets=committed: that goes on from what the brokers have, and doubles what "
        "another sink has written since"
    )


def _replanned_text(plan: CommitPlan, found: Progress) -> str:
    return (
        f"{plan.name} is already committed (progress "
        f"{found.next_batch_id}), but was planned again since, and {_what_differs(plan, found)}: "
        "the checkpoint's offsets log was lost or rolled back. Skipping the batch could lose "
        "records, writing it could double them. Nothing was written. Restore the folders offsets "
        "and sources of the checkpoint as they were when the batch was committed. "
        f"{_REPLANNED_REMEDY}"
    )


def _what_differs(plan: CommitPlan, found: Progress) -> str:
    if (
        found.next_batch_id == plan.batch.batch_id + 1
        and found.source_digest == plan.batch.source_digest
    ):
        return "its source offsets do not show whether it holds the same records"
    return "has other source offsets than it was committed with"


_REPLANNED_REMEDY = (
    "If all its sources are Kafka topics and the query has a kafka.group.id, a new checkpoint with "
    "startingOffsets=committed goes on exactly where the output ends. A source of files has no "
    "such position: compare its files with the output"
)


_MISSING_REMEDY = (
    "Nothing was written. Look whether the output ends with the records of this batch. Then say "
    "how far it is: python -m txnlog_spark progress set --bootstrap-server HOST:PORT --checkpoint "
    "DIR{sink} --next-batch-id N --execute, with N = {after} if they are in the output, N = {this} "
    "if they are not; and start the query again"
)


def _missing_remedy(plan: CommitPlan) -> str:
    this = plan.batch.batch_id
    return _MISSING_REMEDY.format(this=this, after=this + 1, sink=_sink_option(plan))


def _sink_option(plan: CommitPlan) -> str:
    name = plan.committer.output.sink_name
    return f" --sink {name}" if name else ""


def _missing_text(plan: CommitPlan) -> str:
    topic, number = plan.committer.place
    return (
        f"{plan.query} has committed before, but its progress is gone: group "
        f"offsets of {plan.committer.progress_group_id!r} expired (offsets.retention.minutes, 7 "
        "days by "
        "default, counted from the last batch on: while a query is stopped, and while it has no "
        "input), or were deleted, by themselves or with topic "
        f"{topic!r}, as they lie on {topic}-{number}. Whether batch {plan.batch.batch_id} is in "
        f"the output is not known. {_missing_remedy(plan)}"
    )


def progress_topic_deleted(plan: CommitPlan) -> ProgressMissing:
    """The error for a query whose progress went with the topic that it lay on."""
    topic, number = plan.committer.place
    return ProgressMissing(
        f"topic {topic!r} was deleted, and with it the progress of {plan.query}, "
        f"which was committed for {topic}-{number} (group {plan.committer.progress_group_id!r}). "
        "Whether "
        f"batch {plan.batch.batch_id} is in the output is not known. {_missing_remedy(plan)}"
    )


def _shown(offset: int | None) -> str:
    return "none" if offset is None else str(offset)


def _places(offsets: Mapping[TopicPartition, int]) -> str:
    shown = [f"{topic}-{number} at {at}" for (topic, number), at in sorted(offsets.items())]
    more = len(shown) - _SHOWN_MAX
    return ", ".join(shown[:_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
