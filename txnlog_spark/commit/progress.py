"""Progress: the committed offset that says how far a query has come.

The value is batch_id + 1 and never decreases; the metadata is a small JSON object (`Progress`).
"Where progress lies" in docs/internals/commit-protocol.md says why all batches commit it for one
partition. A source's topic comes first: committing an offset takes READ on it, as reading does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.metadata import (
    KAFKA_INTERNAL_TOPICS,
    confirm_missing,
    refresh_metadata,
)
from txnlog_kafka.operations.offsets import CommittedOffset, fetch_committed
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.output import digest_of
from txnlog_spark.commit.plan import CommitPlan, Progress
from txnlog_spark.errors import TxnLogError
from txnlog_spark.offsets import positions_digest

PROGRESS_FORMAT_VERSION = 1
"""Version in every metadata string; a string with an unknown version is not our progress."""


def format_progress(progress: Progress) -> str:
    """Return the metadata string beside the committed offset; well below 4096 bytes."""
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
    """Parse the progress in a committed offset; return None if its metadata is not ours."""
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
    """Return this query's newest progress among a group's committed offsets."""
    found = [p for p in map(parse_progress, committed) if p is not None and p.query_id == query_id]
    return max(found, key=lambda p: p.next_batch_id, default=None)


def progress_after(plan: CommitPlan) -> Progress:
    """Return the progress to commit with the batch."""
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
    """Return the progress for all batches before the plan's, which Spark says are done."""
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
    """Return a digest of the group's name: Kafka limits the length of metadata, not of names."""
    return "" if group_id is None else digest_of(group_id)[:16]


def progress_offset(progress: Progress) -> CommittedOffset:
    """Return the committed offset that holds `progress`."""
    return CommittedOffset(progress.next_batch_id, format_progress(progress))


def fetch_progress(
    session: Session,
    progress_group_id: str,
    query_id: str,
    *,
    partitions: Iterable[TopicPartition] = (),
    require_stable: bool = True,
) -> Operation[Progress | None]:
    """Return the query's progress; if `require_stable`, wait while a transaction is undecided.

    Rely on it after InitProducerId, which returns when the last transaction is complete with all of
    its markers. Otherwise name the `partitions` that its progress may be undecided on.
    """
    committed = yield from fetch_committed(
        session, progress_group_id, partitions=partitions, require_stable=require_stable
    )
    return newest_progress(query_id, committed.values())


def locate_progress(
    session: Session, progress_group_id: str, query_id: str
) -> Operation[TopicPartition | None]:
    """Return the partition of the newest decided progress; undecided progress may be newer."""
    committed = yield from fetch_committed(session, progress_group_id, require_stable=False)
    newest = newest_progress(query_id, committed.values())
    found = [p for p, c in sorted(committed.items()) if parse_progress(c) == newest]
    return found[0] if newest is not None else None


def place_progress(
    session: Session, plan: CommitPlan, before: TopicPartition | None = None
) -> Operation[TopicPartition]:
    """Return the partition of the query's progress, or choose one. Raises TxnLogError.

    If the progress was deleted with its topic, another partition is chosen only for a batch that
    was never begun. Otherwise its absence must be noticed at the old partition.
    """
    recorded = plan.begun.progress_partition if plan.begun is not None else None
    recorded = before or recorded  # of the try before: its baseline lies there
    if recorded is not None:
        written = {piece.topic for piece in plan.batch.staged}
        if plan.was_begun or not (yield from _is_gone(session, recorded, written)):
            return recorded
    else:
        query_id = plan.committer.output.query_id
        located = yield from locate_progress(session, plan.committer.progress_group_id, query_id)
        if located is not None:
            return located
    return (yield from choose_partition(session, plan))


def choose_partition(session: Session, plan: CommitPlan) -> Operation[TopicPartition]:
    """Choose an existing partition. Raises TxnLogError on a cluster without topics."""
    sources, target = plan.batch.source_offsets, plan.committer.output.target
    if sources:
        missing = yield from confirm_missing(session, sources)
        for partition in sorted(sources):
            if partition not in missing:
                return partition
    if target:
        return TopicPartition(target, 0)
    for piece in plan.batch.staged:
        return TopicPartition(piece.topic, piece.partition)
    yield from refresh_metadata(session, None)
    for name in sorted(set(session.cluster.topics) - KAFKA_INTERNAL_TOPICS):
        return TopicPartition(name, session.cluster.partitions(name)[0])
    raise TxnLogError(
        "an empty batch cannot be recorded on a cluster without topics: create the output topic, "
        "or set the option topic to it"
    )


def _is_gone(
    session: Session, partition: TopicPartition, written: Iterable[str]
) -> Operation[bool]:
    """True if a partition does not exist.

    The metadata is read again, with the topics `written`: cached metadata outlives a topic.
    """
    yield from refresh_metadata(session, [partition.topic, *written])
    if partition.partition in session.cluster.partitions(partition.topic):
        return False
    return bool((yield from confirm_missing(session, [partition])))
