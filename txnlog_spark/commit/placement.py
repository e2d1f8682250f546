"""Where a query's progress lies: one partition for all its batches, chosen before the first.

Kafka deletes a topic's committed offsets with the topic, so the partition is one of a topic that
is likely to stay, and never changes while it exists: of a source, which the query may read anyway
(committing an offset for a topic takes READ on it), else of the output.
"""

from __future__ import annotations

from collections.abc import Iterable

from txnlog_kafka.operations.effects import Operation
from txnlog_kafka.operations.metadata import (
    KAFKA_INTERNAL_TOPICS,
    confirm_missing,
    refresh_metadata,
)
from txnlog_kafka.operations.session import Session
from txnlog_kafka.wire.topic_partition import TopicPartition
from txnlog_spark.commit.plan import CommitPlan
from txnlog_spark.commit.progress import locate_progress
from txnlog_spark.errors import TxnLogError


def place_progress(session: Session, plan: CommitPlan) -> Operation[TopicPartition]:
    """Where the query's progress is, else (the first batch) where it is going to be.

    Progress that went with its topic is placed again only for a batch that was never begun; else it
    has to be missed where it was. Raises TxnLogError without any topic.
    """
    if plan.begun is not None:
        recorded, written = plan.begun.progress_partition, {p.topic for p in plan.batch.staged}
        if plan.was_begun or not (yield from _is_gone(session, recorded, written)):
            return recorded
    else:
        query_id = plan.committer.output.query_id
        located = yield from locate_progress(session, plan.committer.progress_group_id, query_id)
        if located is not None:
            return located
    return (yield from choose_partition(session, plan))


def choose_partition(session: Session, plan: CommitPlan) -> Operation[TopicPartition]:
    """A partition that exists, to commit progress for. Raises TxnLogError without any topic."""
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
        "or set the option topic"
    )


def _is_gone(
    session: Session, partition: TopicPartition, written: Iterable[str]
) -> Operation[bool]:
    """True if a partition does not exist; asked for each batch, with the topics that it writes to:
    what is remembered of a topic outlives it."""
    yield from refresh_metadata(session, [partition.topic, *written])
    if partition.partition in session.cluster.partitions(partition.topic):
        return False
    return bool((yield from confirm_missing(session, [partition])))
