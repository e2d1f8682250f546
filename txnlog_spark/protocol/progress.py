"""Progress: how far a query has committed, and what that says about a batch that comes (again).

Theory of operation. Every micro-batch's transaction also commits one offset for the query's
progress group: the value is batch_id + 1, the metadata a small JSON object with the query's id and
digests: of the batch's source offsets, of the group that they were committed for, and of all that
Spark logged for the batch (`<checkpoint>/offsets/<batchId>`, which holds the time of its planning).
It becomes visible with the batch's records or not at all, and never goes back.

What pins a batch: equal digests of the whole log entry are one planning, and Spark then reads the
same input again. After the entry was lost, the batch is planned again. Then equal source offsets
are equal input only where an offset pins the records, as Kafka's does; the counter of a file source
(`{"logOffset":1}`) names whatever files are there by now.

It is looked up by fetching the whole group with require_stable and taking this query's newest.
All of a query's batches commit it for one partition, because Kafka deletes a topic's committed
offsets with the topic: what lay on another topic than the batch before would uncover that batch's
progress, and the last one would be done twice.

What it does not do: guess. Where progress must exist and does not (offsets expire after
`offsets.retention.minutes`, 7 days by default), or contradicts the checkpoint, a person must look.
Where no transaction of the batch was ever begun there is nothing to guess: it is done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from txnlog_spark.errors import (
    BatchReplanned,
    CommittedOffsetsMoved,
    ProgressBehind,
    ProgressMissing,
)
from txnlog_spark.protocol.cluster import confirm_missing
from txnlog_spark.protocol.effects import Operation
from txnlog_spark.protocol.offsets import CommittedOffset, fetch_committed
from txnlog_spark.protocol.session import Session
from txnlog_spark.protocol.values import (
    CommitPlan,
    ExpectedOffsets,
    Partition,
    ProducerIdentity,
    Progress,
)

PROGRESS_FORMAT_VERSION = 1
"""In every metadata string; an unknown version is not progress of ours."""


def format_progress(progress: Progress) -> str:
    """The metadata string beside the committed offset; well below 4096 bytes."""
    value = {
        "v": PROGRESS_FORMAT_VERSION,
        "q": progress.query_id,
        "e": progress.source_digest,
        "g": progress.group_digest,
        "h": progress.batch_hash,
    }
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def parse_progress(committed: CommittedOffset) -> Progress | None:
    """The progress in a committed offset; None for anything that is not ours."""
    try:
        value = json.loads(committed.metadata)
    except ValueError:
        return None
    if not isinstance(value, dict) or value.get("v") != PROGRESS_FORMAT_VERSION:
        return None
    fields = [value.get("q"), *(value.get(name, "") for name in "egh")]
    texts = [each for each in fields if isinstance(each, str)]
    if len(texts) != len(fields):
        return None
    query_id, *digests = texts
    return Progress(query_id, committed.committed_offset, *digests)


def newest_progress(query_id: str, committed: Iterable[CommittedOffset]) -> Progress | None:
    """This query's newest progress among a group's committed offsets."""
    found = [p for p in map(parse_progress, committed) if p is not None and p.query_id == query_id]
    return max(found, key=lambda p: p.next_batch_id, default=None)


def progress_after(plan: CommitPlan) -> Progress:
    """What is committed with the batch."""
    return Progress(
        plan.query_id,
        plan.batch_id + 1,
        plan.source_digest,
        group_digest(plan.group_id if plan.source_offsets else None),
        plan.batch_hash,
    )


def baseline_of(plan: CommitPlan) -> Progress:
    """All batches before the plan's, which Spark says are done."""
    return Progress(plan.query_id, plan.batch_id, group_digest=plan.attempted_group_digest)


def group_digest(group_id: str | None) -> str:
    """Names the group without its length, which Kafka does not bound as it bounds metadata."""
    return "" if group_id is None else hashlib.sha256(group_id.encode()).hexdigest()[:16]


def progress_offset(progress: Progress) -> CommittedOffset:
    """The committed offset that holds `progress`."""
    return CommittedOffset(progress.next_batch_id, format_progress(progress))


def locate_progress(
    session: Session, progress_group_id: str, query_id: str
) -> Operation[Partition | None]:
    """The partition that the query's newest decided progress is committed for, None without one.

    Nothing may be concluded from it about a batch: an undecided progress is not waited for.
    """
    committed = yield from fetch_committed(session, progress_group_id, require_stable=False)
    newest = newest_progress(query_id, committed.values())
    found = [p for p, c in sorted(committed.items()) if parse_progress(c) == newest]
    return found[0] if newest is not None else None


def fetch_progress(
    session: Session,
    progress_group_id: str,
    query_id: str,
    *,
    partitions: Iterable[Partition] = (),
) -> Operation[Progress | None]:
    """The query's stable progress; waits while a transaction on the group is undecided.

    To be relied on after InitProducerId, which returns when the last transaction is complete with
    all of its markers; otherwise name the `partitions` that its progress may be undecided on.
    """
    committed = yield from fetch_committed(session, progress_group_id, partitions=partitions)
    return newest_progress(query_id, committed.values())


def check_progress_topic(session: Session, plan: CommitPlan) -> Operation[None]:
    """Raise ProgressMissing, saying so, when the topic that progress lies on was deleted."""
    topic, number = plan.progress_partition
    if (yield from confirm_missing(session, [plan.progress_partition])):
        raise ProgressMissing(
            f"topic {topic!r} was deleted, and with it the progress of query {plan.query_id}, "
            f"which was committed for {topic}-{number} (group {plan.progress_group_id!r}). Whether "
            f"batch {plan.batch_id} is in the output is not known. {_missing_remedy(plan)}"
        )


def decide_batch(
    plan: CommitPlan, found: Progress | None, group_offsets: Mapping[Partition, int] | None = None
) -> bool:
    """True when the batch is committed already and is to be skipped, False when it is to be done.

    `group_offsets` are the source group's committed offsets; they are needed only where
    `needs_group_offsets` says so. Raises ProgressMissing, ProgressBehind, BatchReplanned.
    """
    if not plan.is_stream:
        return found is not None and found.next_batch_id > plan.batch_id
    if progress_is_missing(plan, found):
        raise ProgressMissing(_missing_text(plan, found))
    if found is None or found.next_batch_id == plan.batch_id:
        return False
    if found.next_batch_id < plan.batch_id:
        raise ProgressBehind(
            f"query {plan.query_id} is about to commit batch {plan.batch_id}, but the brokers have "
            f"its batches below {found.next_batch_id} only (group {plan.progress_group_id!r}). "
            "Either the brokers lost committed data, or batches between were written by another "
            "sink (such as kafka), which moves no progress. Nothing was written. If the output has "
            f"all batches below {plan.batch_id}, say so: python -m txnlog_spark progress set "
            "--bootstrap-server HOST:PORT --checkpoint DIR --to-checkpoint --execute. If it has "
            "not, start a new checkpoint with startingOffsets=committed: that goes on from what "
            "the brokers have, and doubles what another sink has written since"
        )
    _check_same_sources(plan, found, group_offsets)
    return True


def progress_is_missing(plan: CommitPlan, found: Progress | None) -> bool:
    """Whether the brokers have lost progress that tells of this batch: all of it, or the newest.

    Without any, a batch that was never begun is as safe as the first one of a query.
    """
    if found is None:
        return plan.must_exist and not _was_never_begun(plan)
    return found.next_batch_id < plan.next_batch_id_min


def _was_never_begun(plan: CommitPlan) -> bool:
    return plan.attempted_batch_id is not None and plan.attempted_batch_id < plan.batch_id


def needs_group_offsets(plan: CommitPlan, found: Progress | None) -> bool:
    """Whether `decide_batch` wants the source group's offsets: several batches come again."""
    several = found is not None and found.next_batch_id > plan.batch_id + 1
    return several and plan.is_stream and plan.group_id is not None


def check_expected(
    plan: CommitPlan, expected: ExpectedOffsets, committed: Mapping[Partition, int]
) -> None:
    """Refuse a start from committed offsets that the group has left meanwhile.

    A driver of the lost checkpoint that still lived committed a batch after this query had read
    where to start: read again from there, that batch would be doubled. To be called after
    InitProducerId, which ends what such a driver had open and fences it: from then on the offsets
    stay. Raises CommittedOffsetsMoved.
    """
    moved = [
        f"{topic}-{number} from {_shown(was)} to {_shown(committed.get((topic, number)))}"
        for (topic, number), was in sorted(expected.committed.items())
        if committed.get((topic, number)) != was
    ]
    if not moved:
        return
    raise CommittedOffsetsMoved(
        f"query {plan.query_id} starts from the committed offsets of group {expected.group_id!r}, "
        f"but these moved after it had read them: {', '.join(moved)}. Another driver of this group "
        "was still at work; it is fenced now if it had this query's transactional id "
        f"{plan.transactional_id!r}. Nothing was written. Start again with a new, empty checkpoint "
        "and startingOffsets=committed"
    )


def needs_previous_offsets(
    plan: CommitPlan, found: Progress | None, identity: ProducerIdentity
) -> bool:
    """Whether to ask if the group still stands where the batch before left it: after a takeover."""
    left = plan.attempted_group_digest if found is None else found.group_digest
    return (
        bool(plan.previous_offsets)
        and left != ""
        and left == group_digest(plan.group_id)
        and identity.last_batch_id != plan.batch_id - 1
    )


def check_previous(plan: CommitPlan, committed: Mapping[Partition, int]) -> None:
    """Refuse to go on from a checkpoint that its group has left behind.

    After a lost checkpoint was replaced by a new one, or was believed to be lost, the old one's
    next batch holds records that are in the output already. A partition without a committed offset
    says nothing: its topic was deleted. Raises CommittedOffsetsMoved.
    """
    moved = [
        f"{topic}-{number} from {was} to {committed[topic, number]}"
        for (topic, number), was in sorted(plan.previous_offsets.items())
        if committed.get((topic, number), was) != was
    ]
    if not moved:
        return
    raise CommittedOffsetsMoved(
        f"query {plan.query_id} committed its batch {plan.batch_id - 1} and the offsets of group "
        f"{plan.group_id!r} with it, but these moved since: {', '.join(moved)}. Either a newer "
        "checkpoint went on from there, and what this one has next may be in the output already: "
        "start the query with the newer one. Or a person set the group's offsets: set them back, "
        "or start with a new, empty checkpoint and startingOffsets=committed. Or two queries share "
        "the group: give each its own. Nothing was written"
    )


def _shown(offset: int | None) -> str:
    return "none" if offset is None else str(offset)


def _check_same_sources(
    plan: CommitPlan, found: Progress, group_offsets: Mapping[Partition, int] | None
) -> None:
    """Skipping is right only when all that the batch read is in the committed output.

    Spark's offset log can be lost with its commit log; the batch is then planned again and may
    reach further than the committed one (the second variant of paimon#9666).
    """
    if found.next_batch_id == plan.batch_id + 1:
        if plan.batch_hash and found.batch_hash == plan.batch_hash:
            return
        if plan.is_pinned and found.source_digest == plan.source_digest:
            return
    elif (
        plan.is_pinned
        and group_offsets is not None
        and all(
            end <= group_offsets.get(partition, -1)
            for partition, end in plan.source_offsets.items()
        )
    ):
        return
    raise BatchReplanned(
        f"batch {plan.batch_id} of query {plan.query_id} is already committed (progress "
        f"{found.next_batch_id}), but was planned again since, and {_what_differs(plan, found)}: "
        "the checkpoint's offsets log was lost or rolled back. Skipping the batch could lose "
        "records, writing it could double them. Nothing was written. Restore the folders offsets "
        "and sources of the checkpoint as they were when the batch was committed. "
        f"{_REPLANNED_REMEDY}"
    )


def _what_differs(plan: CommitPlan, found: Progress) -> str:
    if found.next_batch_id == plan.batch_id + 1 and found.source_digest == plan.source_digest:
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
    "DIR --next-batch-id N --execute, with N = {after} if they are in the output, N = {this} if "
    "they are not; and start the query again"
)


def _missing_remedy(plan: CommitPlan) -> str:
    return _MISSING_REMEDY.format(this=plan.batch_id, after=plan.batch_id + 1)


def _missing_text(plan: CommitPlan, found: Progress | None) -> str:
    topic, number = plan.progress_partition
    lost = "is gone" if found is None else f"is {found.next_batch_id} only"
    recorded = plan.next_batch_id_min
    known = f", {recorded} by the checkpoint's identity.json" if recorded else ""
    return (
        f"query {plan.query_id} has committed before{known}, but its progress {lost}: group "
        f"offsets of {plan.progress_group_id!r} expired (offsets.retention.minutes, 7 days by "
        "default, counted from the last batch on: while a query is stopped, and while it has no "
        "input), or were deleted, by themselves or with topic "
        f"{topic!r}, as they lie on {topic}-{number}. Whether batch {plan.batch_id} is in the "
        f"output is not known. {_missing_remedy(plan)}"
    )
