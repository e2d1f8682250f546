"""Progress: how far a query has committed, and what that says about a batch that comes (again).

Theory of operation. Every micro-batch's transaction also commits one offset for the query's
progress group: the value is batch_id + 1, the metadata a small JSON object with the query's id and
the output that it is of (`output.Output`: its topic, and a digest of the rest), and digests of the
batch's source offsets, of the group that they were committed for, and of all that Spark logged for
the batch (`<checkpoint>/offsets/<batchId>`, which holds the time of its planning).
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

import json
from collections.abc import Iterable

from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.offsets import CommittedOffset, fetch_committed
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.output import digest_of
from txnlog_spark.commit.plan import CommitPlan, Progress
from txnlog_spark.offsets import positions_digest

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
        "o": progress.output_digest,
        "t": progress.target,
        "p": progress.positions,
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
    fields = [value.get("q"), *(value.get(name, "") for name in "eghotp")]
    texts = [each for each in fields if isinstance(each, str)]
    if len(texts) != len(fields):
        return None
    query_id, *others = texts
    return Progress(query_id, committed.committed_offset, *others)


def newest_progress(query_id: str, committed: Iterable[CommittedOffset]) -> Progress | None:
    """This query's newest progress among a group's committed offsets."""
    found = [p for p in map(parse_progress, committed) if p is not None and p.query_id == query_id]
    return max(found, key=lambda p: p.next_batch_id, default=None)


def progress_after(plan: CommitPlan) -> Progress:
    """What is committed with the batch."""
    output, batch = plan.committer.output, plan.batch
    return Progress(
        output.query_id,
        batch.batch_id + 1,
        batch.source_digest,
        group_digest(plan.group_id),
        batch.batch_hash,
        output.digest,
        output.target,
        "" if plan.group_id is None else positions_digest(batch.source_offsets),
    )


def baseline_of(plan: CommitPlan) -> Progress:
    """All batches before the plan's, which Spark says are done."""
    output, begun = plan.committer.output, plan.begun
    is_before = begun is not None and not plan.was_begun
    return Progress(
        output.query_id,
        plan.batch.batch_id,
        group_digest="" if begun is None else begun.group_digest,
        output_digest=output.digest,
        target=output.target,
        positions=begun.positions if is_before and begun is not None else "",
    )


def group_digest(group_id: str | None) -> str:
    """Names the group without its length, which Kafka does not bound as it bounds metadata."""
    return "" if group_id is None else digest_of(group_id)[:16]


def progress_offset(progress: Progress) -> CommittedOffset:
    """The committed offset that holds `progress`."""
    return CommittedOffset(progress.next_batch_id, format_progress(progress))


def locate_progress(
    session: Session, progress_group_id: str, query_id: str
) -> Operation[TopicPartition | None]:
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
    partitions: Iterable[TopicPartition] = (),
) -> Operation[Progress | None]:
    """The query's stable progress; waits while a transaction on the group is undecided.

    To be relied on after InitProducerId, which returns when the last transaction is complete with
    all of its markers; otherwise name the `partitions` that its progress may be undecided on.
    """
    committed = yield from fetch_committed(session, progress_group_id, partitions=partitions)
    return newest_progress(query_id, committed.values())
